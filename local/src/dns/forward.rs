//! Asking the host's own resolvers.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use leno_names::{MAX_RESOLVERS, nameservers, over_tcp};
use tokio::net::UdpSocket;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::cache::Cache;

/// How long one resolver may take. Clients give up after five seconds, by then the next has been
/// asked as well.
const RESOLVER_BOUND: Duration = Duration::from_secs(2);
/// Questions under way. Beyond it they fail at once, which clients repeat later.
const MAX_QUESTIONS: usize = 128;
/// Longest answer over UDP of a client that does not say that it takes more (RFC 1035 section 4.2.1).
const DATAGRAM: usize = 512;
/// Longest answer over UDP, in bytes (the field's limit).
const MAX_DATAGRAM: usize = 65_535;

/// The host's resolvers.
#[derive(Debug)]
pub struct Upstreams {
    servers: Vec<SocketAddr>,
    questions: Semaphore,
    cache: Cache,
    /// What is outside can be reached over IPv6, as far as is known.
    ipv6: bool,
}

impl Upstreams {
    /// Those of `/etc/resolv.conf`.
    #[must_use]
    pub fn of_host() -> Self {
        // Without the file nothing but the mesh's own names can be resolved, here as on the host.
        let text = fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
        Self::new(nameservers(&text))
    }

    /// These, in this order, and no more than three.
    #[must_use]
    pub fn new(mut servers: Vec<SocketAddr>) -> Self {
        servers.truncate(MAX_RESOLVERS);
        let questions = Semaphore::new(MAX_QUESTIONS);
        Self { servers, questions, cache: Cache::default(), ipv6: true }
    }

    /// For a mesh whose way out is of IPv4 alone: names outside have no other addresses, or half of what is
    /// sent to them would go nowhere.
    #[must_use]
    pub fn without_ipv6(self) -> Self {
        Self { ipv6: false, ..self }
    }

    /// Whether names outside have addresses of IPv6.
    #[must_use]
    pub fn has_ipv6(&self) -> bool {
        self.ipv6
    }

    /// Forwards a question unchanged and returns the answer unchanged; over TCP if `stream`.
    /// `None` if no resolver answers in time.
    pub async fn ask(&self, question: &[u8], stream: bool) -> Option<Vec<u8>> {
        // What came over TCP may be too long for a datagram of a client that asked for no more.
        let fits = |known: &Vec<u8>| stream || known.len() <= DATAGRAM;
        if let Some(known) = self.cache.get(question, Instant::now()).filter(fits) {
            return Some(known);
        }
        let _permit = self.questions.try_acquire().ok()?;
        for server in &self.servers {
            let asked = async {
                match stream {
                    true => over_tcp(*server, question).await,
                    false => over_udp(*server, question).await,
                }
            };
            match timeout(RESOLVER_BOUND, asked).await {
                Ok(Ok(answer)) => {
                    self.cache.put(question, &answer, Instant::now());
                    return Some(answer);
                }
                Ok(Err(error)) => tracing::debug!(%server, %error, "resolver failed"),
                Err(_) => tracing::debug!(%server, "resolver did not answer"),
            }
        }
        None
    }
}

async fn over_udp(server: SocketAddr, question: &[u8]) -> io::Result<Vec<u8>> {
    let any: IpAddr = match server {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).await?;
    // Connected: only this server can answer.
    socket.connect(server).await?;
    socket.send(question).await?;
    let mut answer = vec![0; MAX_DATAGRAM];
    loop {
        let length = socket.recv(&mut answer).await?;
        // The ID tells a late answer to another question.
        if length >= 12 && answer[..2] == question[..2] {
            answer.truncate(length);
            return Ok(answer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_answer_to_another_question_is_passed_over() {
        let resolver = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let upstreams = Upstreams::new(vec![resolver.local_addr().unwrap()]);
        let question = [7; 20];
        let answered = async {
            let mut buffer = [0; 64];
            let (length, client) = resolver.recv_from(&mut buffer).await.unwrap();
            assert_eq!(buffer[..length], question);
            resolver.send_to(&[9; 20], client).await.unwrap();
            resolver.send_to(&[7; 30], client).await.unwrap();
        };
        let (answer, ()) = tokio::join!(upstreams.ask(&question, false), answered);
        assert_eq!(answer, Some(vec![7; 30]));
    }

    #[tokio::test]
    async fn with_no_resolver_there_is_no_answer() {
        assert_eq!(Upstreams::new(Vec::new()).ask(&[0; 12], false).await, None);
    }
}
