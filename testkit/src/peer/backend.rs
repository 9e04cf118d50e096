//! A plain HTTP/1 server whose responses are controlled by switches in the request.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::Result;
use nix::libc::linger;
use nix::sys::socket::{setsockopt, sockopt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::http::{Request, Wire};
use super::script::checksum;

/// Largest body of a response, in bytes.
const MAX_SIZE: usize = 64 * 1024 * 1024;
/// Most interim responses before the final one.
const MAX_HINTS: usize = 8;
/// Interim response 103 of RFC 8297.
const EARLY_HINTS: &str = "HTTP/1.1 103 Early Hints\r\nLink: </style.css>; rel=preload\r\n\r\n";
/// The repeated content of bodies. Because it is the alphabet, a shifted or lost byte changes the checksum.
const LETTERS: &[u8] = b"abcdefghijklmnopqrstuvwxyz";

/// The plain HTTP backend.
///
/// | switch in the query | effect |
/// |---|---|
/// | `status=N` | responds with that status |
/// | `size=N` | sends a body of N letters |
/// | `delay_ms=N` | waits before it responds |
/// | `chunked=N` | sends the body in N chunks |
/// | `pause_ms=N` | waits between two chunks |
/// | `trailers=1` | ends a chunked body with the trailer `x-checksum` |
/// | `close=1` | sends `Connection: close` and closes |
/// | `close=half` | closes in the middle of the body |
/// | `reset=1` | resets the connection instead of responding |
/// | `refuse=1` | responds before it reads the body (417 to `Expect`) and closes |
/// | `hints=N` | sends N interim responses 103 first (RFC 8297) |
/// | `head=1` | sends the request's head, byte by byte, as the body |
///
/// `/echo` returns the request's body, `/seen` returns JSON with what arrived: head, body length
/// and checksum, trailers, and both addresses of the connection.
#[derive(Clone, Debug, Default)]
pub struct Backend {
    /// The value of the header `x-served-by`.
    pub name: String,
}

impl Backend {
    /// Serves one connection to its end.
    pub(super) async fn serve(&self, stream: TcpStream) -> Result<()> {
        stream.set_nodelay(true)?;
        let mut wire = Wire { stream, buffer: Vec::new() };
        while let Some(request) = wire.request().await? {
            if let Some(delay) = request.number("delay_ms") {
                tokio::time::sleep(Duration::from_millis(delay)).await;
            }
            if request.query("reset").is_some() {
                setsockopt(&wire.stream, sockopt::Linger, &linger { l_onoff: 1, l_linger: 0 })?;
                return Ok(());
            }
            if let Some(protocol) = request.header("upgrade")
                && request.path() == "/upgrade"
            {
                return upgrade(&mut wire, protocol).await;
            }
            let open = self.respond(&mut wire, &request).await?;
            if !open {
                return linger_then_close(&mut wire.stream).await;
            }
        }
        Ok(())
    }

    /// Responds to a request; returns false if the connection must be closed.
    async fn respond(&self, wire: &mut Wire, request: &Request) -> Result<bool> {
        let refuse = request.query("refuse").is_some();
        let default = if refuse && request.header("expect").is_some() { 417 } else { 200 };
        let status = request.number("status").unwrap_or(default);
        let body = body(wire, request)?;
        let close = refuse || request.query("close").is_some() || request.wants_close();
        let chunks = request.number("chunked").filter(|_| request.minor > 0);
        let bodiless = matches!(status, 204 | 304);
        let hints = usize::try_from(request.number("hints").unwrap_or(0))?.min(MAX_HINTS);
        let mut head = EARLY_HINTS.repeat(hints);
        write!(head, "HTTP/1.1 {status} {}\r\n", reason(status))?;
        if !self.name.is_empty() {
            write!(head, "x-served-by: {}\r\n", self.name)?;
        }
        if close {
            head += "Connection: close\r\n";
        } else if request.minor == 0 {
            head += "Connection: keep-alive\r\n";
        }
        if chunks.is_some() && !bodiless {
            head += "Transfer-Encoding: chunked\r\n";
            if request.query("trailers").is_some() {
                head += "Trailer: x-checksum\r\n";
            }
        } else if !bodiless {
            write!(head, "Content-Length: {}\r\n", body.len())?;
        }
        let mut out = (head + "\r\n").into_bytes();
        if request.method == "HEAD" || bodiless {
            wire.stream.write_all(&out).await?;
            return Ok(!close);
        }
        match chunks {
            Some(pieces) => send_chunks(&mut wire.stream, out, &body, pieces, request).await?,
            None => {
                let half = request.query("close") == Some("half");
                out.extend_from_slice(if half { &body[..body.len() / 2] } else { &body });
                wire.stream.write_all(&out).await?;
            }
        }
        Ok(!close)
    }
}

fn body(wire: &Wire, request: &Request) -> Result<Vec<u8>> {
    match request.path() {
        _ if request.query("head").is_some() => Ok(request.raw.clone()),
        "/echo" => Ok(request.body.clone()),
        "/seen" => Ok(serde_json::to_vec(&serde_json::json!({
            "method": request.method,
            "target": request.target,
            "minor": request.minor,
            "headers": request.headers,
            "trailers": request.trailers,
            "body_len": request.body.len(),
            "body_sum": checksum(&request.body),
            "remote": wire.stream.peer_addr()?.to_string(),
            "local": wire.stream.local_addr()?.to_string(),
        }))?),
        _ => {
            let size = request.number("size").unwrap_or(13);
            let size = usize::try_from(size)?.min(MAX_SIZE);
            Ok(LETTERS.iter().copied().cycle().take(size).collect())
        }
    }
}

async fn send_chunks(
    stream: &mut TcpStream,
    mut out: Vec<u8>,
    body: &[u8],
    pieces: u64,
    request: &Request,
) -> Result<()> {
    let size = body.len().div_ceil(usize::try_from(pieces.max(1))?).max(1);
    for chunk in body.chunks(size) {
        out.extend(format!("{:x}\r\n", chunk.len()).as_bytes());
        out.extend_from_slice(chunk);
        out.extend(b"\r\n");
        stream.write_all(&out).await?;
        out.clear();
        if let Some(pause) = request.number("pause_ms") {
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
    }
    out.extend(b"0\r\n");
    if request.query("trailers").is_some() {
        out.extend(format!("x-checksum: {}\r\n", checksum(body)).as_bytes());
    }
    out.extend(b"\r\n");
    Ok(stream.write_all(&out).await?)
}

/// Switches to the protocol that the client requests, and echoes bytes.
async fn upgrade(wire: &mut Wire, protocol: &str) -> Result<()> {
    let head = format!(
        "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: {protocol}\r\n\r\n"
    );
    wire.stream.write_all(head.as_bytes()).await?;
    wire.stream.write_all(&std::mem::take(&mut wire.buffer)).await?;
    super::server::echo(&mut wire.stream).await
}

/// Shuts down the sending direction and reads until the client closes. This way the client sees the response and
/// no reset (RFC 9112 section 9.6).
async fn linger_then_close(stream: &mut TcpStream) -> Result<()> {
    /// How long a client may take to close its sending direction.
    const LINGER: Duration = Duration::from_secs(2);
    stream.shutdown().await?;
    let mut rest = [0_u8; 16 * 1024];
    let drain = async { while !matches!(stream.read(&mut rest).await, Ok(0) | Err(_)) {} };
    // If the client takes longer, its connection is closed.
    let _ = tokio::time::timeout(LINGER, drain).await;
    Ok(())
}

fn reason(status: u64) -> &'static str {
    match status {
        200 => "OK",
        204 => "No Content",
        304 => "Not Modified",
        404 => "Not Found",
        417 => "Expectation Failed",
        500 => "Internal Server Error",
        503 => "Service Unavailable",
        _ => "Status",
    }
}
