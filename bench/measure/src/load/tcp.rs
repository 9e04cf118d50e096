//! One TCP connection to a server that echoes what it receives, from its begin or once it is upgraded.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::dialler::{Dialler, Failure, Outcome};
use super::plan::Protocol;

/// Bytes of one read.
const READ_SIZE: usize = 64 * 1024;
/// Most bytes of the response to an upgrade.
const MAX_HEAD: usize = 4096;

/// A slot: a connection, which may be closed.
pub(super) struct Connection {
    pub(super) dialler: Dialler,
    stream: Option<TcpStream>,
    buffer: Vec<u8>,
}

impl Connection {
    pub(super) fn new(dialler: Dialler) -> Self {
        let size = READ_SIZE.min(dialler.target.request().len());
        Connection { dialler, stream: None, buffer: vec![0; size] }
    }

    /// Drops the connection.
    pub(super) fn reset(&mut self) {
        self.stream = None;
    }

    pub(super) async fn open(&mut self) {
        if !self.dialler.target.new_connection {
            self.stream = dial(&mut self.dialler).await.ok();
        }
    }

    pub(super) async fn request(&mut self) -> Outcome {
        let limit = self.dialler.target.timeout;
        let mut body_bytes = 0;
        let exchange = tokio::time::timeout(limit, self.exchange(&mut body_bytes)).await;
        let late = if self.stream.is_some() { Failure::Timeout } else { Failure::ConnectTimeout };
        let result = exchange.unwrap_or(Err(late));
        if result.is_err() || self.dialler.target.new_connection {
            self.stream = None;
        }
        Outcome { result, body_bytes }
    }

    async fn exchange(&mut self, body_bytes: &mut u64) -> Result<(), Failure> {
        let stream = match &mut self.stream {
            Some(stream) => stream,
            none => none.insert(dial(&mut self.dialler).await?),
        };
        let (mut reader, mut writer) = stream.split();
        let body = self.dialler.target.request();
        // Sends and receives concurrently: a large message fills the buffers of both directions.
        let send = async { writer.write_all(body).await.map_err(|_| Failure::Send) };
        let receive = async {
            let mut left = body.len();
            while left > 0 {
                let size = left.min(self.buffer.len());
                match reader.read(&mut self.buffer[..size]).await {
                    Ok(0) => return Err(Failure::Closed),
                    Ok(count) => left -= count,
                    Err(_) => return Err(Failure::Reset),
                }
            }
            Ok(())
        };
        tokio::try_join!(send, receive)?;
        *body_bytes = body.len() as u64;
        Ok(())
    }
}

/// A connection that is ready for the first bytes.
async fn dial(dialler: &mut Dialler) -> Result<TcpStream, Failure> {
    let mut stream = dialler.dial().await?;
    if dialler.target.protocol == Protocol::WebSocket {
        upgrade(&mut stream, &dialler.target.url).await?;
    }
    Ok(stream)
}

/// Upgrades a connection. The server sends nothing but the response until it receives something, so that the bytes that are
/// read end with the head.
async fn upgrade(stream: &mut TcpStream, url: &str) -> Result<(), Failure> {
    let rest = url.trim_start_matches("http://");
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    // The key of RFC 6455, section 1.3.
    let head = format!(
        "GET /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.map_err(|_| Failure::Send)?;
    let mut response = Vec::new();
    while !response.ends_with(b"\r\n\r\n") {
        match stream.read_buf(&mut response).await {
            Ok(0) => return Err(Failure::Closed),
            Ok(_) if response.len() > MAX_HEAD => return Err(Failure::Malformed),
            Ok(_) => {}
            Err(_) => return Err(Failure::Reset),
        }
    }
    let status =
        response.get(9..12).and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
    match status {
        Some(101) => Ok(()),
        Some(status) => Err(Failure::of_status(status).unwrap_or(Failure::StatusOther)),
        None => Err(Failure::Malformed),
    }
}
