"""A gRPC server that answers each call with the client's address. With a server as its argument it is the client."""

import sys
from concurrent import futures
from urllib.parse import unquote

import grpc


def address(_request, context):
    # ipv4:10.89.0.3:52044, or ipv6:[fd89::3]:52044 with its brackets encoded.
    return unquote(context.peer()).split(":", 1)[1].rsplit(":", 1)[0].strip("[]").encode()


def check(_request, _context):
    """The health service of gRPC: field 1 of the answer is SERVING."""
    return b"\x08\x01"


def handler(service, method, answer):
    methods = {method: grpc.unary_unary_rpc_method_handler(answer)}
    return grpc.method_handlers_generic_handler(service, methods)


if len(sys.argv) > 1:
    with grpc.insecure_channel(sys.argv[1]) as channel:
        print(channel.unary_unary("/stacks.Calls/Address")(b"", timeout=30, wait_for_ready=True).decode())
else:
    server = grpc.server(futures.ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers(
        (handler("stacks.Calls", "Address", address), handler("grpc.health.v1.Health", "Check", check))
    )
    server.add_insecure_port("[::]:50051")
    server.start()
    server.wait_for_termination()
