# Serves HTTPS, with the server's name in every response. The arguments are PORT NAME. The certificate and its key
# are in the folder of this file.
import pathlib
import socket
import ssl
import sys
import threading

port, name = sys.argv[1:]
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(pathlib.Path(__file__).with_name("pair.pem"))
response = f"HTTP/1.1 200 OK\r\nx-served-by: {name}\r\nContent-Length: 0\r\n\r\n".encode()


def serve(client):
    try:
        with context.wrap_socket(client, server_side=True) as stream:
            lines = stream.makefile("rb")
            while lines.readline():
                while lines.readline().strip():
                    pass
                stream.sendall(response)
    except OSError:
        # The client has left in the middle of a handshake.
        client.close()


listener = socket.create_server(("::", int(port)), family=socket.AF_INET6, dualstack_ipv6=True)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
