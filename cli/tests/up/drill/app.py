"""A workload of the drill: it serves, calls others for each request, and does what a file of its instance says."""
import http.server, json, os, random, socket, sys, threading, time, urllib.request

INSTANCE = socket.gethostname()
PORT = int(os.environ.get("PORT", "8080"))
CALLS = os.environ.get("CALLS", "").split()
EVERY = float(os.environ.get("EVERY", "0"))
leaked = []


def knobs():
    try:
        with open(f"knobs/{INSTANCE}") as file:
            return json.load(file)
    except (OSError, ValueError):
        return {}


class Line:
    """A connection of bytes that is kept, a line each way."""

    def __init__(self, name):
        self.at = (name, 5432)
        self.lock, self.stream = threading.Lock(), None

    def ask(self):
        with self.lock:
            try:
                if self.stream is None:
                    self.stream = socket.create_connection(self.at, 1)
                self.stream.sendall(b"q\n")
                return self.stream.recv(16) == b"r\n"
            except OSError:
                pass
            if self.stream is not None:
                self.stream.close()
                self.stream = None
            return False


LINES = {url: Line(url.removeprefix("tcp://")) for url in CALLS if url.startswith("tcp://")}


def call(url, header):
    if url in LINES:
        return LINES[url].ask()
    request = urllib.request.Request(url, headers={"x-session": "a" * header} if header else {})
    try:
        with urllib.request.urlopen(request, timeout=1) as answer:
            answer.read()
        return True
    except OSError:
        return False


def work():
    """Everything that a request takes; whether it went well."""
    now = knobs()
    if now.get("exit"):
        os._exit(3)
    if now.get("leak"):
        leaked.append(bytearray(os.urandom(1)) * (16 << 20))
    end = time.thread_time() + now.get("burn", 0)
    while time.thread_time() < end:
        pass
    time.sleep(now.get("slow", 0))
    if random.random() < now.get("fail", float(os.environ.get("FAIL", "0"))):
        return False
    # The list makes sure that each URL is called, so that the first failure does not prevent the other calls.
    return all([call(url, now.get("header", 0)) for url in now.get("calls", CALLS)])


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if knobs().get("reset"):
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            self.connection.close()
            return
        good = work()
        self.send_response(knobs().get("status", 200) if good else 500)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128

    def handle_error(self, request, client):
        pass


def bytes_server():
    def talk(stream):
        with stream:
            while stream.recv(16):
                stream.sendall(b"r\n")

    listener = socket.create_server(("", 5432))
    while True:
        threading.Thread(target=talk, args=listener.accept()[:1], daemon=True).start()


if os.environ.get("BYTES"):
    bytes_server()
elif EVERY:
    while True:
        threading.Thread(target=work, daemon=True).start()
        time.sleep(EVERY)
else:
    Server(("", PORT), Handler).serve_forever()
