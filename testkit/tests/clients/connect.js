// Tests extended CONNECT (RFC 8441) with Node's own HTTP/2.
//
//   connect.js serve PORT        serves until it is killed
//   connect.js call HOST PORT    runs every case, prints the outcome of each as one line of JSON
"use strict";

const http2 = require("http2");

const LARGE = 3_000_000;
const LIMIT_MS = 30_000;

// A server whose tunnels send back what they receive. It reports the requested path in the response.
function serve(port) {
  const server = http2.createServer({ settings: { enableConnectProtocol: true } });
  server.on("stream", (stream, headers) => {
    stream.on("error", () => {});
    if (headers[":protocol"] !== "echo") {
      stream.respond({ ":status": 400 }, { endStream: true });
      return;
    }
    stream.respond({ ":status": 200, "x-path": headers[":path"], "x-sum": headers["x-sum"] });
    stream.pipe(stream);
  });
  server.listen(Number(port), "0.0.0.0");
}

function within(promise, what) {
  const late = new Promise((_, reject) => {
    setTimeout(() => reject(new Error(`no ${what} in time`)), LIMIT_MS).unref();
  });
  return Promise.race([promise, late]);
}

async function connect(host, port) {
  const session = http2.connect(`http://${host}:${port}`);
  const settings = new Promise((resolve, reject) => {
    session.once("remoteSettings", resolve);
    session.once("error", reject);
  });
  return [session, await within(settings, "SETTINGS")];
}

function tunnel(session, authority, fields) {
  return session.request({
    ":method": "CONNECT",
    ":scheme": "http",
    ":authority": authority,
    ":path": "/there?x=y",
    ...fields,
  });
}

function response(stream) {
  return within(
    new Promise((resolve, reject) => {
      stream.once("response", resolve);
      stream.once("error", reject);
    }),
    "response",
  );
}

// Waits until `length` bytes have arrived.
function received(stream, length) {
  let bytes = Buffer.alloc(0);
  return within(
    new Promise((resolve) => {
      stream.on("data", (piece) => {
        bytes = Buffer.concat([bytes, piece]);
        if (bytes.length >= length) resolve(bytes);
      });
    }),
    `${length} bytes`,
  );
}

async function call(host, port) {
  const authority = `${host}:${port}`;
  const [session, settings] = await connect(host, port);
  const say = (...words) => console.log(JSON.stringify(words));
  say("takes it", settings.enableConnectProtocol);
  const echo = tunnel(session, authority, { ":protocol": "echo", "x-sum": "1" });
  const head = await response(echo);
  say("answered", head[":status"], head["x-path"], head["x-sum"]);
  const small = received(echo, 5);
  echo.write("hello");
  say("small", (await small).toString());
  echo.removeAllListeners("data");
  const sent = Buffer.alloc(LARGE, "0123456789abcdef");
  const large = received(echo, LARGE);
  echo.write(sent);
  say("large", (await large).equals(sent));
  const ended = within(new Promise((resolve) => echo.once("end", () => resolve(true))), "end");
  echo.end();
  say("half-closed", await ended);
  const other = tunnel(session, authority, { ":protocol": "unknown" });
  say("another protocol", (await response(other))[":status"]);
  session.close();
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
