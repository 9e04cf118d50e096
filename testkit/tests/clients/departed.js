// Tests clients that leave while a server works for them: curl, which is killed, and Node's own clients.
//
//   departed.js serve PORT        serves until it is killed
//   departed.js call HOST PORT    runs every case, prints the outcome of each as one line of JSON, and to
//                                 standard error the time from the client's end to that of the work
"use strict";

const http = require("http");
const http2 = require("http2");
const net = require("net");
const { spawn } = require("child_process");

// The duration of a request's work. It is longer than any wait of a client, so the work ends early only because
// the client has ended.
const WORK_MS = 600_000;
const LIMIT_MS = 30_000;
const PREFACE = "PRI * HTTP/2.0";

// /work/NAME answers late; /part/NAME begins its response at once; /state/NAME answers with the state of the work
// for NAME.
function serve(port) {
  const works = new Map();
  const answer = (request, response) => {
    const [, what, name] = request.url.split("/");
    if (what === "state") {
      response.end(works.get(name) ?? "unknown");
      return;
    }
    works.set(name, "begun");
    request.resume();
    if (what === "part") {
      response.writeHead(200, { "content-type": "text/plain" });
      response.write("part");
    }
    const work = setTimeout(() => {
      works.set(name, "answered");
      response.end("late");
    }, WORK_MS);
    response.on("close", () => {
      clearTimeout(work);
      if (works.get(name) === "begun") works.set(name, `ended ${Date.now()}`);
    });
    request.on("error", () => {});
    response.on("error", () => {});
  };
  const one = http.createServer(answer);
  const two = http2.createServer(answer);
  two.on("sessionError", () => {});
  net
    .createServer((socket) => {
      socket.on("error", () => {});
      socket.once("data", (bytes) => {
        socket.pause();
        socket.unshift(bytes);
        const isTwo = bytes.toString("latin1").startsWith(PREFACE.slice(0, bytes.length));
        (isTwo ? two : one).emit("connection", socket);
        if (!isTwo) socket.resume();
      });
    })
    .listen(Number(port), "0.0.0.0");
}

// Polls until the work for a name is in this state; returns the time of that.
async function until(origin, name, state) {
  const late = Date.now() + LIMIT_MS;
  for (;;) {
    const is = await fetch(`${origin}/state/${name}`).then((response) => response.text());
    if (is.startsWith(state)) return Number(is.slice(state.length));
    if (Date.now() > late) throw new Error(`${name} is ${is}, not ${state}`);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}

// Each client starts a request and returns a function that ends the client.
const CLIENTS = {
  curl: (url, more) => {
    const client = spawn("curl", ["-sS", "-N", "--http1.1", ...more, url], { stdio: "ignore" });
    return () => client.kill("SIGKILL");
  },
  "curl of HTTP/2": (url, more) => {
    const known = ["-sS", "-N", "--http2-prior-knowledge"];
    const client = spawn("curl", [...known, ...more, url], { stdio: "ignore" });
    return () => client.kill("SIGKILL");
  },
  "Node of HTTP/1": (url, more) => {
    const request = http.request(url, { method: more.length ? "POST" : "GET" });
    request.on("error", () => {});
    request.on("response", (response) => response.on("error", () => {}).resume());
    if (more.length) request.write("a part of a body");
    else request.end();
    return () => request.destroy();
  },
  // This cancels the stream, while the connection stays open.
  "Node of HTTP/2": (url, more) => {
    const { origin, pathname } = new URL(url);
    const session = http2.connect(origin);
    session.on("error", () => {});
    const head = { ":path": pathname, ":method": more.length ? "POST" : "GET" };
    const request = session.request(head, { endStream: !more.length });
    request.on("error", () => {}).resume();
    if (more.length) request.write("a part of a body");
    session.unref();
    return () => request.close(http2.constants.NGHTTP2_CANCEL);
  },
};

// An upload that does not end: curl sends what standard input contains, and Node sends a part.
const STAGES = {
  "before the response": ["work", []],
  "in the response": ["part", []],
  "in the upload": ["work", ["-T", "/dev/zero", "--limit-rate", "1k", "-X", "POST"]],
};

async function call(host, port) {
  const origin = `http://${host}:${port}`;
  let number = 0;
  for (const [client, start] of Object.entries(CLIENTS)) {
    for (const [stage, [path, more]] of Object.entries(STAGES)) {
      const name = `${process.pid}-${number++}`;
      const leave = start(`${origin}/${path}/${name}`, more);
      await until(origin, name, "begun");
      const left = Date.now();
      leave();
      const ended = await until(origin, name, "ended");
      console.error(`${client} ${stage}: ${ended - left} ms`);
      console.log(JSON.stringify([client, stage, "the work ended"]));
    }
  }
}

const [what, ...rest] = process.argv.slice(2);
if (what === "serve") serve(...rest);
else {
  call(...rest).then(
    () => process.exit(0),
    (error) => {
      console.error(error);
      process.exit(1);
    },
  );
}
