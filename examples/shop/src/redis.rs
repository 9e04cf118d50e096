//! The few Redis commands that a cart needs, in RESP over plain TCP.

use std::cell::RefCell;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufStream};
use tokio::net::TcpStream;

/// Idle connections kept.
const MAX_IDLE: usize = 32;
/// Longest string and array accepted from the server; a cart is far smaller.
const MAX_LENGTH: usize = 64 * 1024;
/// How long one command may take.
const LIMIT: Duration = Duration::from_secs(5);

/// A Redis server and the connections to it.
#[derive(Debug)]
pub(crate) struct Redis {
    address: String,
    idle: RefCell<Vec<BufStream<TcpStream>>>,
}

impl Redis {
    pub(crate) fn new(address: String) -> Self {
        Redis { address, idle: RefCell::default() }
    }

    /// Appends `value` to the list `key` and keeps its last `keep` entries.
    pub(crate) async fn push(&self, key: &str, value: &str, keep: usize) -> Result<()> {
        self.command(&["RPUSH", key, value]).await?;
        self.command(&["LTRIM", key, &format!("-{keep}"), "-1"]).await?;
        Ok(())
    }

    /// All entries of the list `key`.
    pub(crate) async fn list(&self, key: &str) -> Result<Vec<String>> {
        self.command(&["LRANGE", key, "0", "-1"]).await
    }

    /// Removes the list `key`.
    pub(crate) async fn delete(&self, key: &str) -> Result<()> {
        self.command(&["DEL", key]).await?;
        Ok(())
    }

    async fn command(&self, words: &[&str]) -> Result<Vec<String>> {
        let what = || format!("redis {} at {}", words[0], self.address);
        let reply = match tokio::time::timeout(LIMIT, self.exchange(words)).await {
            Ok(reply) => reply.with_context(what),
            Err(_) => bail!("{}: no answer in {LIMIT:?}", what()),
        };
        if reply.is_err() {
            // The server may have restarted; then the idle connections are broken too.
            self.idle.borrow_mut().clear();
        }
        reply
    }

    async fn exchange(&self, words: &[&str]) -> Result<Vec<String>> {
        let idle = self.idle.borrow_mut().pop();
        let mut stream = match idle {
            Some(stream) => stream,
            None => {
                let stream = TcpStream::connect(&self.address).await?;
                stream.set_nodelay(true)?;
                BufStream::new(stream)
            }
        };
        stream.write_all(&encode(words)).await?;
        stream.flush().await?;
        let reply = read_reply(&mut stream).await?;
        let mut idle = self.idle.borrow_mut();
        if idle.len() < MAX_IDLE {
            idle.push(stream);
        }
        Ok(reply)
    }
}

fn encode(words: &[&str]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", words.len());
    for word in words {
        out += &format!("${}\r\n{word}\r\n", word.len());
    }
    out.into_bytes()
}

/// Reads one reply, a status, a number, a string or a list of strings, and returns it as a list.
async fn read_reply(stream: &mut BufStream<TcpStream>) -> Result<Vec<String>> {
    let head = read_line(stream).await?;
    let (kind, rest) = head.split_at_checked(1).context("an empty reply")?;
    match kind {
        "+" | ":" => Ok(vec![rest.to_string()]),
        "-" => bail!("{rest}"),
        "$" => Ok(read_string(stream, rest).await?.into_iter().collect()),
        "*" => {
            let count: usize = rest.parse().context("a list of unknown length")?;
            if count > MAX_LENGTH {
                bail!("a list of {count} entries");
            }
            let mut list = Vec::with_capacity(count);
            for _ in 0..count {
                let head = read_line(stream).await?;
                let length =
                    head.strip_prefix('$').context("an entry of a list is not a string")?;
                list.extend(read_string(stream, length).await?);
            }
            Ok(list)
        }
        other => bail!("a reply of unknown kind {other:?}"),
    }
}

async fn read_line(stream: &mut BufStream<TcpStream>) -> Result<String> {
    let mut line = String::new();
    (&mut *stream).take(MAX_LENGTH as u64).read_line(&mut line).await?;
    match line.strip_suffix("\r\n") {
        Some(whole) => Ok(whole.to_string()),
        None => bail!("the connection ended"),
    }
}

async fn read_string(stream: &mut BufStream<TcpStream>, length: &str) -> Result<Option<String>> {
    if length == "-1" {
        return Ok(None);
    }
    let length: usize = length.parse().context("a string of unknown length")?;
    if length > MAX_LENGTH {
        bail!("a string of {length} bytes");
    }
    let mut bytes = vec![0; length + 2];
    stream.read_exact(&mut bytes).await?;
    bytes.truncate(length);
    Ok(Some(String::from_utf8(bytes)?))
}
