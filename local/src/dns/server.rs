//! The DNS server: UDP and TCP on the gateway's addresses.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use hickory_proto::op::{Edns, Message, MessageType, Metadata, OpCode, Query, ResponseCode};
use hickory_proto::rr::{Name, Record, RecordType};
use leno_names::PROXY_OPTION;
use leno_program::{Share, Shares, accept};
use leno_types::canonical;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::watch;
use tokio::time::timeout;

use super::failed::{FailedLookups, NO_ANSWER, NO_SUCH_NAME};
use super::forward::Upstreams;
use super::zone::{Zone, ZoneAnswer};

/// Largest UDP payload that the server announces, in bytes: what fits on any path (DNS flag day 2020).
const MAX_UDP_PAYLOAD: u16 = 1232;
/// Longest question over UDP, in bytes; real ones stay below 512.
const MAX_QUESTION: usize = 4096;
/// Open TCP connections, in total and for one client. A connection costs little more than a task. When all slots
/// are taken, the client with the most connections loses its oldest one to another client.
const MAX_CONNECTIONS: usize = 256;
const MAX_CONNECTIONS_OF_CLIENT: usize = 64;
/// Open TCP connections of programs of this machine, which are node proxies and the controller. These have their
/// own bound because they share one client address.
const MAX_OWN_CONNECTIONS: usize = 256;
/// How long a TCP client may be silent, or not read its answer.
const IDLE: Duration = Duration::from_secs(10);

/// The server's sockets. They are created inside the network namespace of the bridge.
#[derive(Debug)]
pub struct Sockets {
    udp: Vec<UdpSocket>,
    tcp: Vec<TcpListener>,
}

/// What every query is answered from.
#[derive(Debug)]
struct ServerState {
    zone: watch::Receiver<Arc<Zone>>,
    upstreams: Upstreams,
    connections: Shares<IpAddr>,
    own_connections: Shares<IpAddr>,
    failed: Arc<FailedLookups>,
}

impl Sockets {
    /// Binds `port` on every address, in the namespace of the calling thread.
    ///
    /// # Errors
    /// The system's reason.
    pub fn bind(addresses: impl IntoIterator<Item = IpAddr>, port: u16) -> io::Result<Self> {
        let mut sockets = Self { udp: Vec::new(), tcp: Vec::new() };
        for address in addresses {
            let udp = UdpSocket::bind((address, port))?;
            udp.set_nonblocking(true)?;
            let tcp = TcpListener::bind(udp.local_addr()?)?;
            tcp.set_nonblocking(true)?;
            sockets.udp.push(udp);
            sockets.tcp.push(tcp);
        }
        Ok(sockets)
    }

    /// The addresses of this machine from which its own programs send queries.
    fn addresses(&self) -> io::Result<Vec<IpAddr>> {
        self.udp.iter().map(|socket| Ok(socket.local_addr()?.ip())).collect()
    }
}

/// Serves on a separate thread, so that other work of this process does not delay answers. The thread ends when
/// the sender of `zone` is dropped.
///
/// # Errors
/// When the sockets cannot be used.
pub fn serve(
    sockets: Sockets,
    zone: watch::Receiver<Arc<Zone>>,
    upstreams: Upstreams,
    failed: Arc<FailedLookups>,
) -> io::Result<std::thread::JoinHandle<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut ended = zone.clone();
    let connections = Shares::new(MAX_CONNECTIONS, MAX_CONNECTIONS_OF_CLIENT);
    let own_connections = Shares::new(MAX_OWN_CONNECTIONS, MAX_OWN_CONNECTIONS);
    let upstreams = upstreams.with_unbounded(sockets.addresses()?);
    let shared = Arc::new(ServerState { zone, upstreams, connections, own_connections, failed });
    {
        let _context = runtime.enter();
        for socket in sockets.udp {
            let socket = Arc::new(tokio::net::UdpSocket::from_std(socket)?);
            runtime.spawn(serve_udp(socket, shared.clone()));
        }
        for listener in sockets.tcp {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            runtime.spawn(serve_tcp(listener, shared.clone()));
        }
    }
    std::thread::Builder::new().name("dns".into()).spawn(move || {
        // The tasks that answer queries belong to this runtime and end with it.
        runtime.block_on(async { while ended.changed().await.is_ok() {} });
    })
}

async fn serve_udp(socket: Arc<tokio::net::UdpSocket>, shared: Arc<ServerState>) {
    let mut buffer = vec![0; MAX_QUESTION];
    loop {
        // A receive error is an ICMP message about an earlier answer, which the server need not handle.
        let Ok((length, client)) = socket.recv_from(&mut buffer).await else {
            continue;
        };
        let question = buffer.get(..length).unwrap_or_default();
        match answer(&shared, question, client, false) {
            Reply::Now(answer) => {
                // Sending fails if the client is gone.
                let _ = socket.try_send_to(&answer, client);
            }
            Reply::Never => {}
            Reply::Alias(aliased) => {
                let (socket, shared) = (socket.clone(), shared.clone());
                tokio::spawn(async move {
                    let answer = aliased.answer(&shared.upstreams, client).await;
                    let _ = socket.send_to(&answer, client).await;
                });
            }
            Reply::Elsewhere(failure) => {
                let (socket, shared) = (socket.clone(), shared.clone());
                let question = question.to_vec();
                tokio::spawn(async move {
                    let answer = elsewhere(&shared, &question, (client, false), failure).await;
                    let _ = socket.send_to(&answer, client).await;
                });
            }
        }
    }
}

async fn serve_tcp(listener: tokio::net::TcpListener, shared: Arc<ServerState>) {
    loop {
        let (stream, client, share) = accept_one(&listener, &shared).await;
        let shared = shared.clone();
        tokio::spawn(async move {
            if let Some(Err(error)) = share.hold(converse(stream, client, &shared)).await {
                tracing::debug!(%client, %error, "DNS connection ended");
            }
        });
    }
}

/// Accepts the next connection that gets a slot. Connections without a slot are closed.
async fn accept_one(
    listener: &tokio::net::TcpListener,
    shared: &ServerState,
) -> (tokio::net::TcpStream, SocketAddr, Share<IpAddr>) {
    loop {
        let (stream, client) = accept("connection", || listener.accept()).await;
        let address = client.ip().to_canonical();
        let is_own = stream.local_addr().is_ok_and(|own| own.ip().to_canonical() == address);
        let places = if is_own { &shared.own_connections } else { &shared.connections };
        match places.take(address) {
            Some(share) => return (stream, client, share),
            None => tracing::debug!(%client, "connection closed: its address has many"),
        }
    }
}

async fn converse(
    mut stream: tokio::net::TcpStream,
    client: SocketAddr,
    shared: &ServerState,
) -> io::Result<()> {
    while let Ok(Ok(length)) = timeout(IDLE, stream.read_u16()).await {
        let mut question = vec![0; usize::from(length)];
        timeout(IDLE, stream.read_exact(&mut question)).await??;
        let answer = match answer(shared, &question, client, true) {
            Reply::Now(answer) => answer,
            Reply::Never => return Ok(()),
            Reply::Alias(aliased) => aliased.answer(&shared.upstreams, client).await,
            Reply::Elsewhere(failure) => {
                elsewhere(shared, &question, (client, true), failure).await
            }
        };
        let length = u16::try_from(answer.len()).map_err(io::Error::other)?;
        let write = async {
            stream.write_u16(length).await?;
            stream.write_all(&answer).await
        };
        timeout(IDLE, write).await??;
    }
    Ok(())
}

/// The answer of the host's resolvers, or `failure` if they do not answer.
async fn elsewhere(
    shared: &ServerState,
    question: &[u8],
    (client, stream): (SocketAddr, bool),
    failure: Vec<u8>,
) -> Vec<u8> {
    let client = canonical(client).ip();
    if let Some(answer) = shared.upstreams.ask(question, stream, client).await {
        return answer;
    }
    if let Ok(request) = Message::from_vec(question)
        && let [query] = request.queries.as_slice()
        && query.query_type() == RecordType::A
    {
        let name = query.name().to_ascii().to_ascii_lowercase();
        let name = name.trim_end_matches('.');
        // Client libraries try a single label last, after the search list. The failed lookup of the service was
        // counted by then.
        if name.contains('.') {
            shared.failed.count(client, name, NO_ANSWER);
        }
    }
    failure
}

/// How to respond to a query.
enum Reply {
    /// Send this answer.
    Now(Vec<u8>),
    /// Send nothing, because the message is not a query.
    Never,
    /// Forward the query to the host's resolvers, and send this answer if they fail.
    Elsewhere(Vec<u8>),
    /// Forward a query for the alias's target, and add the alias record to the answer.
    Alias(Box<Aliased>),
}

/// A query for a name of the mesh that is an alias of a name outside.
struct Aliased {
    request: Message,
    alias: Record,
    target: Name,
    kind: RecordType,
    limit: u16,
    failure: Vec<u8>,
}

impl Aliased {
    /// Queries the host's resolvers for the target, and puts the alias in front of their answer.
    async fn answer(self, upstreams: &Upstreams, client: SocketAddr) -> Vec<u8> {
        let mut question = Message::query();
        question.metadata.id = self.request.metadata.id;
        question.metadata.recursion_desired = true;
        question.add_query(Query::query(self.target, self.kind));
        let Ok(question) = question.to_vec() else { return self.failure };
        // Over TCP, so that the answer is not truncated.
        let asked = upstreams.ask(&question, true, canonical(client).ip());
        let Some(said) = asked.await else { return self.failure };
        let Ok(said) = Message::from_vec(&said) else { return self.failure };
        let all = [self.alias].into_iter().chain(said.answers.iter().cloned()).collect();
        let mut answer = response(&self.request, said.metadata.response_code, all);
        answer.metadata.authoritative = false;
        answer.add_authorities(said.authorities.iter().cloned());
        encode(&answer, self.limit).unwrap_or(self.failure)
    }
}

fn answer(shared: &ServerState, question: &[u8], client: SocketAddr, stream: bool) -> Reply {
    let Ok(request) = Message::from_vec(question) else {
        return Reply::Never;
    };
    if request.metadata.message_type != MessageType::Query {
        return Reply::Never;
    }
    let limit = match stream {
        true => u16::MAX,
        false => request.max_payload().min(MAX_UDP_PAYLOAD),
    };
    let reply = |code, answers| encode(&response(&request, code, answers), limit);
    let [query] = request.queries.as_slice() else {
        return now(reply(ResponseCode::FormErr, Vec::new()));
    };
    if request.metadata.op_code != OpCode::Query {
        return now(reply(ResponseCode::NotImp, Vec::new()));
    }
    let zone = shared.zone.borrow().clone();
    let client = canonical(client).ip();
    let edns = request.edns.as_ref();
    let is_proxy = edns.is_some_and(|edns| edns.option(PROXY_OPTION.into()).is_some());
    let unreachable = query.query_type() == RecordType::AAAA && !shared.upstreams.has_ipv6();
    match zone.answer(query.name(), query.query_type(), (client, is_proxy)) {
        ZoneAnswer::Alias(target) => {
            let alias = Zone::alias(query.name().clone(), target.clone());
            match (query.query_type(), reply(ResponseCode::ServFail, Vec::new())) {
                _ if unreachable => now(reply(ResponseCode::NoError, vec![alias])),
                (RecordType::CNAME, _) => now(reply(ResponseCode::NoError, vec![alias])),
                (kind, Some(failure)) => {
                    Reply::Alias(Box::new(Aliased { request, alias, target, kind, limit, failure }))
                }
                (_, None) => Reply::Never,
            }
        }
        ZoneAnswer::Records(records) => now(reply(ResponseCode::NoError, records)),
        ZoneAnswer::NoName => {
            // A client queries IPv4 and IPv6 addresses, so only the query for IPv4 is counted.
            if query.query_type() == RecordType::A
                && !is_proxy
                && let Some(name) = zone.absent_service(query.name())
            {
                shared.failed.count(client, &name, NO_SUCH_NAME);
            }
            now(reply(ResponseCode::NXDomain, Vec::new()))
        }
        ZoneAnswer::Elsewhere if unreachable => now(reply(ResponseCode::NoError, Vec::new())),
        ZoneAnswer::Elsewhere => match reply(ResponseCode::ServFail, Vec::new()) {
            Some(failure) => Reply::Elsewhere(failure),
            None => Reply::Never,
        },
    }
}

fn now(answer: Option<Vec<u8>>) -> Reply {
    answer.map_or(Reply::Never, Reply::Now)
}

fn response(request: &Message, code: ResponseCode, answers: Vec<Record>) -> Message {
    let mut response = Message::response(request.metadata.id, request.metadata.op_code);
    response.metadata = Metadata::response_from_request(&request.metadata);
    response.metadata.recursion_available = true;
    response.metadata.authoritative =
        matches!(code, ResponseCode::NoError | ResponseCode::NXDomain);
    response.metadata.response_code = code;
    response.add_queries(request.queries.iter().cloned());
    if answers.is_empty()
        && response.metadata.authoritative
        && let Some(authority) = Zone::start_of_authority()
    {
        response.add_authority(authority);
    }
    response.insert_answers(answers);
    if request.edns.is_some() {
        let mut edns = Edns::new();
        edns.set_max_payload(MAX_UDP_PAYLOAD);
        response.set_edns(edns);
    }
    response
}

/// Encodes a message. If it exceeds `limit`, it is cut and marked as truncated, and the client repeats the query
/// over TCP.
fn encode(response: &Message, limit: u16) -> Option<Vec<u8>> {
    let bytes = response.to_vec().ok()?;
    if bytes.len() <= usize::from(limit) {
        return Some(bytes);
    }
    response.truncate().to_vec().ok()
}

#[cfg(test)]
mod tests {
    use super::super::zone::{EndpointNames, ServiceNames};
    use super::*;
    use crate::ranges::MeshRanges;

    /// How many endpoints the test's service has: so many that their records do not fit a datagram.
    const ENDPOINTS: u16 = 200;

    fn zone() -> Zone {
        let endpoint = |number| EndpointNames {
            host: format!("web-{number}"),
            addresses: MeshRanges::default().workloads(true).addresses(number + 2).iter().collect(),
            ports: Vec::new(),
        };
        let names = ServiceNames {
            endpoints: (0..ENDPOINTS).map(endpoint).collect(),
            ..ServiceNames::default()
        };
        Zone::new([(("shop".to_owned(), "web".to_owned()), names)], [])
    }

    fn question(name: &str, kind: RecordType) -> Vec<u8> {
        let mut message = Message::query();
        message.metadata.id = 77;
        message.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
        message.to_vec().unwrap()
    }

    /// Binds a port that is free for UDP and TCP. A port that the kernel picks as free for UDP may be in use for
    /// TCP, so several are tried.
    fn sockets() -> Sockets {
        loop {
            match Sockets::bind(["127.0.0.1".parse().unwrap()], 0) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                bound => return bound.unwrap(),
            }
        }
    }

    #[tokio::test]
    async fn an_answer_too_long_for_udp_comes_whole_over_tcp() {
        let sockets = sockets();
        let udp = sockets.udp[0].local_addr().unwrap();
        let tcp = sockets.tcp[0].local_addr().unwrap();
        let (zone, received) = watch::channel(Arc::new(zone()));
        let server = serve(sockets, received, Upstreams::of_host(), Arc::default()).unwrap();

        let asked = question("web.shop.svc.cluster.local.", RecordType::A);
        let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
        socket.send_to(&asked, udp).await.unwrap();
        let mut buffer = vec![0; 4096];
        let length = socket.recv(&mut buffer).await.unwrap();
        let short = Message::from_vec(&buffer[..length]).unwrap();
        assert!(short.metadata.truncation);
        assert_eq!((short.metadata.id, short.answers.len()), (77, 0));

        let mut stream = tokio::net::TcpStream::connect(tcp).await.unwrap();
        stream.write_u16(u16::try_from(asked.len()).unwrap()).await.unwrap();
        stream.write_all(&asked).await.unwrap();
        let length = stream.read_u16().await.unwrap();
        let mut buffer = vec![0; usize::from(length)];
        stream.read_exact(&mut buffer).await.unwrap();
        let whole = Message::from_vec(&buffer).unwrap();
        assert_eq!(whole.answers.len(), usize::from(ENDPOINTS));
        assert!(whole.metadata.authoritative);

        drop(zone);
        tokio::task::spawn_blocking(|| server.join()).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn what_is_no_question_gets_no_answer_and_the_next_one_does() {
        let sockets = sockets();
        let udp = sockets.udp[0].local_addr().unwrap();
        let (_zone, received) = watch::channel(Arc::new(zone()));
        serve(sockets, received, Upstreams::of_host(), Arc::default()).unwrap();
        let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
        socket.send_to(b"nonsense", udp).await.unwrap();
        socket
            .send_to(&question("other.shop.svc.cluster.local.", RecordType::A), udp)
            .await
            .unwrap();
        let mut buffer = vec![0; 4096];
        let length = socket.recv(&mut buffer).await.unwrap();
        let answer = Message::from_vec(&buffer[..length]).unwrap();
        assert_eq!(answer.metadata.response_code, ResponseCode::NXDomain);
        assert_eq!(answer.authorities.len(), 1);
    }
}
