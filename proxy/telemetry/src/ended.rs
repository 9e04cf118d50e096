//! The counts of workers that have ended while their proxy continues.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::audited::MAX_AUDITED;
use crate::edge::EdgeLabels;
use crate::forgotten::MAX_FORGOTTEN;
use crate::registry::{EDGE_IDLE, MAX_AUTHORIZATION_POLICIES, MAX_EDGES, MAX_TLS_NAMES};
use crate::render::workload_of;
use crate::route::MAX_ROUTES;
use crate::snapshot::{EdgeCounts, Snapshot};

/// The sum of the counts of ended workers. It has no more entries than one worker may have: beyond that, entries that
/// no other worker has are dropped.
#[derive(Debug, Default)]
pub struct EndedCounts {
    sum: Snapshot,
    /// For each edge that a worker still showed when it ended: until when it is shown.
    shown: BTreeMap<EdgeLabels, Instant>,
}

impl EndedCounts {
    /// Adds the last counts of a worker that ends `now`; `others` are the counts of those that go on.
    pub fn add(&mut self, last: Snapshot, others: &[&Snapshot], now: Instant) {
        let until = now.checked_add(EDGE_IDLE).unwrap_or(now);
        let live = last.edges.iter().filter(|(_, counts)| counts.live);
        self.shown.extend(live.map(|(labels, _)| (labels.clone(), until)));
        self.sum.add(of_ended(last));
        let Snapshot { edges, forgotten, routes, tls_names, authorization, .. } = &mut self.sum;
        let is_used = |labels: &EdgeLabels| others.iter().any(|one| one.edges.contains_key(labels));
        for (labels, counts) in forget(edges, MAX_EDGES, is_used) {
            let server = workload_of(&labels.server).into();
            let sum = forgotten.entry(EdgeLabels { server, ..labels }).or_default();
            sum.add(&counts);
            // The sums of dropped edges are only used for the metrics of other meshes, which have neither exemplars nor
            // native buckets.
            sum.exemplars.clear();
            sum.native = Default::default();
        }
        self.shown.retain(|labels, _| edges.contains_key(labels));
        while forgotten.len() > MAX_FORGOTTEN {
            forgotten.pop_first();
        }
        forget(routes, MAX_ROUTES, |of| others.iter().any(|one| one.routes.contains_key(of)));
        forget(tls_names, MAX_TLS_NAMES, |of| {
            others.iter().any(|one| one.tls_names.contains_key(of))
        });
        forget(authorization, MAX_AUTHORIZATION_POLICIES, |of| {
            others.iter().any(|one| one.authorization.contains_key(of))
        });
        self.sum.audited.forget_beyond(MAX_AUDITED);
    }

    /// The sum. Its edges are shown for as long as unused ones of a worker: otherwise what was counted after the last
    /// scrape would never be seen.
    #[must_use]
    pub fn counts(&mut self, now: Instant) -> &Snapshot {
        self.shown.retain(|_, until| *until > now);
        for (labels, counts) in &mut self.sum.edges {
            counts.live = self.shown.contains_key(labels);
        }
        &self.sum
    }
}

/// Clears what a worker that has ended cannot have: open connections and ejected endpoints.
fn of_ended(mut last: Snapshot) -> Snapshot {
    for edge in last.edges.values_mut() {
        let (tcp_closed, ejected) = (edge.tcp_opened, BTreeMap::new());
        *edge = EdgeCounts { tcp_closed, ejected, live: false, ..std::mem::take(edge) };
    }
    last
}

/// If there are more than `most` entries, removes those that are not used, and returns them.
fn forget<K: Ord, V>(
    counts: &mut BTreeMap<K, V>,
    most: usize,
    is_used: impl Fn(&K) -> bool,
) -> BTreeMap<K, V> {
    if counts.len() <= most {
        return BTreeMap::new();
    }
    let (used, forgotten) = std::mem::take(counts).into_iter().partition(|(of, _)| is_used(of));
    *counts = used;
    forgotten
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Direction, Registry};

    fn labels(client: &str) -> EdgeLabels {
        EdgeLabels {
            direction: Direction::Inbound,
            client: client.into(),
            client_namespace: "shop".into(),
            client_trust_domain: "".into(),
            server: "web-0".into(),
            server_namespace: "shop".into(),
            service: "".into(),
            mtls: true,
        }
    }

    /// The counts of a worker that has served one connection of each of these clients.
    fn served(clients: impl IntoIterator<Item = String>) -> Snapshot {
        let registry = Registry::new();
        for client in clients {
            registry.edge(&labels(&client)).tcp_opened();
        }
        registry.snapshot()
    }

    #[test]
    fn what_ended_workers_have_counted_is_kept_up_to_a_bound() {
        let (mut ended, now) = (EndedCounts::default(), Instant::now());
        let other = served(["lasting".to_owned()]);
        let add = |ended: &mut EndedCounts, from: usize, count: usize| {
            let passing = (from..from + count).map(|number| format!("client-{number}"));
            ended.add(served(passing.chain(["lasting".to_owned()])), &[&other], now);
        };
        let opened = |ended: &mut EndedCounts| -> u64 {
            let counts = ended.counts(now);
            counts.edges.values().chain(counts.forgotten.values()).map(|one| one.tcp_opened).sum()
        };
        add(&mut ended, 0, 100);
        let first = &ended.counts(now).edges[&labels("client-0")];
        assert_eq!(first.tcp_closed, 1, "its connection has ended with it");
        add(&mut ended, 100, 100);
        assert_eq!((ended.counts(now).edges.len(), opened(&mut ended)), (201, 202));
        add(&mut ended, 200, 100);
        let edges = &ended.counts(now).edges;
        assert_eq!(edges.keys().collect::<Vec<_>>(), [&labels("lasting")], "not bounded");
        assert_eq!(edges[&labels("lasting")].tcp_opened, 3);
        assert!(ended.counts(now).forgotten.len() <= MAX_FORGOTTEN && opened(&mut ended) > 250);
        assert_eq!(ended.shown.len(), 1, "not bounded");
    }

    /// Regression: what a short-lived client had requested disappeared before the next scrape.
    #[test]
    fn what_an_ended_worker_has_counted_is_shown_for_as_long_as_of_one_that_goes_on() {
        let (mut ended, now) = (EndedCounts::default(), Instant::now());
        ended.add(served(["client".to_owned()]), &[], now);
        let shown = |ended: &mut EndedCounts, at: Instant| ended.counts(at).shown().count();
        assert_eq!(shown(&mut ended, now), 1);
        // A worker that does not show it any more changes nothing.
        let mut idle = served(["client".to_owned()]);
        idle.edges.values_mut().for_each(|counts| counts.live = false);
        ended.add(idle, &[], now + EDGE_IDLE / 2);
        assert_eq!(shown(&mut ended, now + EDGE_IDLE / 2), 1);
        assert_eq!(shown(&mut ended, now + EDGE_IDLE), 0);
        assert_eq!(ended.counts(now + EDGE_IDLE).edges[&labels("client")].tcp_opened, 2);
    }
}
