//! Asking resolvers over UDP, and over TCP where an answer did not fit.

use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use crate::question::{Question, Said};

/// Resolvers that are asked, one after the other: as many as the C library takes.
pub const MAX_RESOLVERS: usize = 3;
/// How long one resolver may take, over UDP and TCP together. A lost datagram is asked for again by
/// the next resolver, or with the next attempt.
const RESOLVER_BOUND: Duration = Duration::from_secs(2);
/// Longest answer over UDP, in bytes: more than is asked for.
const MAX_DATAGRAM: usize = 4_096;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// It cannot be asked for.
    #[error("{0:?} is not a name")]
    NotAName(String),
    /// There is nobody to ask.
    #[error("/etc/resolv.conf names no resolver")]
    NoResolver,
    /// A resolver answers, but not the question.
    #[error("the resolver says {0}")]
    Refused(&'static str),
    /// The resolver is not reached.
    #[error("resolver {0}")]
    Io(SocketAddr, #[source] io::Error),
    /// It did not answer in time.
    #[error("resolver {0} did not answer within {RESOLVER_BOUND:?}")]
    Timeout(SocketAddr),
}

/// Who is asked.
#[derive(Clone, Debug)]
pub struct Resolvers {
    servers: Vec<SocketAddr>,
}

impl Resolvers {
    /// Those of `/etc/resolv.conf`, as it is now.
    #[must_use]
    pub fn of_machine() -> Self {
        Self::new(nameservers(&fs::read_to_string("/etc/resolv.conf").unwrap_or_default()))
    }

    /// These, in this order; no more than [`MAX_RESOLVERS`].
    #[must_use]
    pub fn new(mut servers: Vec<SocketAddr>) -> Self {
        servers.truncate(MAX_RESOLVERS);
        Self { servers }
    }

    /// What the first resolver that answers says; never [`Said::Truncated`].
    pub(crate) async fn ask(&self, host: &str, ipv6: bool) -> Result<Said, AskError> {
        let mut last = AskError::NoResolver;
        for server in &self.servers {
            // The system seeds it: nobody outside can guess it, nor the port of the socket.
            let id = RandomState::new().hash_one(host) as u16;
            let question = Question::new(host, ipv6, id)?;
            match timeout(RESOLVER_BOUND, ask_one(*server, &question)).await {
                Ok(Ok(said)) => return Ok(said),
                Ok(Err(error)) => last = error,
                Err(_) => last = AskError::Timeout(*server),
            }
        }
        Err(last)
    }
}

async fn ask_one(server: SocketAddr, question: &Question) -> Result<Said, AskError> {
    let bytes = question.bytes()?;
    let failed = |error| AskError::Io(server, error);
    match over_udp(server, question, &bytes).await? {
        Said::Truncated => {}
        said => return Ok(said),
    }
    let answer = over_tcp(server, &bytes).await.map_err(failed)?;
    match question.is_answered_by(&answer).map(|message| question.read(&message)) {
        Some(Ok(Said::Truncated)) | None => {
            Err(failed(io::Error::other("an answer to another question, or cut")))
        }
        Some(said) => said,
    }
}

async fn over_udp(server: SocketAddr, question: &Question, bytes: &[u8]) -> Result<Said, AskError> {
    let failed = |error| AskError::Io(server, error);
    let any: IpAddr = match server {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // A socket a question: its port is another secret. Connected: only this server can answer.
    let socket = UdpSocket::bind((any, 0)).await.map_err(failed)?;
    socket.connect(server).await.map_err(failed)?;
    socket.send(bytes).await.map_err(failed)?;
    let mut answer = vec![0; MAX_DATAGRAM];
    loop {
        let length = socket.recv(&mut answer).await.map_err(failed)?;
        if let Some(message) = question.is_answered_by(&answer[..length]) {
            return question.read(&message);
        }
    }
}

/// Asks one resolver over TCP (RFC 1035 section 4.2.2) and returns its answer as it is. Takes as long as
/// the resolver does: the caller bounds it.
///
/// # Errors
/// The connection fails, or the question is longer than 65,535 bytes.
pub async fn over_tcp(server: SocketAddr, question: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(server).await?;
    let length = u16::try_from(question.len()).map_err(io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes()[..], question].concat()).await?;
    let length = stream.read_u16().await?;
    let mut answer = vec![0; usize::from(length)];
    stream.read_exact(&mut answer).await?;
    Ok(answer)
}

/// The `nameserver` lines of a resolv.conf(5), [`MAX_RESOLVERS`] at most.
#[must_use]
pub fn nameservers(text: &str) -> Vec<SocketAddr> {
    let address = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let name = words.next().filter(|word| *word == "nameserver").and(words.next())?;
        // A scope (`%eth0`) belongs to link-local resolvers, which std does not parse.
        name.parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip, 53))
    };
    text.lines().filter_map(address).take(MAX_RESOLVERS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolvers_are_read_as_the_c_library_does() {
        let text = "# comment\nsearch lan\nnameserver 192.0.2.1\nnameserver 2001:db8::1\n\
             nameserver fe80::1%eth0\nnameserver\noptions edns0\nnameserver 192.0.2.2\nnameserver 192.0.2.3\n";
        let expected = ["192.0.2.1:53", "[2001:db8::1]:53", "192.0.2.2:53"];
        assert_eq!(nameservers(text), expected.map(|text| text.parse().unwrap()));
    }
}
