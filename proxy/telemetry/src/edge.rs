//! One edge: a client, a server, and all counts between them.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leno_requests::{Row, Rows, WorkerMemory, bucket_of};
use leno_tap::TraceIds;

use crate::answers::Answers;
use crate::exemplar::{Exemplar, Exemplars};
use crate::native::NativeHistogram;

/// The direction of the traffic, seen from the workload of the proxy that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    /// Counted by the server's proxy.
    Inbound,
    /// Counted by the client's proxy.
    Outbound,
}

impl Direction {
    /// The value of the metric label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Inbound => "inbound",
            Self::Outbound => "outbound",
        }
    }
}

/// The client and the server of an edge. Unknown parts are empty.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EdgeLabels {
    /// Which of the two proxies counted.
    pub direction: Direction,
    /// The client workload; on the inbound side the service account of its identity.
    pub client: Arc<str>,
    /// The client's namespace.
    pub client_namespace: Arc<str>,
    /// The client's trust domain if it is not the mesh's own; else empty.
    pub client_trust_domain: Arc<str>,
    /// The server workload.
    pub server: Arc<str>,
    /// The server's namespace.
    pub server_namespace: Arc<str>,
    /// The service through which the client called; only if the client's proxy counts.
    pub service: Arc<str>,
    /// Whether the connection between the proxies is mTLS.
    pub mtls: bool,
}

impl EdgeLabels {
    /// The labels in the form that the aggregator of flows reads.
    fn shared(&self) -> leno_requests::Labels<&str> {
        leno_requests::Labels {
            direction: self.direction.as_str(),
            client: &self.client,
            client_namespace: &self.client_namespace,
            server: &self.server,
            server_namespace: &self.server_namespace,
            service: &self.service,
            mtls: if self.mtls { "true" } else { "false" },
        }
    }

    /// Claims the place, a row, in which the requests of this edge are counted. It is in `rows`, the memory that the
    /// aggregator of flows reads, or, if that is full, in memory that no other process reads.
    pub(crate) fn claim(&self, rows: &Rc<Rows>) -> Row {
        let of = |rows: &Rc<Rows>| rows.claim(&self.shared());
        let private = || of(&Rows::new(WorkerMemory::private()));
        of(rows).or_else(private).expect("new memory has free rows")
    }
}

/// What requests are counted on: an edge, or a client of an edge about which the access log may know more than the
/// edge.
pub trait Logged {
    /// The edge on which requests are counted.
    fn edge(&self) -> &Edge;

    /// The client and the server in lines of the access log. On the inbound side an edge has only the client's service
    /// account; the log has the client's instance if it is known.
    fn logged(&self) -> Cow<'_, EdgeLabels> {
        Cow::Borrowed(self.edge().labels())
    }
}

impl Logged for Edge {
    fn edge(&self) -> &Edge {
        self
    }
}

impl<T: Logged> Logged for Rc<T> {
    fn edge(&self) -> &Edge {
        T::edge(self)
    }

    fn logged(&self) -> Cow<'_, EdgeLabels> {
        T::logged(self)
    }
}

/// The counts of one edge on one worker.
#[derive(Debug)]
pub struct Edge {
    pub(crate) labels: EdgeLabels,
    pub(crate) answers: Answers,
    /// Statuses by class, gRPC statuses and durations. They are in memory that the aggregator of flows can read, too.
    pub(crate) row: Row,
    /// The durations in the buckets of native histograms.
    pub(crate) native: NativeHistogram,
    pub(crate) tcp_opened: Cell<u64>,
    pub(crate) tcp_closed: Cell<u64>,
    pub(crate) read_bytes: Cell<u64>,
    pub(crate) written_bytes: Cell<u64>,
    pub(crate) connect_failures: Cell<u64>,
    pub(crate) retries: Cell<u64>,
    /// Why this worker has ejected the server; `None` if it has not.
    pub(crate) ejected: Cell<Option<&'static str>>,
    /// When a handle of the edge or an open connection was last seen. Not updated by each request.
    pub(crate) used_at: Cell<Instant>,
    /// The last request with a span in each bucket of durations. `None` before the first one.
    pub(crate) exemplars: RefCell<Option<Box<Exemplars>>>,
}

impl Edge {
    pub(crate) fn new(labels: EdgeLabels, row: Row, now: Instant) -> Self {
        Self {
            labels,
            answers: Answers::default(),
            row,
            native: NativeHistogram::default(),
            tcp_opened: Cell::new(0),
            tcp_closed: Cell::new(0),
            read_bytes: Cell::new(0),
            written_bytes: Cell::new(0),
            connect_failures: Cell::new(0),
            retries: Cell::new(0),
            ejected: Cell::new(None),
            used_at: Cell::new(now),
            exemplars: RefCell::default(),
        }
    }

    /// The client and the server.
    #[must_use]
    pub fn labels(&self) -> &EdgeLabels {
        &self.labels
    }

    /// Counts a request that the server or the mesh answered with `status` after `duration`.
    pub fn request(&self, status: u16, duration: Duration) {
        self.answers.status(status);
        self.row.request(status, duration);
        self.native.count(duration);
    }

    /// Keeps a request that has a span as the exemplar of its bucket of durations, in place of the earlier one.
    pub(crate) fn exemplify(&self, duration: Duration, ids: TraceIds) {
        let mut exemplars = self.exemplars.borrow_mut();
        let bucket = exemplars.get_or_insert_default().get_mut(bucket_of(duration));
        if let Some(place) = bucket {
            *place = Some(Exemplar::now(duration, ids));
        }
    }

    /// Counts a gRPC call that ended with this `grpc-status`. `http` is the HTTP status with which it is counted as a
    /// request.
    pub fn grpc(&self, status: u8, http: u16) {
        self.answers.grpc(status, http);
        self.row.grpc(status);
    }

    /// Counts a request or connection that the mesh itself failed, by cause.
    pub fn error(&self, cause: &'static str) {
        self.answers.error(cause);
    }

    /// Counts a new opaque connection. [`Self::tcp_closed`] must follow.
    pub fn tcp_opened(&self) {
        add(&self.tcp_opened, 1);
    }

    /// Counts the end of an opaque connection.
    pub fn tcp_closed(&self) {
        add(&self.tcp_closed, 1);
    }

    /// Counts bytes: `read` from the client, `written` to the client.
    pub fn bytes(&self, read: u64, written: u64) {
        add(&self.read_bytes, read);
        add(&self.written_bytes, written);
    }

    /// Counts bytes of a relay, which came from the client or went to it.
    pub fn moved(&self, from_client: bool, count: u64) {
        add(if from_client { &self.read_bytes } else { &self.written_bytes }, count);
    }

    /// Counts a failed attempt to connect to the server.
    pub fn connect_failure(&self) {
        add(&self.connect_failures, 1);
    }

    /// Counts a request or connection that was tried again on another endpoint or connection.
    pub fn retry(&self) {
        add(&self.retries, 1);
    }

    /// Records that this worker has ejected the server of this edge, for `reason`. This holds until
    /// [`forget_ejected`](crate::Registry::forget_ejected).
    pub fn ejected(&self, reason: &'static str) {
        self.ejected.set(Some(reason));
    }

    /// Whether an opaque connection is open on this edge. Requests in flight are not known here.
    pub(crate) fn is_open(&self) -> bool {
        self.tcp_opened.get() > self.tcp_closed.get()
    }
}

fn add(cell: &Cell<u64>, count: u64) {
    cell.set(cell.get().wrapping_add(count));
}
