// Tests upgrades of HTTP/1.1 by requests of every kind, with Node's own HTTP.
//
//   upgrade.js serve PORT        serves until it is killed
//   upgrade.js call HOST PORT    runs every case, prints the outcome of each as one line of JSON
"use strict";

const http = require("http");

const LIMIT_MS = 30_000;
const SWITCH = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n";
const REFUSE = "HTTP/1.1 426 Upgrade Required\r\nConnection: Upgrade\r\nUpgrade: echo\r\n";

// A server that grants `echo`, refuses every other protocol, and reports the request that it received.
function serve(port) {
  const server = http.createServer((_request, response) => response.end("no upgrade"));
  server.on("upgrade", (request, socket, head) => {
    socket.on("error", () => {});
    const fields = Object.entries(request.headers).sort();
    const seen = JSON.stringify([request.method, request.url, ...fields]);
    if (request.headers.upgrade !== "echo") {
      socket.end(`${REFUSE}X-Seen: ${seen}\r\nContent-Length: 0\r\n\r\n`);
      return;
    }
    socket.write(`${SWITCH}X-Seen: ${seen}\r\n\r\n`);
    socket.write(head);
    socket.pipe(socket);
  });
  server.listen(Number(port), "0.0.0.0");
}

// Sends bytes through a tunnel and ends it. Returns the bytes that came back before the other side ended.
function exchange(socket, head) {
  return new Promise((resolve, reject) => {
    const parts = [head];
    socket.on("data", (part) => parts.push(part));
    socket.on("end", () => resolve(Buffer.concat(parts).toString("latin1")));
    socket.on("error", reject);
    socket.end("\x01not HTTP\r\n\r\n");
  });
}

function ask(host, port, [method, path, fields]) {
  return new Promise((resolve, reject) => {
    const headers = { Host: "there", Connection: "Upgrade", Upgrade: "echo", ...fields };
    const request = http.request({ host, port, method, path, headers, agent: false });
    setTimeout(() => reject(new Error(`${method} ${path}: no end in time`)), LIMIT_MS).unref();
    request.on("error", reject);
    request.on("response", (response) => {
      response.resume();
      response.on("end", () => resolve([response.statusCode, response.headers["x-seen"]]));
    });
    request.on("upgrade", (response, socket, head) => {
      const answered = [response.statusCode, response.headers["x-seen"]];
      exchange(socket, head).then((bytes) => resolve([...answered, bytes]), reject);
    });
    request.end();
  });
}

const CASES = [
  ["GET", "/a?b=c", {}],
  ["OPTIONS", "*", {}],
  ["OPTIONS", "/", {}],
  ["POST", "/", { "Content-Length": "0" }],
  ["PUT", "/x", { "Content-Length": "0" }],
  ["DELETE", "/x", {}],
  ["PROPFIND", "/x", { Depth: "1", "Content-Length": "0" }],
  ["GET", "/", { Upgrade: "other" }],
  ["OPTIONS", "*", { Upgrade: "other" }],
  ["POST", "/", { Upgrade: "other", "Content-Length": "0" }],
];

async function call(host, port) {
  for (const one of CASES) console.log(JSON.stringify([...one, await ask(host, port, one)]));
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
