// A WebSocket server and client of Node's ws.
//
//   ws.js serve PORT        serves until it is killed
//   ws.js call HOST PORT    runs every case, prints the outcome of each as one line of JSON
"use strict";

const { createHash } = require("crypto");
const { WebSocket, WebSocketServer } = require("ws");

const LARGE = 3_000_000;
const LIMIT_MS = 30_000;

function serve(port) {
  const options = {
    host: "0.0.0.0",
    port: Number(port),
    maxPayload: 2 * LARGE,
    perMessageDeflate: true,
    handleProtocols: (offered) => (offered.has("b") ? "b" : false),
    verifyClient: ({ req }, done) => (req.url === "/refused" ? done(false, 403, "no") : done(true)),
  };
  // Echoes messages; some words have a special effect.
  new WebSocketServer(options).on("connection", (socket, request) => {
    if (request.url === "/greet") socket.send("hello");
    socket.on("message", (message, binary) => {
      const word = binary ? "" : message.toString();
      if (word === "close") socket.close(4001, "as asked");
      else if (word === "drop") socket.terminate();
      else if (word === "pieces") {
        socket.send("one ", { fin: false });
        socket.send("two ", { fin: false });
        socket.send("three", { fin: true });
      } else socket.send(message, { binary });
    });
  });
}

// Waits for the next event of one of these kinds.
function next(socket, ...kinds) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error(`no ${kinds} in time`)), LIMIT_MS);
    for (const kind of kinds) {
      socket.once(kind, (...values) => {
        clearTimeout(timer);
        resolve(values);
      });
    }
  });
}

async function message(socket) {
  const [bytes] = await next(socket, "message");
  return bytes;
}

async function echoed(socket, sent, options = {}) {
  socket.send(sent, options);
  return message(socket);
}

async function end(socket, word) {
  socket.send(word);
  const [code, reason] = await next(socket, "close");
  return [code, reason.toString()];
}

async function binary(socket) {
  const sent = Buffer.alloc(LARGE, "0123456789abcdef");
  return createHash("sha256").update(await echoed(socket, sent)).digest("hex");
}

async function piecesUp(socket) {
  const answer = message(socket);
  socket.send("a", { fin: false });
  socket.send("", { fin: false });
  socket.send("b".repeat(70_000), { fin: true });
  return (await answer).length;
}

async function ping(socket) {
  socket.ping("payload");
  return (await next(socket, "pong"))[0].toString();
}

async function many(socket) {
  let [sum, left] = [0, 2000];
  const all = new Promise((resolve) => {
    socket.on("message", (bytes) => {
      sum += Number(bytes.toString());
      if (--left === 0) resolve(sum);
    });
  });
  for (let number = 0; number < 2000; number += 1) socket.send(String(number));
  return all;
}

const CASES = [
  ["text", "/", [], {}, async (socket) => (await echoed(socket, "\u2603 \u0000")).toString()],
  ["binary", "/", [], {}, binary],
  ["no compression", "/", [], { perMessageDeflate: false }, binary],
  ["pieces up", "/", [], {}, piecesUp],
  ["pieces down", "/", [], {}, async (socket) => (await echoed(socket, "pieces")).toString()],
  ["ping", "/", [], {}, ping],
  ["many", "/", [], {}, many],
  ["closed by the server", "/", [], {}, (socket) => end(socket, "close")],
  ["dropped by the server", "/", [], {}, (socket) => end(socket, "drop")],
  ["subprotocol", "/", ["a", "b"], {}, (socket) => socket.protocol],
];

async function call(host, port) {
  for (const [name, path, protocols, options, play] of CASES) {
    const socket = new WebSocket(`ws://${host}:${port}${path}`, protocols, {
      maxPayload: 2 * LARGE,
      ...options,
    });
    await next(socket, "open");
    console.log(JSON.stringify([name, await play(socket)]));
    socket.terminate();
  }
  const greeted = new WebSocket(`ws://${host}:${port}/greet`);
  console.log(JSON.stringify(["the server speaks first", (await message(greeted)).toString()]));
  greeted.terminate();
  const refused = new WebSocket(`ws://${host}:${port}/refused`);
  // An `error` event follows the response.
  refused.on("error", () => {});
  const [, response] = await next(refused, "unexpected-response");
  console.log(JSON.stringify(["refused", response.statusCode]));
  refused.terminate();
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
