//! One edge: a client, a server, and everything counted between them.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::histogram::Histogram;

/// Statuses counted one by one; more of them on one edge are counted as 0. HTTP defines about 60.
const MAX_STATUSES: usize = 80;
/// gRPC statuses counted one by one; more of them are counted as 2 (UNKNOWN). gRPC defines 17.
const MAX_GRPC_STATUSES: usize = 17;
/// Causes counted one by one. They are constants of the code, so this is never reached.
const MAX_CAUSES: usize = 64;

/// Which proxy counted, seen from its workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    /// The server's proxy.
    Inbound,
    /// The client's proxy.
    Outbound,
}

impl Direction {
    /// The label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Inbound => "inbound",
            Self::Outbound => "outbound",
        }
    }
}

/// Who calls whom. Parts that are not known are empty.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EdgeLabels {
    /// Which side counted.
    pub direction: Direction,
    /// The client workload; on the inbound side the service account of its identity.
    pub client: Arc<str>,
    /// The client's namespace.
    pub client_namespace: Arc<str>,
    /// The server workload.
    pub server: Arc<str>,
    /// The server's namespace.
    pub server_namespace: Arc<str>,
    /// The service through which the client called, outbound only.
    pub service: Arc<str>,
    /// Whether the connection between the proxies is mTLS.
    pub mtls: bool,
}

/// The counts of one edge on one worker.
#[derive(Debug)]
pub struct Edge {
    pub(crate) labels: EdgeLabels,
    pub(crate) statuses: RefCell<Vec<(u16, u64)>>,
    pub(crate) grpc: RefCell<Vec<(u8, u64)>>,
    pub(crate) errors: RefCell<Vec<(&'static str, u64)>>,
    pub(crate) durations: RefCell<Histogram>,
    pub(crate) tcp_opened: Cell<u64>,
    pub(crate) tcp_closed: Cell<u64>,
    pub(crate) read_bytes: Cell<u64>,
    pub(crate) written_bytes: Cell<u64>,
    pub(crate) connect_failures: Cell<u64>,
    pub(crate) retries: Cell<u64>,
    pub(crate) used_at: Cell<Instant>,
}

impl Edge {
    pub(crate) fn new(labels: EdgeLabels, now: Instant) -> Self {
        Self {
            labels,
            statuses: RefCell::default(),
            grpc: RefCell::default(),
            errors: RefCell::default(),
            durations: RefCell::default(),
            tcp_opened: Cell::new(0),
            tcp_closed: Cell::new(0),
            read_bytes: Cell::new(0),
            written_bytes: Cell::new(0),
            connect_failures: Cell::new(0),
            retries: Cell::new(0),
            used_at: Cell::new(now),
        }
    }

    /// Who calls whom on it.
    #[must_use]
    pub fn labels(&self) -> &EdgeLabels {
        &self.labels
    }

    /// A request was answered with `status`, by the server or by the mesh, after `duration`.
    pub fn request(&self, status: u16, duration: Duration) {
        count(&mut self.statuses.borrow_mut(), status, 0, MAX_STATUSES);
        self.durations.borrow_mut().observe(duration);
    }

    /// A gRPC call came to this `grpc-status`.
    pub fn grpc(&self, status: u8) {
        count(&mut self.grpc.borrow_mut(), status, 2, MAX_GRPC_STATUSES);
    }

    /// The mesh itself failed a request or connection, for `cause`.
    pub fn error(&self, cause: &'static str) {
        count(&mut self.errors.borrow_mut(), cause, "other", MAX_CAUSES);
    }

    /// An opaque connection was opened; [`Self::tcp_closed`] must follow.
    pub fn tcp_opened(&self) {
        add(&self.tcp_opened, 1);
    }

    /// An opaque connection ended.
    pub fn tcp_closed(&self) {
        add(&self.tcp_closed, 1);
    }

    /// Bytes that the workload's side sent towards the server, or received from it.
    pub fn bytes(&self, read: u64, written: u64) {
        add(&self.read_bytes, read);
        add(&self.written_bytes, written);
    }

    /// Bytes of a relay, from the client or towards it.
    pub fn moved(&self, from_client: bool, count: u64) {
        add(if from_client { &self.read_bytes } else { &self.written_bytes }, count);
    }

    /// No connection to the server could be made.
    pub fn connect_failure(&self) {
        add(&self.connect_failures, 1);
    }

    /// A request or connection was tried again on another endpoint or connection.
    pub fn retry(&self) {
        add(&self.retries, 1);
    }

    /// Whether anything is still counted on it, as far as the edge can know.
    pub(crate) fn is_open(&self) -> bool {
        self.tcp_opened.get() > self.tcp_closed.get()
    }
}

fn add(cell: &Cell<u64>, count: u64) {
    cell.set(cell.get() + count);
}

/// Finds the entry by a walk: an edge sees a handful of statuses.
fn count<K: PartialEq>(entries: &mut Vec<(K, u64)>, key: K, other: K, bound: usize) {
    let key = if entries.len() < bound || entries.iter().any(|entry| entry.0 == key) {
        key
    } else {
        other
    };
    match entries.iter_mut().find(|entry| entry.0 == key) {
        Some(entry) => entry.1 += 1,
        None => entries.push((key, 1)),
    }
}
