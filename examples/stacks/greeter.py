"""Greets its clients before they say anything, as SMTP and MySQL servers do."""

import socketserver


class Greeter(socketserver.StreamRequestHandler):
    def handle(self):
        self.wfile.write(f"220 {self.client_address[0]}\r\n".encode())
        self.rfile.readline()


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True


Server(("0.0.0.0", 2525), Greeter).serve_forever()
