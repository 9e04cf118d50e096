# Requests 3 MB and sends 3 MB, first one after the other and then at the same time. Prints "served".
import http.client
import threading

SIZE = 3000000
failures = []


def ask(method, path, body, length):
    try:
        client = http.client.HTTPConnection("web", 8080, timeout=20)
        client.request(method, path, body)
        response = client.getresponse()
        got = (response.status, len(response.read()))
        if got != (200, length):
            failures.append(f"{method}: {got}")
    except Exception as error:
        failures.append(f"{method}: {error!r}")


REQUESTS = [("GET", f"/{SIZE}", None, SIZE), ("POST", "/", b"z" * SIZE, 2)]
for request in REQUESTS:
    ask(*request)
together = [threading.Thread(target=ask, args=request) for request in REQUESTS * 5]
for thread in together:
    thread.start()
for thread in together:
    thread.join()
print(" ".join(failures) or "served")
