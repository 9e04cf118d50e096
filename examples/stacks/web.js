const http = require("http");

http.createServer((request, response) => {
  response.end(`${request.socket.remoteAddress}\n`);
}).listen(8080);
