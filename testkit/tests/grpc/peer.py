"""A gRPC server and client of Python's grpcio: messages are bytes, so that no code is generated.

peer.py serve PORT         serves until it is killed
peer.py call HOST PORT     runs every case, prints the outcome of each as one line of JSON
"""

import json
import queue
import sys
import time
from concurrent import futures

import grpc

SERVICE = "leno.Peer"
LARGE = 3_000_000
LIMIT_S = 30


def echo(request, context):
    """Returns the message; metadata are returned as initial and trailing metadata."""
    sent = [(k, v) for k, v in context.invocation_metadata() if k.startswith("x-")]
    context.send_initial_metadata(sent)
    context.set_trailing_metadata([(k + "-trailing" if not k.endswith("-bin") else k, v) for k, v in sent])
    return request


def fail(request, context):
    context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, request.decode())


def sleep(_request, context):
    """Responds only after the client has cancelled."""
    while context.is_active():
        time.sleep(0.01)
    return b""


def split(request, _context):
    for size in json.loads(request):
        yield b"x" * size


def fail_late(_request, context):
    yield b"first"
    context.abort(grpc.StatusCode.DATA_LOSS, "after one message")


def total(requests, _context):
    return str(sum(len(r) for r in requests)).encode()


def reverse(requests, _context):
    for request in requests:
        yield request[::-1]


def serve(port):
    server = grpc.server(futures.ThreadPoolExecutor(8), options=[("grpc.max_receive_message_length", -1)])
    handlers = {
        "Echo": grpc.unary_unary_rpc_method_handler(echo),
        "Fail": grpc.unary_unary_rpc_method_handler(fail),
        "Sleep": grpc.unary_unary_rpc_method_handler(sleep),
        "Split": grpc.unary_stream_rpc_method_handler(split),
        "FailLate": grpc.unary_stream_rpc_method_handler(fail_late),
        "Total": grpc.stream_unary_rpc_method_handler(total),
        "Reverse": grpc.stream_stream_rpc_method_handler(reverse),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    if server.add_insecure_port(f"0.0.0.0:{port}") == 0:
        sys.exit("cannot listen")
    server.start()
    server.wait_for_termination()


def status(call):
    """The status and the details of a failed call."""
    try:
        call()
    except grpc.RpcError as error:
        return [error.code().name, error.details()]
    return ["OK", ""]


def name(method):
    return f"/{SERVICE}/{method}"


def metadata(channel):
    sent = [("x-text", "a, b"), ("x-twice", "1"), ("x-twice", "2"), ("x-bytes-bin", bytes(range(256)))]
    _, call = channel.unary_unary(name("Echo")).with_call(b"m", timeout=LIMIT_S, metadata=sent)
    read = lambda all: sorted([k, v.hex() if isinstance(v, bytes) else v] for k, v in all if k.startswith("x-"))
    return [read(call.initial_metadata()), read(call.trailing_metadata())]


def cancelled(channel):
    call = channel.unary_stream(name("Split"))(json.dumps([1000] * 100_000).encode(), timeout=LIMIT_S)
    next(call)
    call.cancel()
    return call.code().name


def both_streams(channel):
    """Sends each message after the one before was answered."""
    words = queue.SimpleQueue()
    words.put(b"one")
    answers = []
    for answer in channel.stream_stream(name("Reverse"))(iter(words.get, None), timeout=LIMIT_S):
        answers.append(answer.decode())
        words.put([b"three", b"fourteen", None][len(answers) - 1])
    return answers


CASES = {
    "unary": lambda c: c.unary_unary(name("Echo"))(b"hello", timeout=LIMIT_S).decode(),
    "empty": lambda c: len(c.unary_unary(name("Echo"))(b"", timeout=LIMIT_S)),
    "large": lambda c: len(c.unary_unary(name("Echo"))(b"x" * LARGE, timeout=LIMIT_S)),
    "metadata": metadata,
    "status": lambda c: status(lambda: c.unary_unary(name("Fail"))("a: \t\u2603 %".encode(), timeout=LIMIT_S)),
    "unimplemented": lambda c: status(lambda: c.unary_unary(name("Nothing"))(b"", timeout=LIMIT_S)),
    "deadline": lambda c: status(lambda: c.unary_unary(name("Sleep"))(b"", timeout=0.2)),
    "server stream": lambda c: [len(m) for m in c.unary_stream(name("Split"))(b"[1, 0, 70000, 5]", timeout=LIMIT_S)],
    "late failure": lambda c: status(lambda: list(c.unary_stream(name("FailLate"))(b"", timeout=LIMIT_S))),
    "client stream": lambda c: c.stream_unary(name("Total"))(iter([b"x" * 70_000] * 50), timeout=LIMIT_S).decode(),
    "both streams": both_streams,
    "no message": lambda c: list(c.stream_stream(name("Reverse"))(iter([]), timeout=LIMIT_S)),
    "cancelled": cancelled,
    "gzip": lambda c: len(
        c.unary_unary(name("Echo"))(b"x" * 100_000, timeout=LIMIT_S, compression=grpc.Compression.Gzip)
    ),
}


def call(host, port):
    with grpc.insecure_channel(f"{host}:{port}", options=[("grpc.max_receive_message_length", -1)]) as channel:
        grpc.channel_ready_future(channel).result(timeout=LIMIT_S)
        for case, play in CASES.items():
            print(json.dumps([case, play(channel)]), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        call(sys.argv[2], sys.argv[3])
