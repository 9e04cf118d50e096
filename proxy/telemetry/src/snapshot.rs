//! Copies of a worker's counts that can be sent to another thread and added to the counts of other workers.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use leno_requests::Histogram;

use crate::answers::AnswerCounts;
use crate::audited::{AuditedRequest, AuditedRequests};
use crate::counter::Counter;
use crate::edge::{Direction, Edge, EdgeLabels};
use crate::exemplar::{self, Exemplar};
use crate::native::NativeCounts;
use crate::registry::Decisions;
use crate::route::{RouteCounters, RouteCounts, RouteLabels};

/// The counts of one worker, or the sum of several.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    pub(crate) counters: Vec<u64>,
    pub(crate) edges: BTreeMap<EdgeLabels, EdgeCounts>,
    /// The counts of edges that were dropped, by labels in which the server is a workload.
    pub(crate) forgotten: BTreeMap<EdgeLabels, EdgeCounts>,
    /// The counts of routes that requests have followed.
    pub(crate) routes: BTreeMap<RouteLabels, RouteCounts>,
    pub(crate) abuses: BTreeMap<&'static str, u64>,
    pub(crate) tls_names: BTreeMap<(Direction, Box<str>), u64>,
    /// Counts of authorization, by decision and policy.
    pub(crate) authorization: BTreeMap<(&'static str, Box<str>), u64>,
    pub(crate) audited: AuditedRequests,
}

/// The counts of one edge.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct EdgeCounts {
    pub(crate) answers: AnswerCounts,
    pub(crate) durations: Histogram,
    pub(crate) native: NativeCounts,
    /// The last request with a span, by the bucket of its duration.
    pub(crate) exemplars: BTreeMap<usize, Exemplar>,
    pub(crate) tcp_opened: u64,
    pub(crate) tcp_closed: u64,
    pub(crate) read_bytes: u64,
    pub(crate) written_bytes: u64,
    pub(crate) connect_failures: u64,
    pub(crate) retries: u64,
    /// The number of workers that eject the server now, by reason.
    pub(crate) ejected: BTreeMap<&'static str, u64>,
    /// Whether any worker has used the edge recently.
    pub(crate) live: bool,
}

impl Snapshot {
    /// A snapshot in which only this counter is not zero. A thread without a [`Registry`](crate::Registry) uses it.
    #[must_use]
    pub fn of_counter(counter: Counter, count: u64) -> Self {
        let count_of = |one: &Counter| if *one == counter { count } else { 0 };
        Self { counters: Counter::ALL.iter().map(count_of).collect(), ..Self::default() }
    }

    pub(crate) fn of(
        counters: Vec<u64>,
        edges: &HashMap<EdgeLabels, Rc<Edge>>,
        is_live: impl Fn(&Rc<Edge>) -> bool,
    ) -> Self {
        let counts = |edge| EdgeCounts { live: is_live(edge), ..EdgeCounts::of(edge) };
        let edges = edges.iter().map(|(labels, edge)| (labels.clone(), counts(edge)));
        Self { counters, edges: edges.collect(), ..Self::default() }
    }

    pub(crate) fn with_forgotten(self, forgotten: BTreeMap<EdgeLabels, EdgeCounts>) -> Self {
        Self { forgotten, ..self }
    }

    pub(crate) fn with_routes(self, counters: &RouteCounters) -> Self {
        let counts = counters.iter().map(|(labels, counter)| (labels.clone(), counter.counts()));
        let routes = counts.filter(|(_, counts)| counts.durations.count() > 0).collect();
        Self { routes, ..self }
    }

    pub(crate) fn with_tls_names(self, tls_names: BTreeMap<(Direction, Box<str>), u64>) -> Self {
        Self { tls_names, ..self }
    }

    pub(crate) fn with_authorization(self, counters: &Decisions) -> Self {
        let counts = counters.iter().filter(|(_, counter)| counter.get() > 0);
        let authorization = counts.map(|(key, counter)| (key.clone(), counter.get())).collect();
        Self { authorization, ..self }
    }

    pub(crate) fn with_audited(self, audited: AuditedRequests) -> Self {
        Self { audited, ..self }
    }

    /// The distinct requests that audit policies have matched, and how often each occurred.
    pub fn audited(&self) -> impl Iterator<Item = (&AuditedRequest, u64)> {
        self.audited.iter()
    }

    /// How many audited requests were not kept.
    #[must_use]
    pub fn audited_not_kept(&self) -> u64 {
        self.counter(Counter::AuditedNotKept)
    }

    /// Adds the counts of HTTP/2 abuse, by kind.
    #[must_use]
    pub fn with_abuses(self, abuses: impl IntoIterator<Item = (&'static str, u64)>) -> Self {
        Self { abuses: abuses.into_iter().collect(), ..self }
    }

    /// The edges to show: those that any worker has used recently. If only the counts of workers that no longer use an
    /// edge were hidden, the sum would decrease, and Prometheus would believe that the counter was restarted.
    pub(crate) fn shown(&self) -> impl Iterator<Item = (&EdgeLabels, &EdgeCounts)> {
        self.edges.iter().filter(|(_, counts)| counts.live)
    }

    /// Adds the counts of another worker.
    pub fn add(&mut self, other: Self) {
        self.counters.resize(Counter::ALL.len(), 0);
        for (count, more) in self.counters.iter_mut().zip(other.counters) {
            *count += more;
        }
        for (labels, counts) in other.edges {
            self.edges.entry(labels).or_default().add(&counts);
        }
        for (labels, counts) in other.forgotten {
            self.forgotten.entry(labels).or_default().add(&counts);
        }
        for (labels, counts) in other.routes {
            self.routes.entry(labels).or_default().add(&counts);
        }
        for (abuse, count) in other.abuses {
            *self.abuses.entry(abuse).or_default() += count;
        }
        for (name, count) in other.tls_names {
            *self.tls_names.entry(name).or_default() += count;
        }
        for (key, count) in other.authorization {
            *self.authorization.entry(key).or_default() += count;
        }
        self.audited.add(other.audited);
    }

    pub(crate) fn counter(&self, counter: Counter) -> u64 {
        self.counters.get(counter as usize).copied().unwrap_or(0)
    }
}

impl EdgeCounts {
    pub(crate) fn of(edge: &Edge) -> Self {
        Self {
            answers: edge.answers.counts(),
            durations: edge.row.durations(),
            native: edge.native.counts(),
            exemplars: exemplar::kept(edge.exemplars.borrow().as_deref()),
            tcp_opened: edge.tcp_opened.get(),
            tcp_closed: edge.tcp_closed.get(),
            read_bytes: edge.read_bytes.get(),
            written_bytes: edge.written_bytes.get(),
            connect_failures: edge.connect_failures.get(),
            retries: edge.retries.get(),
            ejected: edge.ejected.get().into_iter().map(|reason| (reason, 1)).collect(),
            live: true,
        }
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.answers.add(&other.answers);
        self.durations.add(&other.durations);
        self.native.add(&other.native);
        for (bucket, exemplar) in &other.exemplars {
            let newest = self.exemplars.entry(*bucket).or_insert(*exemplar);
            if exemplar.at > newest.at {
                *newest = *exemplar;
            }
        }
        self.tcp_opened += other.tcp_opened;
        self.tcp_closed += other.tcp_closed;
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
        self.connect_failures += other.connect_failures;
        self.retries += other.retries;
        for (reason, workers) in &other.ejected {
            *self.ejected.entry(reason).or_default() += workers;
        }
        self.live |= other.live;
    }
}
