//! Causes every error that the metrics page lists, or states why it cannot be caused here. The response, the
//! access log and the metric must name the same cause.

mod rows;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use leno_testkit::peer::{Faulty, FaultyAct};
use leno_testkit::wait;
use socket2::{Domain, Socket, Type};

use crate::front::{FrontOptions, FrontProxy};
use crate::http2;
use crate::proxied_servers::{Script, server};
use rows::{ABSENT, BYTES, REQUESTS};

const LIMIT: Duration = Duration::from_secs(30);

/// The endpoints of the service behind the proxy.
#[derive(Clone, Copy)]
pub(crate) enum RowEndpoints {
    /// HTTP/1 or TCP endpoints.
    Servers(&'static [Script]),
    /// Three HTTP/2 endpoints.
    Streams(http2::Script),
    /// This many endpoints where no server listens.
    Refusing(usize),
    /// One endpoint to which a connection is never established.
    Silent,
}

/// A cause, and what triggers it.
pub(crate) struct Row {
    pub(crate) cause: &'static str,
    /// The spec of the service's policy; `more` contains further documents.
    pub(crate) policy: &'static str,
    pub(crate) more: &'static str,
    pub(crate) protocol: &'static str,
    pub(crate) behind: RowEndpoints,
    /// How many requests are in progress before.
    pub(crate) held: usize,
    /// The bytes that the client sends, and how many times it sends them. The last response counts.
    pub(crate) said: &'static [u8],
    pub(crate) times: usize,
    /// The status of the response; `None` if a response has already begun, or if the client cannot get one.
    pub(crate) status: Option<u16>,
}

/// The servers and sockets that must exist while a row runs.
struct RowServers {
    servers: Vec<Faulty>,
    _streams: Vec<http2::Server>,
    addresses: Vec<SocketAddr>,
    _sockets: Vec<Socket>,
    _clients: Vec<Socket>,
}

fn bound() -> (Socket, SocketAddr) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    let any: SocketAddr = "127.0.0.1:0".parse().expect("an address");
    socket.bind(&any.into()).expect("loopback");
    let address = socket.local_addr().ok().and_then(|address| address.as_socket());
    (socket, address.expect("an address"))
}

impl RowServers {
    fn new(behind: RowEndpoints) -> Self {
        let (mut servers, mut sockets, mut clients) = (Vec::new(), Vec::new(), Vec::new());
        let mut streams = Vec::new();
        let addresses: Vec<SocketAddr>;
        match behind {
            RowEndpoints::Servers(scripts) => {
                servers = scripts.iter().map(|script| server(*script)).collect();
                addresses = servers.iter().map(Faulty::address).collect();
            }
            RowEndpoints::Streams(script) => {
                streams = (0..3).map(|_| http2::Server::start(script)).collect();
                addresses = streams.iter().map(|server| server.address).collect();
            }
            RowEndpoints::Refusing(count) => {
                (sockets, addresses) = (0..count).map(|_| bound()).unzip();
            }
            RowEndpoints::Silent => {
                let (socket, address) = bound();
                // There is space for one connection, which is never accepted. Later SYNs are not answered.
                socket.listen(0).expect("it listens");
                for _ in 0..2 {
                    let client = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
                    client.set_nonblocking(true).expect("a socket");
                    // The connection is still being established, so this is no error.
                    client.connect(&address.into()).unwrap_or_default();
                    clients.push(client);
                }
                (sockets, addresses) = (vec![socket], vec![address]);
            }
        }
        Self { servers, _streams: streams, addresses, _sockets: sockets, _clients: clients }
    }

    fn seen(&self) -> usize {
        self.servers.iter().map(|server| server.seen().len()).sum()
    }
}

/// The response to a client that sends these bytes.
fn answer(to: SocketAddr, said: &[u8]) -> String {
    let mut stream = TcpStream::connect(to).expect("the proxy listens");
    stream.set_read_timeout(Some(LIMIT)).expect("a socket");
    // Fails if the proxy refuses before it has read everything.
    stream.write_all(said).unwrap_or_default();
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    // A cut or reset connection ends the loop as well.
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        bytes.extend_from_slice(&buffer[..count]);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The status of a response, and its cause.
fn told(answer: &str) -> Option<(u16, &str)> {
    let status = answer.split(' ').nth(1)?.parse().ok()?;
    let cause = answer.lines().find_map(|line| line.strip_prefix("leno-error: "))?;
    Some((status, cause.split(';').next()?))
}

impl Row {
    /// Triggers the cause, and checks the response, the access log and the metric.
    fn run(&self) {
        let stage = RowServers::new(self.behind);
        let around =
            FrontOptions { protocol: self.protocol, more: self.more, ..FrontOptions::default() };
        let front = FrontProxy::outbound(self.policy, &stage.addresses, &around);
        let held: Vec<TcpStream> = (0..self.held)
            .map(|_| {
                let mut stream = front.connect();
                stream.write_all(b"GET /held HTTP/1.1\r\nHost: web\r\n\r\n").expect("it reads");
                stream
            })
            .collect();
        self.until("what is held to arrive", || stage.seen() >= self.held);
        let mut last = String::new();
        for _ in 0..self.times {
            last = answer(front.address(), self.said);
        }
        match self.status {
            Some(status) => assert_eq!(told(&last), Some((status, self.cause)), "{last}"),
            None => assert!(!last.contains("leno-error"), "{}: {last}", self.cause),
        }
        self.is_counted(&front);
        drop(held);
    }

    fn until(&self, what: &str, look: impl Fn() -> bool) {
        let done = wait::until(what, LIMIT, || Ok(look().then_some(())));
        assert!(done.is_ok(), "{}: waited in vain for {what}", self.cause);
    }

    /// Checks that a line of the access log names the cause and that the metric counts it.
    fn is_counted(&self, front: &FrontProxy) {
        let metric = format!("cause=\"{}\"", self.cause);
        self.until("the metric", || front.metric(&["leno_errors_total{", &metric]) > 0.0);
        let field = format!(" error={}", self.cause);
        let status = self.status.map(|status| format!(" status={status} ")).unwrap_or_default();
        let is_it = |line: &str| {
            let mut ends = line.match_indices(&field).map(|(at, _)| &line[at + field.len()..]);
            ends.any(|rest| rest.is_empty() || rest.starts_with(' ')) && line.contains(&status)
        };
        let found =
            wait::until("a line", LIMIT, || Ok(front.log().lines().any(is_it).then_some(())));
        assert!(found.is_ok(), "{} is not in the access log: {}", self.cause, front.log());
    }
}

/// Runs several rows in parallel, because most of them wait for timeouts.
fn drive(rows: &[Row]) {
    const AT_ONCE: usize = 8;
    for some in rows.chunks(AT_ONCE) {
        thread::scope(|scope| {
            let running: Vec<_> =
                some.iter().map(|row| (row.cause, scope.spawn(|| row.run()))).collect();
            for (cause, row) in running {
                assert!(row.join().is_ok(), "{cause} is not named in all three places");
            }
        });
    }
}

#[test]
fn requests_that_the_mesh_fails_say_why() {
    drive(REQUESTS);
}

#[test]
fn connections_that_the_mesh_fails_say_why() {
    drive(BYTES);
}

/// An answer should not just say that all endpoints were tried or have just failed. It should name the endpoint
/// that failed last, and the reason.
#[test]
fn an_answer_without_an_endpoint_names_the_one_that_failed_last() {
    for (count, cause) in [(1, "endpoints-tried"), (3, "failfast")] {
        let stage = RowServers::new(RowEndpoints::Refusing(count));
        let front =
            FrontProxy::outbound(rows::ROW.policy, &stage.addresses, &FrontOptions::default());
        let mut last = String::new();
        for _ in 0..2 {
            last = answer(front.address(), rows::GET);
            if count == 1 {
                break;
            }
        }
        let line = last.lines().find(|line| line.starts_with("leno-error: ")).expect("a cause");
        let said = |address: &SocketAddr| {
            format!("leno-error: {cause}; last=\"connect-refused\"; endpoint=\"{address}\"")
        };
        assert!(stage.addresses.iter().any(|address| line == said(address)), "{line}");
    }
}

/// Tests the inbound side: an application that does not listen, a rate limit, and a policy that permits no client.
#[test]
fn the_servers_side_says_why() {
    let (_listener, nowhere) = bound();
    let application = server(|_| FaultyAct::Good);
    let (limit, authorization) = ("RateLimitPolicy", "AuthorizationPolicy");
    for (kind, spec, to, cause, status) in [
        (limit, "  limits: [{requests: 1000}]\n", nowhere, "application-unreachable", 503),
        (limit, "  limits: [{requests: 1, per: 1h}]\n", application.address(), "rate-limited", 429),
        (authorization, "  rules: []\n", application.address(), "authorization-denied", 403),
    ] {
        let front = FrontProxy::inbound_under(kind, spec, to);
        // The first request may pass.
        answer(front.address(), rows::GET);
        let last = answer(front.address(), rows::GET);
        assert_eq!(told(&last), Some((status, cause)), "{last}");
        Row { cause, status: Some(status), ..rows::ROW }.is_counted(&front);
    }
}

fn source(path: &str) -> String {
    let root: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    fs::read_to_string(root.join(path)).expect("a file of the project")
}

/// The causes in the page's table, without its last row, which stands for several causes.
fn listed() -> BTreeSet<String> {
    let page = source("docs/guide/metrics.md");
    let (_, part) = page.split_once("### Causes").expect("the part");
    let (part, _) = part.split_once("\n## ").expect("its end");
    let first = |line: &str| line.split('|').nth(1).unwrap_or_default().to_owned();
    let cells = part.lines().filter(|line| line.starts_with("| `")).map(first);
    cells
        .flat_map(|cell| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>())
        .collect()
}

/// The labels that a source file gives to malformed messages.
fn labels(path: &str) -> BTreeSet<String> {
    let text = source(path);
    let (_, body) = text.split_once("fn label(self)").expect("the names");
    let (body, _) = body.split_once("\n    }").expect("their end");
    body.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn every_cause_is_driven_or_says_why_not() {
    let mut causes = listed();
    assert!(causes.len() > 40, "{causes:?}");
    causes.extend(labels("proxy/http/src/head.rs"));
    causes.extend(labels("proxy/http/src/body.rs"));
    let driven: BTreeSet<String> =
        REQUESTS.iter().chain(BYTES).map(|row| row.cause.to_owned()).collect();
    let driven: BTreeSet<String> = driven
        .into_iter()
        .chain(["application-unreachable", "rate-limited", "authorization-denied"].map(Into::into))
        .collect();
    let absent: BTreeMap<&str, &str> = ABSENT.iter().copied().collect();
    for cause in &causes {
        let why = absent.get(cause.as_str());
        assert!(driven.contains(cause) != why.is_some(), "{cause}: driven, or why not ({why:?})");
    }
    let known = |cause: &str| causes.contains(cause);
    assert!(driven.iter().all(|cause| known(cause)), "no such cause: {driven:?}");
    assert!(absent.keys().all(|cause| known(cause)), "no such cause: {absent:?}");
}
