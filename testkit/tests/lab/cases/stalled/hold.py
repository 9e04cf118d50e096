# Holds responses without reading them, or uploads without finishing them. The arguments are KIND COUNT MARKER.
# Creates the file MARKER when all are held, and then waits to be killed.
import pathlib
import socket
import sys
import time

kind, count, marker = sys.argv[1:]
UPLOAD = b"POST /stall HTTP/1.1\r\nHost: web\r\nContent-Length: 50000000\r\n\r\n"
# Larger than what the sockets on the way can hold, because a response that they take whole would not be held.
RESPONSE = b"GET /50000000 HTTP/1.1\r\nHost: web\r\n\r\n"
# How long a connection must take no byte to count as held, in seconds.
QUIET = 1.0


def hold():
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("web", 8080))
    client.sendall(UPLOAD if kind == "uploads" else RESPONSE)
    client.setblocking(False)
    return client


def fill(client):
    try:
        return client.send(b"y" * 65536)
    except BlockingIOError:
        return 0


held = [hold() for _ in range(int(count))]
moved = time.monotonic()
while time.monotonic() - moved < QUIET:
    if kind == "uploads" and sum(fill(client) for client in held) > 0:
        moved = time.monotonic()
    time.sleep(0.01)
pathlib.Path(marker).touch()
time.sleep(600)
