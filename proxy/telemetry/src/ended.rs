//! The counts of workers that have ended while their proxy continues.

use std::collections::BTreeMap;

use crate::audited::MAX_AUDITED;
use crate::edge::EdgeLabels;
use crate::forgotten::MAX_FORGOTTEN;
use crate::registry::{MAX_AUTHORIZATION_POLICIES, MAX_EDGES, MAX_TLS_NAMES};
use crate::render::workload_of;
use crate::route::MAX_ROUTES;
use crate::snapshot::{EdgeCounts, Snapshot};

/// The sum of these counts. It takes no more memory than one worker may use: beyond that, series that no other worker
/// has are dropped.
#[derive(Debug, Default)]
pub struct EndedCounts(Snapshot);

impl EndedCounts {
    /// Adds the last counts of a worker; `others` are the counts of the workers that continue.
    pub fn add(&mut self, last: Snapshot, others: &[&Snapshot]) {
        self.0.add(of_ended(last));
        let Snapshot { edges, forgotten, routes, tls_names, authorization, .. } = &mut self.0;
        let is_used = |labels: &EdgeLabels| others.iter().any(|one| one.edges.contains_key(labels));
        for (labels, counts) in forget(edges, MAX_EDGES, is_used) {
            let server = workload_of(&labels.server).into();
            let sum = forgotten.entry(EdgeLabels { server, ..labels }).or_default();
            sum.add(&counts);
            // These values belong to a single edge, so they have no sum.
            sum.exemplars.clear();
            sum.native = Default::default();
        }
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
        self.0.audited.forget_beyond(MAX_AUDITED);
    }

    /// The sum.
    #[must_use]
    pub fn counts(&self) -> &Snapshot {
        &self.0
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
        let mut ended = EndedCounts::default();
        let other = served(["lasting".to_owned()]);
        let add = |ended: &mut EndedCounts, from: usize, count: usize| {
            let passing = (from..from + count).map(|number| format!("client-{number}"));
            ended.add(served(passing.chain(["lasting".to_owned()])), &[&other]);
        };
        let opened = |ended: &EndedCounts| -> u64 {
            let counts = ended.counts();
            counts.edges.values().chain(counts.forgotten.values()).map(|one| one.tcp_opened).sum()
        };
        add(&mut ended, 0, 100);
        let first = &ended.counts().edges[&labels("client-0")];
        assert_eq!((first.tcp_closed, first.live), (1, false), "its connection has ended with it");
        add(&mut ended, 100, 100);
        assert_eq!((ended.counts().edges.len(), opened(&ended)), (201, 202));
        add(&mut ended, 200, 100);
        let edges = &ended.counts().edges;
        assert_eq!(edges.keys().collect::<Vec<_>>(), [&labels("lasting")], "not bounded");
        assert_eq!(edges[&labels("lasting")].tcp_opened, 3);
        assert!(ended.counts().forgotten.len() <= MAX_FORGOTTEN && opened(&ended) > 250);
    }
}
