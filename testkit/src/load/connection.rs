//! One client connection: sends a request, reads the response, says what went wrong.

use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::Target;
use crate::http1::ResponseReader;

/// Bytes taken from the socket at once.
const READ_SIZE: usize = 16 * 1024;
/// Unparsed bytes kept at most: one response head.
const MAX_UNPARSED: usize = 64 * 1024 + READ_SIZE;

/// Why a request failed; the label names it in reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    Connect,
    ConnectTimeout,
    Send,
    Reset,
    Closed,
    Timeout,
    Malformed,
    Status4xx,
    Status5xx,
    StatusOther,
}

impl Failure {
    pub(super) fn label(self) -> &'static str {
        match self {
            Failure::Connect => "connect",
            Failure::ConnectTimeout => "connect_timeout",
            Failure::Send => "send",
            Failure::Reset => "reset",
            Failure::Closed => "closed_early",
            Failure::Timeout => "timeout",
            Failure::Malformed => "malformed",
            Failure::Status4xx => "status_4xx",
            Failure::Status5xx => "status_5xx",
            Failure::StatusOther => "status_other",
        }
    }
}

/// What one request brought.
pub(super) struct Outcome {
    pub(super) result: Result<(), Failure>,
    pub(super) body_bytes: u64,
}

/// A slot for a connection, open or not.
pub(super) struct Connection {
    target: Rc<Target>,
    stream: Option<TcpStream>,
    next_address: usize,
    buffer: Vec<u8>,
    pub(super) opened: u64,
}

impl Connection {
    pub(super) fn new(target: Rc<Target>, nth: usize) -> Self {
        let buffer = Vec::with_capacity(READ_SIZE);
        Connection { target, stream: None, next_address: nth, buffer, opened: 0 }
    }

    /// Sends the target's request and reads the whole response.
    pub(super) async fn request(&mut self) -> Outcome {
        let mut body_bytes = 0;
        let limit = self.target.timeout;
        let exchange = tokio::time::timeout(limit, self.exchange(&mut body_bytes));
        let result = exchange.await.unwrap_or_else(|_| Err(self.timed_out()));
        if result.is_err() || self.target.new_connection {
            self.stream = None;
        }
        Outcome { result, body_bytes }
    }

    fn timed_out(&self) -> Failure {
        if self.stream.is_some() { Failure::Timeout } else { Failure::ConnectTimeout }
    }

    /// Opens the connection before the first request needs it; a failure shows at that request.
    pub(super) async fn open(&mut self, limit: Duration) {
        if !self.target.new_connection {
            let _ = tokio::time::timeout(limit, self.connect()).await;
        }
    }

    async fn connect(&mut self) -> Result<(), Failure> {
        let addresses = &self.target.addresses;
        for _ in 0..addresses.len() {
            let address = addresses[self.next_address % addresses.len()];
            if let Ok(stream) = TcpStream::connect(address).await {
                // Fails only on a socket that is already dead; the write will say so.
                let _ = stream.set_nodelay(true);
                self.stream = Some(stream);
                self.opened += 1;
                return Ok(());
            }
            self.next_address += 1;
        }
        Err(Failure::Connect)
    }

    async fn exchange(&mut self, body_bytes: &mut u64) -> Result<(), Failure> {
        if self.closed_by_server() {
            self.stream = None;
        }
        if self.stream.is_none() {
            self.connect().await?;
        }
        let stream = self.stream.as_mut().ok_or(Failure::Connect)?;
        stream.write_all(&self.target.request).await.map_err(|_| Failure::Send)?;
        self.buffer.clear();
        let mut reader = ResponseReader::new(self.target.head_request, false);
        loop {
            let response = match stream.read_buf(&mut self.buffer).await {
                Ok(0) => reader.finish().map_err(|_| Failure::Closed)?.ok_or(Failure::Closed)?,
                Ok(_) if self.buffer.len() > MAX_UNPARSED => return Err(Failure::Malformed),
                Ok(_) => {
                    let (used, response) =
                        reader.read(&self.buffer).map_err(|_| Failure::Malformed)?;
                    self.buffer.drain(..used);
                    match response {
                        Some(response) => response,
                        None => continue,
                    }
                }
                Err(_) => return Err(Failure::Reset),
            };
            *body_bytes = response.body_len;
            if !self.buffer.is_empty() {
                return Err(Failure::Malformed);
            }
            if !response.keep_alive {
                self.stream = None;
            }
            return match response.status {
                200..300 => Ok(()),
                400..500 => Err(Failure::Status4xx),
                500..600 => Err(Failure::Status5xx),
                _ => Err(Failure::StatusOther),
            };
        }
    }

    /// Whether the idle connection has ended: a client sees that before it sends.
    fn closed_by_server(&self) -> bool {
        let Some(stream) = &self.stream else { return false };
        let mut byte = [0_u8; 1];
        !matches!(stream.try_read(&mut byte), Err(e) if e.kind() == std::io::ErrorKind::WouldBlock)
    }
}
