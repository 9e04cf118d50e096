//! The registry of one worker.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::counter::{Counter, Counters};
use crate::edge::{Edge, EdgeLabels};
use crate::snapshot::Snapshot;

/// Most edges a worker counts one by one. An edge is about 40 series and 500 bytes; a workload
/// calls tens of others, so this is a bound against a flood, not a limit in practice.
pub const MAX_EDGES: usize = 512;
/// How long an edge is kept that nobody holds and nothing is counted on.
pub const EDGE_IDLE: Duration = Duration::from_secs(600);

/// Everything one worker counts. Shared within its thread by `Rc`.
#[derive(Debug)]
pub struct Registry {
    counters: Counters,
    edges: RefCell<HashMap<EdgeLabels, Rc<Edge>>>,
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
        Self { counters: Counters::new(), edges: RefCell::default() }
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
        Rc::clone(edges.entry(labels).or_insert_with(|| Rc::new(Edge::new(now))))
    }

    /// Everything counted so far, to be sent to another thread. Forgets edges that are idle.
    pub fn snapshot(&self) -> Snapshot {
        let mut edges = self.edges.borrow_mut();
        forget_idle(&mut edges, Instant::now());
        Snapshot::of(self.counters.values(), &edges)
    }
}

fn forget_idle(edges: &mut HashMap<EdgeLabels, Rc<Edge>>, now: Instant) {
    edges.retain(|_, edge| {
        let held = Rc::strong_count(edge) > 1 || edge.is_open();
        if held {
            edge.used_at.set(now);
        }
        held || now.duration_since(edge.used_at.get()) < EDGE_IDLE
    });
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
