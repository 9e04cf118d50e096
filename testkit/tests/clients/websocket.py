"""A WebSocket server and client of Python's websockets.

websocket.py serve PORT         serves until it is killed
websocket.py call HOST PORT     runs every case, prints the outcome of each as one line of JSON
"""

import hashlib
import json
import sys

from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.http11 import Response
from websockets.datastructures import Headers
from websockets.sync.client import connect
from websockets.sync.server import serve

LARGE = 3_000_000
LIMIT_S = 30


def session(socket):
    """Echoes messages; some words have a special effect."""
    path = socket.request.path
    if path == "/greet":
        socket.send("hello")
    for message in socket:
        if message == "close":
            socket.close(4001, "as asked")
        elif message == "drop":
            socket.socket.close()
            return
        elif message == "pieces":
            socket.send(iter(["one ", "two ", "three"]))
        else:
            socket.send(message)


def refuse(_connection, request):
    if request.path == "/refused":
        return Response(403, "Forbidden", Headers([("Content-Length", "3")]), b"no\n")


def run(port):
    server = serve(
        session,
        "0.0.0.0",
        int(port),
        max_size=None,
        select_subprotocol=lambda _, offered: "b" if "b" in offered else None,
        process_request=refuse,
    )
    server.serve_forever()


def closed(socket):
    """The code and the reason with which the other side closed."""
    try:
        socket.recv(timeout=LIMIT_S)
    except ConnectionClosed as end:
        return [end.rcvd.code, end.rcvd.reason] if end.rcvd else ["no close frame"]
    return ["open"]


def text(socket):
    socket.send("\u2603 \u0000")
    return socket.recv(timeout=LIMIT_S)


def binary(socket):
    socket.send(bytes(range(256)) * (LARGE // 256))
    return hashlib.sha256(socket.recv(timeout=LIMIT_S)).hexdigest()


def pieces_up(socket):
    socket.send(iter(["a", "", "b" * 70_000]))
    return len(socket.recv(timeout=LIMIT_S))


def pieces_down(socket):
    socket.send("pieces")
    return list(socket.recv_streaming())


def ping(socket):
    return socket.ping(b"payload").wait(LIMIT_S)


def asked_to_close(socket):
    socket.send("close")
    return closed(socket)


def dropped(socket):
    socket.send("drop")
    return closed(socket)


def many(socket):
    for number in range(2000):
        socket.send(str(number))
    return sum(int(socket.recv(timeout=LIMIT_S)) for _ in range(2000))


CASES = [
    ("text", "/", {}, text),
    ("binary", "/", {}, binary),
    ("no compression", "/", {"compression": None}, binary),
    ("pieces up", "/", {}, pieces_up),
    ("pieces down", "/", {}, pieces_down),
    ("ping", "/", {}, ping),
    ("many", "/", {"compression": None}, many),
    ("closed by the server", "/", {}, asked_to_close),
    ("dropped by the server", "/", {}, dropped),
    ("subprotocol", "/", {"subprotocols": ["a", "b"]}, lambda socket: socket.subprotocol),
    ("the server speaks first", "/greet", {}, lambda socket: socket.recv(timeout=LIMIT_S)),
]


def call(host, port):
    for case, path, options, play in CASES:
        with connect(f"ws://{host}:{port}{path}", max_size=None, **options) as socket:
            print(json.dumps([case, play(socket)]), flush=True)
    try:
        connect(f"ws://{host}:{port}/refused")
    except InvalidStatus as answer:
        print(json.dumps(["refused", answer.response.status_code, answer.response.body.decode()]))


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        run(sys.argv[2])
    else:
        call(sys.argv[2], sys.argv[3])
