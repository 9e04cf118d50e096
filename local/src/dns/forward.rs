//! Asking the host's own resolvers.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::cache::Cache;

/// How long one resolver may take. Clients give up after five seconds, by then the next has been
/// asked as well.
const RESOLVER_BOUND: Duration = Duration::from_secs(2);
/// Resolvers that are asked, one after the other: as many as the C library takes.
const MAX_RESOLVERS: usize = 3;
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
}

impl Upstreams {
    /// Those of `/etc/resolv.conf`.
    #[must_use]
    pub fn of_host() -> Self {
        // Without the file nothing but the mesh's own names can be resolved, here as on the host.
        let text = fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
        Self::new(servers(&text))
    }

    /// These, in this order, and no more than three.
    #[must_use]
    pub fn new(mut servers: Vec<SocketAddr>) -> Self {
        servers.truncate(MAX_RESOLVERS);
        Self { servers, questions: Semaphore::new(MAX_QUESTIONS), cache: Cache::default() }
    }

    /// Passes a question on as it is and returns the answer as it is; over TCP when `stream`.
    /// None when nobody answers in time.
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

/// The `nameserver` lines of a resolv.conf(5).
fn servers(text: &str) -> Vec<SocketAddr> {
    let address = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let name = words.next().filter(|word| *word == "nameserver").and(words.next())?;
        // A scope (`%eth0`) belongs to link-local resolvers, which std does not parse.
        name.parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip, 53))
    };
    text.lines().filter_map(address).take(MAX_RESOLVERS).collect()
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
        // The id tells a late answer to somebody else's question.
        if length >= 12 && answer[..2] == question[..2] {
            answer.truncate(length);
            return Ok(answer);
        }
    }
}

async fn over_tcp(server: SocketAddr, question: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(server).await?;
    let length = u16::try_from(question.len()).map_err(io::Error::other)?;
    stream.write_u16(length).await?;
    stream.write_all(question).await?;
    let length = stream.read_u16().await?;
    let mut answer = vec![0; usize::from(length)];
    stream.read_exact(&mut answer).await?;
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolvers_are_read_as_the_c_library_does() {
        let text = "# comment\nsearch lan\nnameserver 192.0.2.1\nnameserver 2001:db8::1\n\
             nameserver fe80::1%eth0\nnameserver\noptions edns0\n";
        assert_eq!(
            servers(text),
            ["192.0.2.1:53".parse().unwrap(), "[2001:db8::1]:53".parse().unwrap()]
        );
    }

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
