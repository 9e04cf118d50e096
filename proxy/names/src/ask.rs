//! Queries resolvers over UDP, and over TCP if a response does not fit.

use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use crate::question::{DnsAnswer, Question};

/// How many resolvers are queried, one after the other: as many as the C library uses.
pub const MAX_RESOLVERS: usize = 3;
/// How long one resolver may take, over UDP and TCP together. A lost datagram is not sent again: the next resolver is
/// queried, or after the last one the resolution fails and the caller repeats it later.
const RESOLVER_BOUND: Duration = Duration::from_secs(2);
/// The size of the buffer for a response over UDP, in bytes: more than the query allows ([`Question::bytes`]).
const MAX_DATAGRAM: usize = 4_096;

/// Why there is no response.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// The host is not a valid name.
    #[error("{0:?} is not a DNS name")]
    NotAName(String),
    /// There is no resolver to query.
    #[error("/etc/resolv.conf names no resolver")]
    NoResolver,
    /// A resolver responds with an error.
    #[error("the resolver answers {0}")]
    Refused(&'static str),
    /// The resolver cannot be reached.
    #[error("resolver {0}")]
    Io(SocketAddr, #[source] io::Error),
    /// The resolver did not respond in time.
    #[error("resolver {0} did not answer within {RESOLVER_BOUND:?}")]
    Timeout(SocketAddr),
}

/// The resolvers to query.
#[derive(Clone, Debug)]
pub struct Resolvers {
    servers: Vec<SocketAddr>,
}

impl Resolvers {
    /// The resolvers in `/etc/resolv.conf` at this moment.
    #[must_use]
    pub fn of_machine() -> Self {
        Self::new(nameservers(&fs::read_to_string("/etc/resolv.conf").unwrap_or_default()))
    }

    /// Uses these resolvers in this order, at most [`MAX_RESOLVERS`].
    #[must_use]
    pub fn new(mut servers: Vec<SocketAddr>) -> Self {
        servers.truncate(MAX_RESOLVERS);
        Self { servers }
    }

    /// The response of the first resolver that responds without an error; otherwise the error of the last one. Never
    /// [`DnsAnswer::Truncated`].
    pub(crate) async fn ask(&self, host: &str, ipv6: bool) -> Result<DnsAnswer, AskError> {
        let mut last = AskError::NoResolver;
        for server in &self.servers {
            // An attacker must not guess the id. The system's random source seeds `RandomState`.
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

async fn ask_one(server: SocketAddr, question: &Question) -> Result<DnsAnswer, AskError> {
    let bytes = question.bytes()?;
    let failed = |error| AskError::Io(server, error);
    match over_udp(server, question, &bytes).await? {
        DnsAnswer::Truncated => {}
        said => return Ok(said),
    }
    let answer = over_tcp(server, &bytes).await.map_err(failed)?;
    match question.is_answered_by(&answer).map(|message| question.read(&message)) {
        Some(Ok(DnsAnswer::Truncated)) | None => {
            Err(failed(io::Error::other("an answer to another question, or cut")))
        }
        Some(said) => said,
    }
}

async fn over_udp(
    server: SocketAddr,
    question: &Question,
    bytes: &[u8],
) -> Result<DnsAnswer, AskError> {
    let failed = |error| AskError::Io(server, error);
    let any: IpAddr = match server {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // Each query has a socket of its own, because its random port must be guessed, too. The socket is connected, so
    // that only this server can respond.
    let socket = UdpSocket::bind((any, 0)).await.map_err(failed)?;
    socket.connect(server).await.map_err(failed)?;
    socket.send(bytes).await.map_err(failed)?;
    let mut answer = vec![0; MAX_DATAGRAM];
    loop {
        let length = socket.recv(&mut answer).await.map_err(failed)?;
        let datagram = answer.get(..length).unwrap_or_default();
        if let Some(message) = question.is_answered_by(datagram) {
            return question.read(&message);
        }
    }
}

/// Queries one resolver over TCP (RFC 1035 section 4.2.2) and returns the bytes of its response.
/// Has no time limit of its own; the caller sets one.
///
/// # Errors
/// The connection fails, or the query is longer than 65,535 bytes.
pub async fn over_tcp(server: SocketAddr, question: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(server).await?;
    let length = u16::try_from(question.len()).map_err(io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes()[..], question].concat()).await?;
    let length = stream.read_u16().await?;
    let mut answer = vec![0; usize::from(length)];
    stream.read_exact(&mut answer).await?;
    Ok(answer)
}

/// The addresses in the `nameserver` lines of a resolv.conf(5), at most [`MAX_RESOLVERS`].
#[must_use]
pub fn nameservers(text: &str) -> Vec<SocketAddr> {
    let address = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let name = words.next().filter(|word| *word == "nameserver").and(words.next())?;
        // Link-local resolvers have a scope (`%eth0`), which std does not parse. They are skipped.
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
