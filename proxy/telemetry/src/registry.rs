//! The registry of one worker.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::access::{Log, MAX_FIELD_BYTES, Record};
use crate::counter::{Counter, Counters};
use crate::edge::{Direction, Edge, EdgeLabels};
use crate::snapshot::Snapshot;

/// Most edges a worker counts one by one: the series budget. An edge is about 40 series and 500
/// bytes, so this is some 10,000 series and a page of 2 MB at the worst; a workload calls tens of
/// others.
pub const MAX_EDGES: usize = 256;
/// How long an edge is shown that nobody holds and nothing is counted on. Its counts are kept after
/// that, until its place is needed, so that it goes on where it was when it is used again.
pub const EDGE_IDLE: Duration = Duration::from_secs(600);

/// Most server names of TLS connections that a worker counts one by one; clients choose them, so that
/// they must not fill the page. A workload calls tens of hosts.
pub const MAX_TLS_NAMES: usize = 64;

/// What a TLS connection is counted as that names no host, or one too many.
const NO_NAME: &str = "";
const OTHER_NAME: &str = "other";

/// A request in progress, as far as it is counted.
#[derive(Debug)]
pub struct Begun {
    at: Instant,
    protocol: &'static str,
    request: Option<(Box<str>, Box<[u8]>)>,
}

/// How a request has ended.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// The status that the client saw; 499 when it left before there was one.
    pub status: u16,
    /// The `grpc-status` that it saw, of a gRPC call that came to one.
    pub grpc_status: Option<u8>,
    /// Bytes from and to the client, heads included.
    pub bytes: (u64, u64),
    /// Why the mesh failed it, when it did.
    pub error: Option<&'static str>,
}

/// An opaque connection that has ended, for the access log.
#[derive(Clone, Copy, Debug)]
pub struct Relay<'a> {
    /// The address that the client dialled.
    pub target: SocketAddr,
    /// Whether the client began with a ClientHello of its own.
    pub tls: bool,
    /// The host that it named in it.
    pub server_name: Option<&'a str>,
    /// Bytes from and to the client.
    pub bytes: (u64, u64),
    /// From its first relayed byte to its end.
    pub duration: Duration,
    /// Why the mesh failed it, when it did.
    pub error: Option<&'static str>,
}

/// Everything one worker counts. Shared within its thread by `Rc`.
#[derive(Debug)]
pub struct Registry {
    counters: Counters,
    edges: RefCell<HashMap<EdgeLabels, Rc<Edge>>>,
    tls_names: RefCell<BTreeMap<(Direction, Box<str>), u64>>,
    access: Option<Log>,
}

impl Default for Registry {
    fn default() -> Self {
        Self::new()
    }
}

impl Registry {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self {
            counters: Counters::new(),
            edges: RefCell::default(),
            tls_names: RefCell::default(),
            access: None,
        }
    }

    /// With an access log, shared by all workers.
    #[must_use]
    pub fn with_access_log(self, access: Option<Log>) -> Self {
        Self { access, ..self }
    }

    /// A request has begun, in this version of HTTP; its method and target are copied only for an
    /// access log, and no more of them than it shows.
    #[must_use]
    pub fn begin(&self, protocol: &'static str, method: &str, target: &[u8]) -> Begun {
        let shown = &target[..target.len().min(MAX_FIELD_BYTES)];
        let request = self.access.as_ref().map(|_| (method.into(), shown.into()));
        Begun { at: Instant::now(), protocol, request }
    }

    /// A request has ended: counts it on its edge and logs it.
    pub fn end(&self, edge: &Edge, begun: &Begun, outcome: &Outcome) {
        let duration = begun.at.elapsed();
        edge.request(outcome.status, duration);
        if let Some(status) = outcome.grpc_status {
            edge.grpc(status);
        }
        let (Some(log), Some((method, target))) = (&self.access, &begun.request) else { return };
        self.log(
            log,
            &Record {
                edge: &edge.labels,
                method,
                protocol: Some(begun.protocol),
                target,
                status: Some(outcome.status),
                grpc_status: outcome.grpc_status,
                server_name: None,
                bytes: outcome.bytes,
                duration,
                error: outcome.error,
            },
        );
    }

    /// A request could not be read, and was answered for `cause`: counts and logs it. What of its method,
    /// target and version could be read is not known to be what was meant, so the log shows none.
    pub fn unreadable(&self, edge: &Edge, status: u16, cause: &'static str) {
        edge.error(cause);
        edge.request(status, Duration::ZERO);
        let Some(log) = &self.access else { return };
        self.log(
            log,
            &Record {
                edge: &edge.labels,
                method: "",
                protocol: None,
                target: b"",
                status: Some(status),
                grpc_status: None,
                server_name: None,
                bytes: (0, 0),
                duration: Duration::ZERO,
                error: Some(cause),
            },
        );
    }

    /// An opaque connection has ended, or was refused: logs it. Its bytes are counted as they move.
    pub fn relayed(&self, edge: &EdgeLabels, relay: &Relay<'_>) {
        let Some(log) = &self.access else { return };
        self.log(
            log,
            &Record {
                edge,
                method: "TCP",
                protocol: relay.tls.then_some("TLS"),
                target: relay.target.to_string().as_bytes(),
                status: None,
                grpc_status: None,
                server_name: relay.server_name,
                bytes: relay.bytes,
                duration: relay.duration,
                error: relay.error,
            },
        );
    }

    fn log(&self, log: &Log, line: &Record<'_>) {
        if !log.write(line) {
            self.counters.add(Counter::AccessLogDropped, 1);
        }
    }

    /// A client has begun TLS of its own, and named this host if any.
    pub fn tls_name(&self, direction: Direction, name: Option<&str>) {
        let mut names = self.tls_names.borrow_mut();
        let name = name.unwrap_or(NO_NAME);
        let known = names.len() < MAX_TLS_NAMES || names.contains_key(&(direction, name.into()));
        let name = if known { name } else { OTHER_NAME };
        *names.entry((direction, name.into())).or_default() += 1;
    }

    /// Counts one of what belongs to no edge.
    pub fn count(&self, counter: Counter) {
        self.counters.add(counter, 1);
    }

    /// Counts several.
    pub fn count_many(&self, counter: Counter, count: u64) {
        self.counters.add(counter, count);
    }

    /// The edge with these labels; one look-up, to be kept by the connection. Over
    /// [`MAX_EDGES`] it is the edge named `other` of the same direction.
    pub fn edge(&self, labels: &EdgeLabels) -> Rc<Edge> {
        let now = Instant::now();
        let mut edges = self.edges.borrow_mut();
        if let Some(edge) = edges.get(labels) {
            edge.used_at.set(now);
            return Rc::clone(edge);
        }
        let known = edges.len() < MAX_EDGES || {
            forget_idle(&mut edges, now);
            edges.len() < MAX_EDGES
        };
        let labels = if known { labels.clone() } else { other(labels) };
        if !known {
            self.counters.add(Counter::EdgesOverBudget, 1);
        }
        Rc::clone(
            edges
                .entry(labels)
                .or_insert_with_key(|labels| Rc::new(Edge::new(labels.clone(), now))),
        )
    }

    /// Everything counted so far, to be sent to another thread.
    pub fn snapshot(&self) -> Snapshot {
        self.snapshot_at(Instant::now())
    }

    pub(crate) fn snapshot_at(&self, now: Instant) -> Snapshot {
        let edges = self.edges.borrow();
        Snapshot::of(self.counters.values(), &edges, |edge| is_live(edge, now))
            .with_tls_names(self.tls_names.borrow().clone())
    }
}

fn forget_idle(edges: &mut HashMap<EdgeLabels, Rc<Edge>>, now: Instant) {
    edges.retain(|_, edge| is_live(edge, now));
}

/// Whether a connection or an endpoint holds the edge, or did lately. The time of use is brought up
/// to date here, where it costs the request path nothing.
fn is_live(edge: &Rc<Edge>, now: Instant) -> bool {
    if Rc::strong_count(edge) > 1 || edge.is_open() {
        edge.used_at.set(now);
    }
    now.saturating_duration_since(edge.used_at.get()) < EDGE_IDLE
}

fn other(labels: &EdgeLabels) -> EdgeLabels {
    EdgeLabels {
        direction: labels.direction,
        client: "other".into(),
        client_namespace: "".into(),
        server: "other".into(),
        server_namespace: "".into(),
        service: "other".into(),
        mtls: labels.mtls,
    }
}
