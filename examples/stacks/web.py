from flask import Flask, request

app = Flask(__name__)


@app.get("/")
def index():
    return f"{request.remote_addr}\n"


app.run(host="::", port=8080)
