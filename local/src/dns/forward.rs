//! Forwards queries to the host's resolvers.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use leno_names::{MAX_RESOLVERS, nameservers, over_tcp};
use leno_program::Shares;
use tokio::net::UdpSocket;
use tokio::time::timeout;

use super::cache::AnswerCache;

/// How long to wait for one resolver. Client libraries give up after five seconds, so there is time to try the
/// next resolver as well.
const RESOLVER_BOUND: Duration = Duration::from_secs(2);
/// Queries in progress, in total and for one client. Further queries fail at once, and clients repeat them.
const MAX_QUESTIONS: usize = 128;
const MAX_QUESTIONS_OF_CLIENT: usize = 64;
/// Longest UDP answer for a client that does not announce a larger limit (RFC 1035 section 4.2.1).
const DATAGRAM: usize = 512;
/// Longest answer over UDP, in bytes (the field's limit).
const MAX_DATAGRAM: usize = 65_535;

/// The host's resolvers.
#[derive(Debug)]
pub struct Upstreams {
    servers: Vec<SocketAddr>,
    /// Bounds the queries in progress. A query holds its slot until it is answered, which takes long if a resolver
    /// is down.
    questions: Shares<IpAddr>,
    cache: AnswerCache,
    /// Whether the mesh can reach outside addresses over IPv6.
    ipv6: bool,
}

impl Upstreams {
    /// The resolvers in `/etc/resolv.conf`.
    #[must_use]
    pub fn of_host() -> Self {
        // Without the file only names of the mesh can be resolved, as on the host itself.
        let text = fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
        Self::new(nameservers(&text))
    }

    /// Forwards to these resolvers, in this order; at most three are used.
    #[must_use]
    pub fn new(mut servers: Vec<SocketAddr>) -> Self {
        servers.truncate(MAX_RESOLVERS);
        let questions = Shares::keeping(MAX_QUESTIONS, MAX_QUESTIONS_OF_CLIENT);
        Self { servers, questions, cache: AnswerCache::default(), ipv6: true }
    }

    /// Answers queries for IPv6 addresses outside of the mesh with none, because the uplink has only IPv4 and
    /// connections to them would fail.
    #[must_use]
    pub fn without_ipv6(self) -> Self {
        Self { ipv6: false, ..self }
    }

    /// Exempts these clients from the bound per client, because programs of this machine use their addresses.
    pub(super) fn with_unbounded(self, clients: Vec<IpAddr>) -> Self {
        Self { questions: self.questions.with_unbounded(clients), ..self }
    }

    /// Whether queries for IPv6 addresses outside of the mesh are forwarded.
    #[must_use]
    pub fn has_ipv6(&self) -> bool {
        self.ipv6
    }

    /// Forwards a client's query unchanged, over TCP if `stream` is set, and returns the answer unchanged. `None`
    /// if no resolver answers in time, or if too many queries are in progress.
    pub async fn ask(&self, question: &[u8], stream: bool, client: IpAddr) -> Option<Vec<u8>> {
        // A cached answer from TCP may be too long for a datagram.
        let fits = |known: &Vec<u8>| stream || known.len() <= DATAGRAM;
        if let Some(known) = self.cache.get(question, Instant::now()).filter(fits) {
            return Some(known);
        }
        let place = self.questions.take(client)?;
        let answer = place.hold(self.ask_each(question, stream)).await.flatten()?;
        self.cache.put(question, &answer, Instant::now());
        Some(answer)
    }

    /// Tries one resolver after another.
    async fn ask_each(&self, question: &[u8], stream: bool) -> Option<Vec<u8>> {
        for server in &self.servers {
            let asked = async {
                match stream {
                    true => over_tcp(*server, question).await,
                    false => over_udp(*server, question).await,
                }
            };
            match timeout(RESOLVER_BOUND, asked).await {
                Ok(Ok(answer)) => return Some(answer),
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
    // Connected, so that only this server can answer.
    socket.connect(server).await?;
    socket.send(question).await?;
    let mut answer = vec![0; MAX_DATAGRAM];
    loop {
        let length = socket.recv(&mut answer).await?;
        // An answer to an earlier query has another ID and is skipped.
        if length >= 12 && answer.get(..2) == question.get(..2) {
            answer.truncate(length);
            return Ok(answer);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 89, 0, 2));

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
        let (answer, ()) = tokio::join!(upstreams.ask(&question, false, CLIENT), answered);
        assert_eq!(answer, Some(vec![7; 30]));
    }

    #[tokio::test]
    async fn with_no_resolver_there_is_no_answer() {
        assert_eq!(Upstreams::new(Vec::new()).ask(&[0; 12], false, CLIENT).await, None);
    }

    #[tokio::test]
    async fn questions_without_an_answer_leave_room_for_those_of_other_clients() {
        let resolver = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let upstreams = Arc::new(Upstreams::new(vec![resolver.local_addr().unwrap()]));
        let mut tasks = tokio::task::JoinSet::new();
        let mut ask = |last: u8| {
            let (upstreams, client) = (Arc::clone(&upstreams), IpAddr::from([10, 89, 0, last]));
            tasks.spawn(async move { upstreams.ask(&[last; 20], false, client).await });
        };
        let mut buffer = [0; 64];
        for nth in 0..MAX_QUESTIONS {
            ask(if nth < MAX_QUESTIONS_OF_CLIENT { 1 } else { 2 });
            resolver.recv(&mut buffer).await.unwrap();
        }
        ask(3);
        let (_, of_third) = resolver.recv_from(&mut buffer).await.unwrap();
        resolver.send_to(&[3; 20], of_third).await.unwrap();
        while let Some(answer) = tasks.join_next().await {
            if answer.unwrap().is_some_and(|answer| answer == [3; 20]) {
                return;
            }
        }
        panic!("the third client has no answer");
    }
}
