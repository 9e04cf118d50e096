//! One TCP connection to a server that echoes what it receives.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::dialler::{Dialler, Failure, Outcome};

/// Bytes of one read.
const READ_SIZE: usize = 64 * 1024;

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
            self.stream = self.dialler.dial().await.ok();
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
            none => none.insert(self.dialler.dial().await?),
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
