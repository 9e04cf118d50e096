//! The registry of one worker.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::rc::Rc;
use std::time::{Duration, Instant};

use leno_requests::{WorkerMemory, WorkerRows};
use leno_tap::BodyCopies;

use crate::access::{AccessLog, Log, Noted, Record, Records};
use crate::audited::{AuditedRequest, AuditedRequests};
use crate::counter::{Counter, Counters};
use crate::edge::{Direction, Edge, EdgeLabels, Logged};
use crate::forgotten::Forgotten;
use crate::observed::Observed;
use crate::route::{MAX_ROUTES, RouteCounter, RouteCounters, RouteLabels};
use crate::snapshot::Snapshot;
use crate::tap::{Arriving, Beyond, Mark, OpenTaps, Taps};
use crate::trace::{Ended, Trace, TraceParent, Traces};

/// How many edges a worker counts separately. An edge has about 40 series and takes less than 16 KiB (tests/series.rs),
/// so these are at most some 10,000 series, a page of 2 MB and 4 MiB of memory. A workload usually calls tens of
/// others.
pub const MAX_EDGES: usize = 256;
/// How long an edge is shown after its last use. An edge is unused if it has no handle and no open connections. Its
/// counts are kept until another edge needs the room, so that they continue if the edge is used again.
pub const EDGE_IDLE: Duration = Duration::from_secs(600);

/// How many server names of TLS connections a worker counts separately. Clients choose the names, so they must not fill
/// the page. A workload calls tens of hosts.
pub const MAX_TLS_NAMES: usize = 64;

/// For how many policies a worker counts separately, including policies that no longer exist. A workload has tens of
/// policies.
pub const MAX_AUTHORIZATION_POLICIES: usize = 256;

/// Counts of authorization, by decision and policy.
pub(crate) type Decisions = BTreeMap<(&'static str, Box<str>), Rc<Cell<u64>>>;

/// The names for TLS connections without a server name, and for those beyond the limit.
const NO_NAME: &str = "";
const OTHER_NAME: &str = "other";

/// A request that has begun, with all values that are needed to count and log its end.
#[derive(Debug)]
pub struct Begun {
    at: Instant,
    protocol: &'static str,
    /// `None` if there is no access log.
    noted: Option<Box<Noted>>,
    /// `None` if neither a tap, a span nor the access log may show the details of the request.
    observed: Option<Box<Observed>>,
    /// Taps that match the request but have used up their rate.
    beyond: Beyond,
    /// The trace; `None` unless the request takes part in one.
    trace: Option<Trace>,
    traces: Option<Rc<Traces>>,
    /// The rule of a route that the request follows.
    route: Option<Rc<RouteCounter>>,
}

impl Begun {
    /// The `traceparent` for the next hop, in place of the received one. `None` if the request takes part in no trace,
    /// or if its trace headers are forwarded unchanged.
    #[must_use]
    pub fn traceparent(&self) -> Option<TraceParent> {
        self.trace.as_ref().map(Trace::traceparent)
    }

    /// The trace headers of other formats in which the request came. Usually there are none.
    #[must_use]
    pub fn trace_lines(&self) -> Vec<(&'static str, String)> {
        self.trace.as_ref().map(Trace::lines).unwrap_or_default()
    }

    /// Records the client's identity of an inbound request, if a tap, a span or the access log may show it.
    pub fn came_from(&self, peer: impl FnOnce() -> Option<Box<str>>) {
        if let Some(observed) = &self.observed {
            observed.came_from(peer());
        }
    }

    /// Counts the request with the rule of the route that it follows, even if the mesh answers the request.
    pub fn counts_with(&mut self, route: &Rc<RouteCounter>) {
        self.route = Some(Rc::clone(route));
    }

    /// Records the route and the rule that the request follows, if a tap, a span or the access log may show it.
    pub fn routed(&mut self, route: impl FnOnce() -> Box<str>) {
        let Some(observed) = &mut self.observed else { return };
        let route = route();
        if let (Some(traces), Some(trace)) = (&self.traces, &mut self.trace) {
            traces.routed(trace, &route);
        }
        observed.decided(|| format!("follows {route}"));
        observed.routed(route);
    }

    /// Must be called when the request is sent to this server, whose identity is `peer`. Returns the mark for the
    /// server's proxy if a tap gets the request.
    pub fn mark(&self, edge: &EdgeLabels, peer: impl FnOnce() -> Option<Box<str>>) -> Option<Mark> {
        self.observed.as_ref()?.mark(edge, peer(), self.trace.is_some())
    }

    /// Records a decision of the proxy about the request, if a tap wants decisions.
    pub fn decided(&self, what: impl FnOnce() -> String) {
        if let Some(observed) = &self.observed {
            observed.decided(what);
        }
    }

    /// Where the beginnings of the bodies are copied to, if a tap wants them.
    #[must_use]
    pub fn copies(&self) -> Option<&BodyCopies> {
        self.observed.as_ref().and_then(|observed| observed.copies())
    }

    /// Counts, with its route, that the server's proxy has failed the request for this cause.
    pub fn failed_there(&self, cause: &'static str) {
        if let Some(route) = &self.route {
            route.error(cause);
        }
    }

    /// Must be called when the request is sent again.
    pub fn retried(&self) {
        if let Some(route) = &self.route {
            route.retried();
        }
        if let Some(observed) = &self.observed {
            observed.retried();
        }
    }
}

/// Where a request comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// From the workload.
    Outbound,
    /// From a client of the workload. `mark` is the tap mark that the client's proxy has set.
    Inbound {
        /// `None` unless the client's proxy taps the request.
        mark: Option<NonZeroU64>,
    },
}

impl Arrival {
    /// From a client whose proxy has not marked the request.
    pub const INBOUND: Self = Self::Inbound { mark: None };
}

/// How a request ended.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// The status that the client received; 499 if the client left before there was a status.
    pub status: u16,
    /// The `grpc-status` that the client received, if this was a gRPC call that has one.
    pub grpc_status: Option<u8>,
    /// The numbers of bytes from and to the client, including heads.
    pub bytes: (u64, u64),
    /// Why the mesh failed the request. `None` if it did not.
    pub error: Option<&'static str>,
    /// When the proxy sent the request the last time. `None` if it never was.
    pub sent: Option<Instant>,
    /// When the response began.
    pub first_byte: Option<Instant>,
}

/// The end of an opaque connection, for the access log.
#[derive(Clone, Copy, Debug)]
pub struct Relay<'a> {
    /// The address that the client dialled.
    pub target: SocketAddr,
    /// Whether the client began with its own ClientHello.
    pub tls: bool,
    /// The host in that ClientHello.
    pub server_name: Option<&'a str>,
    /// The numbers of bytes from and to the client.
    pub bytes: (u64, u64),
    /// The time from the first relayed byte to the end.
    pub duration: Duration,
    /// Why the mesh failed the connection. `None` if it did not.
    pub error: Option<&'static str>,
}

impl Relay<'_> {
    /// A connection that the mesh failed before any byte was relayed.
    #[must_use]
    pub fn failed(target: SocketAddr, cause: &'static str) -> Self {
        let (bytes, duration) = ((0, 0), Duration::ZERO);
        Self { target, tls: false, server_name: None, bytes, duration, error: Some(cause) }
    }
}

/// All counts of one worker. The worker's thread shares it through `Rc`.
#[derive(Debug)]
pub struct Registry {
    counters: Counters,
    /// Declared before the edges, so that it is dropped first: this marks the worker as ended, and dropping an edge
    /// then leaves its row to the reader, which may not have read the last counts yet.
    rows: WorkerRows,
    edges: RefCell<HashMap<EdgeLabels, Rc<Edge>>>,
    forgotten: RefCell<Forgotten>,
    routes: RefCell<RouteCounters>,
    tls_names: RefCell<BTreeMap<(Direction, Box<str>), u64>>,
    authorization: RefCell<Decisions>,
    audited: RefCell<AuditedRequests>,
    access: Option<AccessLog>,
    taps: Taps,
    open: OpenTaps,
    traces: Option<Rc<Traces>>,
    /// The clock for the times at which requests begin and end.
    clock: fn() -> Instant,
}

impl Default for Registry {
    fn default() -> Self {
        Self::new()
    }
}

impl Registry {
    /// An empty registry whose counts no other process reads.
    #[must_use]
    pub fn new() -> Self {
        Self::counting_in(WorkerMemory::private())
    }

    /// An empty registry that counts requests in this memory.
    #[must_use]
    pub fn counting_in(memory: WorkerMemory) -> Self {
        Self {
            counters: Counters::new(),
            rows: WorkerRows::new(memory),
            edges: RefCell::default(),
            forgotten: RefCell::default(),
            routes: RefCell::default(),
            tls_names: RefCell::default(),
            authorization: RefCell::default(),
            audited: RefCell::default(),
            access: None,
            taps: Taps::default(),
            open: OpenTaps::default(),
            traces: None,
            clock: Instant::now,
        }
    }

    /// Adds an access log, which all workers share.
    #[must_use]
    pub fn with_access_log(self, log: Option<Log>) -> Self {
        Self { access: log.map(AccessLog::Lines).or(self.access), ..self }
    }

    /// Adds an access log that is exported, which belongs to this worker.
    #[must_use]
    pub fn with_access_records(self, records: Option<Rc<Records>>) -> Self {
        Self { access: records.map(AccessLog::Records).or(self.access), ..self }
    }

    /// Adds the taps, which all workers share.
    #[must_use]
    pub fn with_taps(self, taps: Taps) -> Self {
        Self { taps, ..self }
    }

    /// Adds traces, which belong to this worker.
    #[must_use]
    pub fn with_traces(self, traces: Option<Rc<Traces>>) -> Self {
        Self { traces, ..self }
    }

    /// Sets another clock for the times at which requests begin and end.
    #[must_use]
    pub fn with_clock(self, clock: fn() -> Instant) -> Self {
        Self { clock, ..self }
    }

    /// Whether there is an access log.
    #[must_use]
    pub fn logs(&self) -> bool {
        self.access.is_some()
    }

    /// Starts a request with this version of HTTP. `of` returns its authority and headers, `trace_headers` its trace
    /// headers, perhaps among others. Only the parts of the request that the access log, an open tap or traces need are
    /// read and copied.
    #[must_use]
    pub fn begin<'h, H, T>(
        &self,
        arrival: Arrival,
        (protocol, method, target): (&'static str, &str, &[u8]),
        of: impl Fn() -> (&'h str, H),
        trace_headers: impl FnOnce() -> T,
    ) -> Begun
    where
        H: Iterator<Item = (&'h str, &'h [u8])>,
        T: Iterator<Item = (&'h str, &'h [u8])>,
    {
        let at = (self.clock)();
        let noted = self.access.as_ref().and_then(|log| {
            let noted = log.note(method, target, || of().1)?;
            Some((Box::new(noted), log.layout().is_observed))
        });
        let trace = self.traces.as_ref().and_then(|traces| traces.begin(trace_headers()));
        let is_noted = |traces: &Rc<Traces>| trace.as_ref().is_some_and(|one| traces.notes(one));
        let request = Arriving { at, arrival, method, target };
        let (wanted, beyond) = self.open.wanted(&self.taps, request, || of().1);
        let is_observed = !wanted.by.is_empty()
            || self.traces.as_ref().is_some_and(is_noted)
            || noted.as_ref().is_some_and(|(_, is_observed)| *is_observed);
        let observed = is_observed.then(|| {
            let wanted = (wanted, arrival.parts().1);
            Box::new(Observed::new(&self.taps, wanted, (protocol, method, target), of()))
        });
        let traces = trace.as_ref().and(self.traces.clone());
        let noted = noted.map(|(noted, _)| noted);
        Begun { at, protocol, noted, observed, beyond, trace, traces, route: None }
    }

    /// Ends a request: counts it on its edge and its route, and gives it to the taps, to the trace and to the access
    /// log.
    pub fn end(&self, counted: &impl Logged, begun: &Begun, outcome: &Outcome) {
        let duration = (self.clock)().saturating_duration_since(begun.at);
        let edge = counted.edge();
        edge.request(outcome.status, duration);
        if let Some(status) = outcome.grpc_status {
            edge.grpc(status, outcome.status);
        }
        if let Some(route) = &begun.route {
            route.end(outcome, duration);
        }
        if !begun.beyond.is_none() {
            self.open.count(&self.taps, begun.beyond, (&counted.logged(), outcome));
        }
        if let Some(observed) = &begun.observed {
            let edge = counted.logged();
            observed.end(&edge, begun.at, outcome);
            if let (Some(traces), Some(trace)) = (&begun.traces, &begun.trace) {
                match traces.end(trace, || observed.ended(&edge, begun.at, outcome)) {
                    Ended::WithSpan => counted.edge().exemplify(duration, trace.ids()),
                    Ended::Lost(lost) => self.counters.add(lost, 1),
                    Ended::WithoutSpan => {}
                }
            }
        }
        let (Some(log), Some(noted)) = (&self.access, &begun.noted) else { return };
        let edge = counted.logged();
        let observed = begun.observed.as_ref().filter(|_| log.layout().is_observed);
        let observed = observed.map(|observed| observed.ended(&edge, begun.at, outcome));
        let record = Record {
            protocol: Some(begun.protocol),
            status: Some(outcome.status),
            grpc_status: outcome.grpc_status,
            bytes: outcome.bytes,
            duration,
            error: outcome.error,
            trace: begun.trace.as_ref().map(Trace::ids),
            observed: observed.as_ref(),
            ..noted.record(&edge)
        };
        self.log(log, &record);
    }

    /// Counts and logs a request that could not be parsed and was answered because of `cause`. The log has no method,
    /// target or version, because the parsed parts may not be what the client meant.
    pub fn unreadable(&self, counted: &impl Logged, status: u16, cause: &'static str) {
        let edge = counted.edge();
        edge.error(cause);
        edge.request(status, Duration::ZERO);
        let Some(log) = &self.access else { return };
        let edge = counted.logged();
        self.log(log, &Record { status: Some(status), error: Some(cause), ..Record::of(&edge) });
    }

    /// Logs an opaque connection that ended or was refused. Its bytes were counted as they moved.
    pub fn relayed(&self, edge: &EdgeLabels, relay: &Relay<'_>) {
        let Some(log) = &self.access else { return };
        let target = relay.target.to_string();
        let record = Record {
            method: "TCP",
            protocol: relay.tls.then_some("TLS"),
            target: target.as_bytes(),
            server_name: relay.server_name,
            bytes: relay.bytes,
            duration: relay.duration,
            error: relay.error,
            ..Record::of(edge)
        };
        self.log(log, &record);
    }

    fn log(&self, log: &AccessLog, record: &Record<'_>) {
        if let Some(lost) = log.write(record) {
            self.counters.add(lost, 1);
        }
    }

    /// Counts a TLS connection of a client by the server name in its ClientHello. Connections without a name are
    /// counted as one with an empty name.
    pub fn tls_name(&self, direction: Direction, name: Option<&str>) {
        let mut names = self.tls_names.borrow_mut();
        let name = name.unwrap_or(NO_NAME);
        let known = names.len() < MAX_TLS_NAMES || names.contains_key(&(direction, name.into()));
        let name = if known { name } else { OTHER_NAME };
        let count = names.entry((direction, name.into())).or_default();
        *count = count.wrapping_add(1);
    }

    /// The counter of a decision of authorization and of the policy that it comes from. Beyond
    /// [`MAX_AUTHORIZATION_POLICIES`] this returns the counter of the policy `other`.
    pub fn authorization(&self, decision: &'static str, policy: &str) -> Rc<Cell<u64>> {
        let mut counters = self.authorization.borrow_mut();
        let key = (decision, policy.into());
        let known = counters.len() < MAX_AUTHORIZATION_POLICIES || counters.contains_key(&key);
        let key = if known { key } else { (decision, OTHER_NAME.into()) };
        Rc::clone(counters.entry(key).or_default())
    }

    /// Keeps a request that an audit policy has matched.
    pub fn audited(&self, request: AuditedRequest) {
        if !self.audited.borrow_mut().count(request) {
            self.counters.add(Counter::AuditedNotKept, 1);
        }
    }

    /// Adds one to a counter of the worker.
    pub fn count(&self, counter: Counter) {
        self.counters.add(counter, 1);
    }

    /// Adds `count` to a counter of the worker.
    pub fn count_many(&self, counter: Counter, count: u64) {
        self.counters.add(counter, count);
    }

    /// The edge with these labels. This is a look-up, so a connection should keep the result. Beyond [`MAX_EDGES`] this
    /// returns the edge named `other` of the same direction.
    pub fn edge(&self, labels: &EdgeLabels) -> Rc<Edge> {
        self.edge_at(labels, Instant::now())
    }

    pub(crate) fn edge_at(&self, labels: &EdgeLabels, now: Instant) -> Rc<Edge> {
        let mut edges = self.edges.borrow_mut();
        if let Some(edge) = edges.get(labels) {
            edge.used_at.set(now);
            return Rc::clone(edge);
        }
        let known = edges.len() < MAX_EDGES || {
            self.forget_idle(&mut edges, now);
            edges.len() < MAX_EDGES
        };
        let labels = if known { labels.clone() } else { other(labels) };
        if !known {
            self.counters.add(Counter::EdgesOverBudget, 1);
        }
        Rc::clone(edges.entry(labels).or_insert_with_key(|labels| {
            Rc::new(Edge::new(labels.clone(), labels.claim(&self.rows), now))
        }))
    }

    fn forget_idle(&self, edges: &mut HashMap<EdgeLabels, Rc<Edge>>, now: Instant) {
        let mut forgotten = self.forgotten.borrow_mut();
        edges.retain(|_, edge| {
            let stays = is_live(edge, now);
            if !stays {
                forgotten.add(edge);
            }
            stays
        });
    }

    /// The counter of a rule of a route. This is a look-up, so routes should keep the result. Beyond [`MAX_ROUTES`]
    /// this returns the counter of the route `other`.
    pub fn route(&self, labels: &RouteLabels) -> Rc<RouteCounter> {
        let mut routes = self.routes.borrow_mut();
        if !routes.contains_key(labels) && routes.len() >= MAX_ROUTES {
            // Removes the counters of routes that no longer exist.
            routes.retain(|_, counter| Rc::strong_count(counter) > 1);
        }
        let known = routes.len() < MAX_ROUTES || routes.contains_key(labels);
        if !known {
            self.counters.add(Counter::EdgesOverBudget, 1);
        }
        let labels = if known { labels.clone() } else { RouteLabels::other() };
        Rc::clone(routes.entry(labels).or_default())
    }

    /// Clears the record of ejected endpoints, before the endpoints that are ejected now are recorded again.
    pub fn forget_ejected(&self) {
        self.edges.borrow().values().for_each(|edge| edge.ejected.set(None));
    }

    /// A copy of all counts, to be sent to another thread.
    pub fn snapshot(&self) -> Snapshot {
        self.snapshot_at(Instant::now())
    }

    pub(crate) fn snapshot_at(&self, now: Instant) -> Snapshot {
        let edges = self.edges.borrow();
        Snapshot::of(self.counters.values(), &edges, |edge| is_live(edge, now))
            .with_forgotten(self.forgotten.borrow().counts())
            .with_routes(&self.routes.borrow())
            .with_tls_names(self.tls_names.borrow().clone())
            .with_authorization(&self.authorization.borrow())
            .with_audited(self.audited.borrow().clone())
    }
}

/// Whether a connection or an endpoint has a handle of the edge, or had one recently. The time of the last use is
/// updated here, so that requests need not do it.
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
        client_trust_domain: "".into(),
        server: "other".into(),
        server_namespace: "".into(),
        service: "other".into(),
        mtls: labels.mtls,
    }
}
