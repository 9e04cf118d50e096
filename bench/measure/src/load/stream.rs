//! One client connection that carries one request at a time. A request is one of HTTP/1.1, or bytes that the server
//! sends back, at once or after an upgrade to WebSocket.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::dialler::{Dialler, RequestFailure, RequestOutcome};
use super::plan::Protocol;
use crate::http1::{Response, ResponseReader};

/// The largest number of bytes of one read.
const HTTP1_READ: usize = 16 * 1024;
const ECHO_READ: usize = 64 * 1024;
/// The largest number of unparsed bytes: one response head.
const MAX_UNPARSED: usize = 64 * 1024 + HTTP1_READ;

/// A connection that may be closed at the moment. It is then opened again for the next request.
pub(super) struct StreamConnection {
    pub(super) dialler: Dialler,
    stream: Option<TcpStream>,
    buffer: Vec<u8>,
    head_request: bool,
    /// Requests sent so far; selects the next of the target's requests.
    sent: usize,
}

impl StreamConnection {
    pub(super) fn new(dialler: Dialler) -> Self {
        let target = &dialler.target;
        let head_request = target.plan.method.eq_ignore_ascii_case("HEAD");
        let buffer = match target.plan.protocol {
            Protocol::Http1 => Vec::with_capacity(HTTP1_READ),
            _ => vec![0; ECHO_READ.min(target.request().len())],
        };
        StreamConnection { dialler, stream: None, buffer, head_request, sent: 0 }
    }

    pub(super) async fn request(&mut self) -> RequestOutcome {
        let mut body_bytes = 0;
        let limit = self.dialler.target.plan.timeout;
        let exchange = tokio::time::timeout(limit, self.exchange(&mut body_bytes));
        let result = exchange.await.unwrap_or_else(|_| Err(self.timed_out()));
        if result.is_err() || self.dialler.target.plan.new_connection {
            self.stream = None;
        }
        RequestOutcome { result, body_bytes }
    }

    fn timed_out(&self) -> RequestFailure {
        if self.stream.is_some() {
            RequestFailure::TIMEOUT
        } else {
            RequestFailure::CONNECT_TIMEOUT
        }
    }

    pub(super) fn reset(&mut self) {
        self.stream = None;
    }

    pub(super) async fn open(&mut self) {
        if !self.dialler.target.plan.new_connection {
            self.stream = dial(&mut self.dialler).await.ok();
        }
    }

    async fn exchange(&mut self, body_bytes: &mut u64) -> Result<(), RequestFailure> {
        let is_http1 = self.dialler.target.plan.protocol == Protocol::Http1;
        if is_http1 && self.closed_by_server() {
            self.stream = None;
        }
        if self.stream.is_none() {
            self.stream = Some(dial(&mut self.dialler).await?);
        }
        if is_http1 { self.http1(body_bytes).await } else { self.echo(body_bytes).await }
    }

    /// Sends a request and reads the whole response.
    async fn http1(&mut self, body_bytes: &mut u64) -> Result<(), RequestFailure> {
        let stream = self.stream.as_mut().ok_or(RequestFailure::CONNECT)?;
        let requests = &self.dialler.target.requests;
        let request = &requests[self.sent % requests.len()];
        self.sent = self.sent.wrapping_add(1);
        stream.write_all(request).await.map_err(|_| RequestFailure::SEND)?;
        if self.dialler.target.plan.unread {
            // The time limit of the request ends this wait.
            std::future::pending::<()>().await;
        }
        let response = read(stream, &mut self.buffer, self.head_request).await?;
        *body_bytes = response.body_len;
        if !self.buffer.is_empty() {
            return Err(RequestFailure::MALFORMED);
        }
        if !response.keep_alive {
            self.stream = None;
        }
        RequestFailure::of_status(response.status).map_or(Ok(()), Err)
    }

    /// Sends the body and reads the same number of bytes, concurrently: a large message fills the buffers of both
    /// directions.
    async fn echo(&mut self, body_bytes: &mut u64) -> Result<(), RequestFailure> {
        let stream = self.stream.as_mut().ok_or(RequestFailure::CONNECT)?;
        let (mut reader, mut writer) = stream.split();
        let body = self.dialler.target.request();
        let send = async { writer.write_all(body).await.map_err(|_| RequestFailure::SEND) };
        let receive = async {
            let mut left = body.len();
            while left > 0 {
                let size = left.min(self.buffer.len());
                match reader.read(&mut self.buffer[..size]).await {
                    Ok(0) => return Err(RequestFailure::CLOSED),
                    Ok(count) => left -= count,
                    Err(_) => return Err(RequestFailure::RESET),
                }
            }
            Ok(())
        };
        tokio::try_join!(send, receive)?;
        *body_bytes = body.len() as u64;
        Ok(())
    }

    /// Whether the server has closed the idle connection; checked before a request is sent on it.
    fn closed_by_server(&self) -> bool {
        let Some(stream) = &self.stream else { return false };
        let mut byte = [0_u8; 1];
        !matches!(stream.try_read(&mut byte), Err(e) if e.kind() == std::io::ErrorKind::WouldBlock)
    }
}

/// Opens a connection, and upgrades it if the protocol requires that.
async fn dial(dialler: &mut Dialler) -> Result<TcpStream, RequestFailure> {
    let mut stream = dialler.dial().await?;
    if dialler.target.plan.protocol == Protocol::WebSocket {
        upgrade(&mut stream, &dialler.target.plan.url).await?;
    }
    Ok(stream)
}

/// Reads one response, and leaves in `buffer` the bytes that follow it.
async fn read(
    stream: &mut TcpStream,
    buffer: &mut Vec<u8>,
    head_request: bool,
) -> Result<Response, RequestFailure> {
    buffer.clear();
    let mut reader = ResponseReader::new(head_request, false);
    loop {
        match stream.read_buf(buffer).await {
            Ok(0) => return reader.finish().ok().flatten().ok_or(RequestFailure::CLOSED),
            Ok(_) if buffer.len() > MAX_UNPARSED => return Err(RequestFailure::MALFORMED),
            Ok(_) => {
                let (used, response) =
                    reader.read(buffer).map_err(|_| RequestFailure::MALFORMED)?;
                buffer.drain(..used);
                if let Some(response) = response {
                    return Ok(response);
                }
            }
            Err(_) => return Err(RequestFailure::RESET),
        }
    }
}

/// Upgrades a connection. The server sends nothing but the response until it receives something.
async fn upgrade(stream: &mut TcpStream, url: &str) -> Result<(), RequestFailure> {
    let rest = url.trim_start_matches("http://");
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    // The sample key in section 1.3 of RFC 6455.
    let head = format!(
        "GET /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.map_err(|_| RequestFailure::SEND)?;
    match read(stream, &mut Vec::new(), false).await?.status {
        101 => Ok(()),
        status => Err(RequestFailure::of_status(status).unwrap_or(RequestFailure::STATUS_OTHER)),
    }
}
