//! Sends an HTTP/1.1 request and reads its response.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leno_testkit::http1::{Response, ResponseReader};
use leno_testkit::proxy::Proxy;

/// How long any response may take.
const LIMIT: Duration = Duration::from_secs(20);

/// Sends `request`, which is a line such as `GET /path` followed by header lines `name: value`, and reads the
/// response.
pub(crate) fn send(to: SocketAddr, request: &str) -> Result<Response> {
    let mut lines = request.lines();
    let first = lines.next().context("an empty request")?;
    let mut text = format!("{first} HTTP/1.1\r\n");
    if !request.to_ascii_lowercase().contains("host:") {
        text.push_str("Host: echo\r\n");
    }
    for line in lines {
        text.push_str(&format!("{}\r\n", line.trim()));
    }
    text.push_str("\r\n");
    raw(to, text.as_bytes(), first.starts_with("HEAD "))
}

/// The metrics of a proxy.
pub(crate) fn metrics(proxy: &Proxy) -> Result<String> {
    let response = send(proxy.admin(), "GET /metrics\nHost: localhost")?;
    ensure!(response.status == 200, "/metrics: {}: {}", response.status, response.text());
    Ok(response.text())
}

/// Sends bytes, and reads one response.
pub(crate) fn raw(to: SocketAddr, bytes: &[u8], head: bool) -> Result<Response> {
    finish(begin(to, bytes)?, b"", head)
}

/// Sends the first bytes of a request.
pub(crate) fn begin(to: SocketAddr, bytes: &[u8]) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(to).context("cannot connect to the proxy")?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.write_all(bytes)?;
    Ok(stream)
}

/// Sends the rest of a request, and reads its response.
pub(crate) fn finish(mut stream: TcpStream, bytes: &[u8], head: bool) -> Result<Response> {
    stream.write_all(bytes)?;
    let (mut reader, mut received) = (ResponseReader::new(head, true), Vec::new());
    let mut buffer = [0; 4096];
    loop {
        let count = stream.read(&mut buffer).context("no response")?;
        received.extend_from_slice(&buffer[..count]);
        let (used, response) = reader.read(&received)?;
        received.drain(..used);
        if let Some(response) = response {
            return Ok(response);
        }
        if count == 0 {
            return reader.finish()?.context("the connection ended without a response");
        }
    }
}
