//! Asking a proxy's admin server, from the namespace in which it can be reached.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use leno_types::ports;
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpSocket;

use crate::error::{Attempt, Result};
use crate::netns::Netns;

/// Longest answer that is read, in bytes: the metrics of a proxy at its series budget are smaller.
const MAX_ANSWER: u64 = 8 * 1024 * 1024;
/// How long an admin server may take for an answer.
const ANSWER_BOUND: Duration = Duration::from_secs(5);

/// An answer of an admin server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The HTTP status.
    pub status: u16,
    /// The body.
    pub body: String,
}

/// Which admin server, and from where.
#[derive(Clone, Copy, Debug)]
pub struct Admin<'a> {
    netns: &'a Netns,
    address: SocketAddr,
}

impl<'a> Admin<'a> {
    /// The proxy of the namespace itself, over loopback.
    #[must_use]
    pub fn within(netns: &'a Netns) -> Self {
        Self::at(netns, Ipv4Addr::LOCALHOST.into())
    }

    /// The proxy of the instance at `address`, reached from `netns`.
    #[must_use]
    pub fn at(netns: &'a Netns, address: IpAddr) -> Self {
        Self { netns, address: SocketAddr::new(address, ports::ADMIN) }
    }

    /// Whether the proxy serves.
    pub async fn ready(&self) -> bool {
        matches!(self.get("/ready").await, Ok(Reply { status: 200, .. }))
    }

    /// Asks the proxy to finish what it has and take nothing new.
    ///
    /// # Errors
    /// When it cannot be reached.
    pub async fn drain(&self) -> Result<Reply> {
        self.ask("POST", "/drain").await
    }

    /// Fetches a page.
    ///
    /// # Errors
    /// When the server cannot be reached or does not answer in time.
    pub async fn get(&self, path: &str) -> Result<Reply> {
        self.ask("GET", path).await
    }

    async fn ask(&self, method: &str, path: &str) -> Result<Reply> {
        let Self { netns, address } = self;
        let what = || format!("cannot ask http://{address}{path} from {}", netns.name());
        let socket = netns.within(|| {
            let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
            let family = match address {
                SocketAddr::V4(_) => AddressFamily::Inet,
                SocketAddr::V6(_) => AddressFamily::Inet6,
            };
            socket(family, SockType::Stream, flags, SockProtocol::Tcp).attempt(what)
        })?;
        let socket = TcpSocket::from_std_stream(socket.into());
        let exchanged =
            tokio::time::timeout(ANSWER_BOUND, exchange(socket, *address, method, path));
        let bytes = match exchanged.await {
            Ok(answer) => answer,
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        };
        bytes.and_then(|bytes| parse(&bytes)).attempt(what)
    }
}

/// One HTTP/1.0 exchange: the answer ends with the connection and is never chunked.
async fn exchange(
    socket: TcpSocket,
    address: SocketAddr,
    method: &str,
    path: &str,
) -> io::Result<Vec<u8>> {
    let mut stream = socket.connect(address).await?;
    let request = format!("{method} {path} HTTP/1.0\r\nHost: leno\r\nContent-Length: 0\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(MAX_ANSWER).read_to_end(&mut answer).await?;
    Ok(answer)
}

fn parse(answer: &[u8]) -> io::Result<Reply> {
    let text = String::from_utf8_lossy(answer);
    let invalid = || io::Error::new(io::ErrorKind::InvalidData, "the answer is not HTTP");
    let (head, body) = text.split_once("\r\n\r\n").ok_or_else(invalid)?;
    let status = head.split(' ').nth(1).and_then(|code| code.get(..3)?.parse().ok());
    Ok(Reply { status: status.ok_or_else(invalid)?, body: body.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_status_and_body() {
        let reply =
            parse(b"HTTP/1.0 503 Service Unavailable\r\nA: b\r\n\r\nno identity\n").unwrap();
        assert_eq!((reply.status, reply.body.as_str()), (503, "no identity\n"));
        assert!(parse(b"").is_err());
        assert!(parse(b"HTTP/1.0\r\n\r\n").is_err());
    }
}
