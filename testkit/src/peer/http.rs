//! Reads HTTP/1 requests for the plain backend.

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Longest head, in bytes. It exceeds the 64 KiB that the mesh accepts, so that a longer head would be noticed if
/// the mesh forwarded it.
const MAX_HEAD: usize = 256 * 1024;
/// Most header fields of a request.
const MAX_FIELDS: usize = 512;
/// Longest body, in bytes; tests send 10 MiB.
const MAX_BODY: usize = 64 * 1024 * 1024;

/// A request with its whole body.
#[derive(Debug, Default)]
pub(super) struct Request {
    pub(super) method: String,
    pub(super) target: String,
    pub(super) minor: u8,
    pub(super) headers: Vec<(String, String)>,
    pub(super) trailers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
    /// The bytes of the head.
    pub(super) raw: Vec<u8>,
}

impl Request {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    /// The value of the parameter `name` in the query.
    pub(super) fn query(&self, name: &str) -> Option<&str> {
        let (_, query) = self.target.split_once('?')?;
        query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
    }

    pub(super) fn number(&self, name: &str) -> Option<u64> {
        self.query(name)?.parse().ok()
    }

    pub(super) fn path(&self) -> &str {
        self.target.split('?').next().unwrap_or_default()
    }

    pub(super) fn wants_close(&self) -> bool {
        let connection = self.header("connection").unwrap_or_default().to_ascii_lowercase();
        if self.minor == 0 {
            !connection.contains("keep-alive")
        } else {
            connection.contains("close")
        }
    }
}

/// The server's side of a connection.
pub(super) struct Wire {
    pub(super) stream: TcpStream,
    pub(super) buffer: Vec<u8>,
}

impl Wire {
    /// The next request; `None` if the client closed the connection between two requests.
    pub(super) async fn request(&mut self) -> Result<Option<Request>> {
        let mut request = loop {
            if let Some((request, len)) = parse(&self.buffer)? {
                self.buffer.drain(..len);
                break request;
            }
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                if self.buffer.is_empty() {
                    return Ok(None);
                }
                bail!("the connection ended inside a request head");
            }
        };
        let length = request.header("content-length").map(str::parse::<usize>).transpose()?;
        let chunked = request.header("transfer-encoding").is_some();
        if request.header("expect").is_some() && request.query("refuse").is_none() {
            self.stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
        }
        if request.query("refuse").is_none() {
            match (length, chunked) {
                (_, true) => self.chunks(&mut request).await?,
                (Some(length), false) => request.body = self.take(length).await?,
                (None, false) => {}
            }
        }
        Ok(Some(request))
    }

    async fn fill(&mut self) -> Result<()> {
        if self.stream.read_buf(&mut self.buffer).await? == 0 {
            bail!("the connection ended inside a request body");
        }
        Ok(())
    }

    async fn take(&mut self, count: usize) -> Result<Vec<u8>> {
        if count > MAX_BODY {
            bail!("a body of {count} bytes is above the bound of {MAX_BODY}");
        }
        while self.buffer.len() < count {
            self.fill().await?;
        }
        Ok(self.buffer.drain(..count).collect())
    }

    async fn line(&mut self) -> Result<String> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|w| w == b"\r\n") {
                let line: Vec<u8> = self.buffer.drain(..end + 2).take(end).collect();
                return Ok(String::from_utf8_lossy(&line).into_owned());
            }
            if self.buffer.len() > MAX_HEAD {
                bail!("a line of a body is too long");
            }
            self.fill().await?;
        }
    }

    async fn chunks(&mut self, request: &mut Request) -> Result<()> {
        loop {
            let line = self.line().await?;
            let digits = line.split(';').next().unwrap_or_default().trim();
            let size = usize::from_str_radix(digits, 16).context("malformed chunk size")?;
            if size == 0 {
                break;
            }
            request.body.extend(self.take(size).await?);
            if request.body.len() > MAX_BODY || !self.line().await?.is_empty() {
                bail!("malformed chunk or too long a body");
            }
        }
        loop {
            let line = self.line().await?;
            if line.is_empty() {
                return Ok(());
            }
            let (name, value) = line.split_once(':').context("malformed trailer")?;
            request.trailers.push((name.to_ascii_lowercase(), value.trim().to_string()));
        }
    }
}

fn parse(input: &[u8]) -> Result<Option<(Request, usize)>> {
    let mut fields = vec![httparse::EMPTY_HEADER; MAX_FIELDS];
    let mut parsed = httparse::Request::new(&mut fields);
    match parsed.parse(input)? {
        httparse::Status::Partial if input.len() < MAX_HEAD => Ok(None),
        httparse::Status::Partial => bail!("a request head above {MAX_HEAD} bytes"),
        httparse::Status::Complete(len) => {
            let request = Request {
                method: parsed.method.unwrap_or_default().to_string(),
                target: parsed.path.unwrap_or_default().to_string(),
                minor: parsed.version.unwrap_or_default(),
                raw: input[..len].to_vec(),
                headers: parsed
                    .headers
                    .iter()
                    .map(|h| {
                        let value = String::from_utf8_lossy(h.value).trim().to_string();
                        (h.name.to_ascii_lowercase(), value)
                    })
                    .collect(),
                ..Request::default()
            };
            Ok(Some((request, len)))
        }
    }
}
