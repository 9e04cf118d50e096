//! Counts requests of unencrypted traffic by name, for metrics and for lists.

use std::collections::{BTreeMap, BTreeSet};

use leno_bpf_abi::flow::{FlowRole, FlowWireKey, FlowWireRequests};
use leno_requests::Histogram;
use serde::{Deserialize, Serialize};

use super::protocol::Protocol;
use super::rows::{PEER_OTHER, Rows, durations_of};
use crate::connection::{FlowPeer, WorkloadNames, name_of, peer_of};
use crate::metrics::{FamilyText, WIRE_DURATION, WIRE_REQUESTS, peer_labels};
use crate::requests::{add_histogram, quantile_ms};

/// Most pairs, each of one protocol, that have a separate histogram of about 12 series. The durations of further
/// pairs are counted under `other`. The number of counters is bounded by the kernel's table.
const MAX_PAIRS: usize = 500;

/// The number of requests of one kind, read from samples of unencrypted payload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WireRow {
    /// The workload's namespace.
    pub namespace: String,
    /// The workload whose frames were sampled.
    pub workload: String,
    /// The other end.
    pub peer: FlowPeer,
    /// `client` if the workload has sent the requests, `server` if it has received them.
    pub role: String,
    /// The protocol, such as `http1` or `redis`.
    pub protocol: String,
    /// The kind of request: a method or a command.
    pub kind: String,
    /// The result: a class of status, `ok` or `error`; `unanswered`; or `unseen` if the samples do not show it.
    pub result: String,
    /// How many.
    pub requests: u64,
    /// The mean time from the request's first byte to the response's, in milliseconds.
    pub mean_ms: f64,
    /// The upper bound of the bucket that contains the median, in milliseconds; `None` if it is above 10 s, or if no
    /// response was seen.
    pub p50_ms: Option<f64>,
    /// As [`p50_ms`](Self::p50_ms), for the 99th percentile.
    pub p99_ms: Option<f64>,
}

/// The key of a row.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct WireKey {
    pair: WirePair,
    kind: String,
    result: String,
}

/// The key by which durations are summed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct WirePair {
    /// The namespace, the workload and the peer; `None` for pairs beyond the bound.
    of: Option<(String, String, FlowPeer)>,
    role: &'static str,
    protocol: &'static str,
}

/// The last published counters.
#[derive(Debug, Default)]
pub(crate) struct PublishedWire {
    rows: BTreeMap<WireKey, u64>,
    /// The pairs that have separate histograms, which are those that were seen first.
    shown: BTreeSet<WirePair>,
    /// The other pairs. The durations of pairs that no longer exist are kept, because those of `other` must not
    /// decrease.
    beyond: BTreeSet<WirePair>,
    forgotten: BTreeMap<WirePair, Histogram>,
    durations: BTreeMap<WirePair, Histogram>,
    folded: u64,
}

impl PublishedWire {
    pub(crate) fn take_in(&mut self, rows: &Rows, names: &WorkloadNames) {
        self.rows.clear();
        self.durations.clone_from(&self.forgotten);
        self.folded = rows.folded();
        for (key, row) in rows.all() {
            let of = row_of(key, names);
            let pair = self.within_budget(of.pair.clone());
            self.durations.entry(pair).or_default().add(&durations_of(row));
            *self.rows.entry(of).or_default() += row.requests;
        }
    }

    /// How many requests are counted under `other` because there was no room for their row.
    pub(crate) fn folded(&self) -> u64 {
        self.folded
    }

    fn within_budget(&mut self, pair: WirePair) -> WirePair {
        if self.shown.contains(&pair) {
            return pair;
        }
        if pair.of.is_some() && self.shown.len() < MAX_PAIRS && !self.beyond.contains(&pair) {
            self.shown.insert(pair.clone());
            return pair;
        }
        let other = WirePair { of: None, ..pair.clone() };
        self.beyond.insert(pair);
        other
    }

    /// Forgets these rows, and all other rows of their pairs.
    pub(crate) fn forget(
        &mut self,
        rows: &[(FlowWireKey, FlowWireRequests)],
        names: &WorkloadNames,
    ) {
        let mut pairs = BTreeSet::new();
        for (key, row) in rows {
            let pair = row_of(key, names).pair;
            if self.beyond.contains(&pair) {
                let other = WirePair { of: None, ..pair.clone() };
                self.forgotten.entry(other).or_default().add(&durations_of(row));
            }
            pairs.insert(pair);
        }
        for pair in pairs {
            self.shown.remove(&pair);
            self.beyond.remove(&pair);
        }
    }
}

fn row_of(key: &FlowWireKey, names: &WorkloadNames) -> WireKey {
    let (namespace, workload) = name_of(names, key.workload);
    let peer = match key.peer {
        PEER_OTHER => FlowPeer::Workload { namespace: String::new(), workload: "other".to_owned() },
        peer => peer_of(names, peer),
    };
    let of = (namespace, workload, peer);
    let pair = WirePair {
        of: (key.workload != 0).then_some(of),
        role: FlowRole::of(key.role).map_or("?", FlowRole::name),
        protocol: Protocol::name_of(key.protocol),
    };
    WireKey { pair, kind: text(&key.kind), result: text(&key.result) }
}

fn text(bytes: &[u8; 16]) -> String {
    let word = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(word).into_owned()
}

/// The rows of the kernel's table with their names.
pub(crate) fn list(all: &[(FlowWireKey, FlowWireRequests)], names: &WorkloadNames) -> Vec<WireRow> {
    let mut sums: BTreeMap<WireKey, (u64, Histogram)> = BTreeMap::new();
    for (key, row) in all {
        let (requests, durations) = sums.entry(row_of(key, names)).or_default();
        *requests += row.requests;
        durations.add(&durations_of(row));
    }
    let row = |(of, (requests, durations)): (WireKey, (u64, Histogram))| {
        let other = || (String::new(), "other".to_owned(), FlowPeer::Outside);
        let (namespace, workload, peer) = of.pair.of.unwrap_or_else(other);
        WireRow {
            namespace,
            workload,
            peer,
            role: of.pair.role.to_owned(),
            protocol: of.pair.protocol.to_owned(),
            kind: of.kind,
            result: of.result,
            requests,
            mean_ms: durations.sum_s() * 1e3 / durations.count().max(1) as f64,
            p50_ms: (durations.count() > 0).then(|| quantile_ms(&durations, 0.5)).flatten(),
            p99_ms: (durations.count() > 0).then(|| quantile_ms(&durations, 0.99)).flatten(),
        }
    };
    sums.into_iter().map(row).collect()
}

/// Adds the samples of one family.
pub(crate) fn add_family(
    page: &mut leno_program::Family<'_>,
    family: FamilyText,
    published: &PublishedWire,
) {
    match family {
        WIRE_REQUESTS => {
            for (row, count) in &published.rows {
                let more = [("kind", &*row.kind), ("result", &row.result)];
                page.sample(&[&labels(&row.pair)[..], &more].concat(), *count);
            }
        }
        WIRE_DURATION => {
            for (pair, durations) in &published.durations {
                add_histogram(page, &labels(pair), durations);
            }
        }
        _ => {}
    }
}

fn labels(pair: &WirePair) -> [(&'static str, &str); 6] {
    let [namespace, workload, peer_namespace, peer_workload] = peer_labels(pair.of.as_ref());
    [
        namespace,
        workload,
        peer_namespace,
        peer_workload,
        ("role", pair.role),
        ("protocol", pair.protocol),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::conversation::Exchange;
    use super::super::conversations;
    use super::super::protocol::Protocol;
    use super::*;

    #[test]
    fn durations_of_other_never_fall_when_workloads_are_forgotten() {
        let (mut rows, mut published) = (Rows::default(), PublishedWire::default());
        let exchange =
            Exchange { protocol: Protocol::Http1, kind: "GET", result: "2xx", took_ns: Some(1) };
        let workloads = 3..20;
        let names: WorkloadNames =
            workloads.clone().map(|id| (id, ("shop".to_owned(), format!("w{id}")))).collect();
        for workload in workloads.clone() {
            for peer in 0..200 {
                let peer = if peer == 0 { 0 } else { peer + 2 };
                rows.count(conversations::ExchangePair { workload, peer, role: 0 }, exchange);
            }
        }
        let names: WorkloadNames =
            (20..203).map(|id| (id, ("shop".to_owned(), format!("p{id}")))).chain(names).collect();
        published.take_in(&rows, &names);
        let other = |published: &PublishedWire| -> u64 {
            let others = published.durations.iter().filter(|(pair, _)| pair.of.is_none());
            others.map(|(_, durations)| durations.count()).sum()
        };
        let before = other(&published);
        assert_eq!(before, 17 * 200 - MAX_PAIRS as u64);
        // The pairs of the first workload have separate histograms, and those of the last one have not.
        let gone = rows.forget(|id| id != 3 && id != 19);
        assert_eq!(gone.len(), 400);
        published.forget(&gone, &names);
        published.take_in(&rows, &names);
        assert_eq!(other(&published), before);
        assert_eq!(published.shown.len(), MAX_PAIRS - 200);
        // Later pairs use the histograms that are free now.
        let late = conversations::ExchangePair { workload: 20, peer: 0, role: 0 };
        rows.count(late, exchange);
        published.take_in(&rows, &names);
        assert_eq!((other(&published), published.shown.len()), (before, MAX_PAIRS - 199));
    }
}
