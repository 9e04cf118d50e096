//! One HTTP/1.1 client connection.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::dialler::{Dialler, Failure, Outcome};
use crate::http1::ResponseReader;

/// Bytes of one read from the socket.
const READ_SIZE: usize = 16 * 1024;
/// The largest number of unparsed bytes: one response head.
const MAX_UNPARSED: usize = 64 * 1024 + READ_SIZE;

/// A slot: a connection, which may be closed.
pub(super) struct Connection {
    pub(super) dialler: Dialler,
    stream: Option<TcpStream>,
    buffer: Vec<u8>,
    head_request: bool,
    /// Requests sent so far; selects the next of the target's requests.
    sent: usize,
}

impl Connection {
    pub(super) fn new(dialler: Dialler) -> Self {
        let head_request = dialler.target.method.eq_ignore_ascii_case("HEAD");
        Connection {
            dialler,
            stream: None,
            buffer: Vec::with_capacity(READ_SIZE),
            head_request,
            sent: 0,
        }
    }

    pub(super) async fn request(&mut self) -> Outcome {
        let mut body_bytes = 0;
        let limit = self.dialler.target.timeout;
        let exchange = tokio::time::timeout(limit, self.exchange(&mut body_bytes));
        let result = exchange.await.unwrap_or_else(|_| Err(self.timed_out()));
        if result.is_err() || self.dialler.target.new_connection {
            self.stream = None;
        }
        Outcome { result, body_bytes }
    }

    fn timed_out(&self) -> Failure {
        if self.stream.is_some() { Failure::Timeout } else { Failure::ConnectTimeout }
    }

    /// Drops the connection.
    pub(super) fn reset(&mut self) {
        self.stream = None;
    }

    pub(super) async fn open(&mut self) {
        if !self.dialler.target.new_connection {
            self.stream = self.dialler.dial().await.ok();
        }
    }

    async fn exchange(&mut self, body_bytes: &mut u64) -> Result<(), Failure> {
        if self.closed_by_server() {
            self.stream = None;
        }
        let stream = match &mut self.stream {
            Some(stream) => stream,
            none => none.insert(self.dialler.dial().await?),
        };
        let requests = &self.dialler.target.requests;
        let request = &requests[self.sent % requests.len()];
        self.sent = self.sent.wrapping_add(1);
        stream.write_all(request).await.map_err(|_| Failure::Send)?;
        if self.dialler.target.unread {
            // Ends at the time limit of the request.
            std::future::pending::<()>().await;
        }
        self.buffer.clear();
        let mut reader = ResponseReader::new(self.head_request, false);
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
            return Failure::of_status(response.status).map_or(Ok(()), Err);
        }
    }

    /// Whether the server has closed the idle connection; checked before a request is sent on it.
    fn closed_by_server(&self) -> bool {
        let Some(stream) = &self.stream else { return false };
        let mut byte = [0_u8; 1];
        !matches!(stream.try_read(&mut byte), Err(e) if e.kind() == std::io::ErrorKind::WouldBlock)
    }
}
