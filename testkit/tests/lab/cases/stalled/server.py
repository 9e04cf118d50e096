# Serves HTTP/1.1. A response has as many bytes as the path says, or 2. Of a request to /stall only the head is
# read.
import socket
import threading

CHUNK = b"x" * 65536


def serve(client):
    stream = client.makefile("rb")
    while line := stream.readline():
        path, length = line.split(b" ")[1], 0
        while header := stream.readline().strip().lower():
            if header.startswith(b"content-length:"):
                length = int(header.split(b":")[1])
        if path == b"/stall":
            threading.Event().wait()
        stream.read(length)
        size = int(path[1:] or 2)
        client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        for start in range(0, size, len(CHUNK)):
            client.sendall(CHUNK[: size - start])


listener = socket.create_server(("0.0.0.0", 8080), backlog=500)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
