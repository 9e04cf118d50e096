"""A WebSocket server that sends each client its address. With a URL as its argument it is the client."""

import socket
import sys

from websockets.sync.client import connect
from websockets.sync.server import serve


def greet(connection):
    connection.send(connection.remote_address[0])


if len(sys.argv) > 1:
    with connect(sys.argv[1]) as connection:
        print(connection.recv(timeout=30))
else:
    listener = socket.create_server(("::", 9000), family=socket.AF_INET6, dualstack_ipv6=True)
    with serve(greet, sock=listener) as server:
        server.serve_forever()
