//! Signs from the counters of `leno up` itself: TCP segments that were lost, and failed DNS lookups.

use std::collections::HashMap;
use std::net::IpAddr;

use leno_dashboard::api::{Sign, SignKind};
use leno_observe::metrics::Sample;
use leno_observe::stat::NamespacedName;

use super::super::ObservedStatus;
use super::SPAN;
use crate::dns::{FAILED_LOOKUPS, NO_SUCH_NAME};

/// Loss is reported from this many retransmitted segments and this share of the sent segments on.
const MIN_LOST: f64 = 5.0;
const MIN_SHARE: f64 = 0.02;
/// An unknown name is reported from this many failed lookups on.
const MIN_LOOKUPS: f64 = 3.0;

/// The counters of one page of metrics.
#[derive(Default)]
pub(super) struct CounterPage {
    /// Segments sent and segments retransmitted, by workload and peer.
    segments: HashMap<(NamespacedName, NamespacedName), [f64; 2]>,
    /// Failed lookups by the address of the client, the name and the reason.
    lookups: HashMap<(IpAddr, String, String), f64>,
}

impl CounterPage {
    /// The counters in the samples of the page.
    pub(super) fn of(samples: &[Sample]) -> Self {
        let mut wire = Self::default();
        for sample in samples {
            let label = |name: &str| sample.labels.get(name).cloned().unwrap_or_default();
            let at = match sample.name.as_str() {
                "leno_flow_segments_total" if label("direction") == "sent" => 0,
                "leno_flow_retransmits_total" => 1,
                FAILED_LOOKUPS => {
                    if let Ok(client) = label("client").parse() {
                        let key = (client, label("name"), label("reason"));
                        *wire.lookups.entry(key).or_default() += sample.value;
                    }
                    continue;
                }
                _ => continue,
            };
            let peer = match (label("peer_namespace"), label("peer_workload")) {
                (namespace, name) if !namespace.is_empty() => (namespace, name),
                (none, name) if name == "outside" => (none, "(outside)".to_owned()),
                _ => continue,
            };
            let own = (label("namespace"), label("workload"));
            wire.segments.entry((own, peer)).or_default()[at] += sample.value;
        }
        wire
    }

    pub(super) fn signs(&self, before: &Self, observed: &ObservedStatus) -> Vec<Sign> {
        let mut found = Vec::new();
        for ((own, peer), now) in &self.segments {
            let key = (own.clone(), peer.clone());
            let then = before.segments.get(&key).copied().unwrap_or_default();
            let (sent, lost) = (now[0] - then[0], now[1] - then[1]);
            if lost >= MIN_LOST && lost >= MIN_SHARE * sent {
                let share = 100.0 * lost / sent.max(lost);
                let peer = match peer {
                    (namespace, name) if namespace.is_empty() => name.clone(),
                    (namespace, name) => format!("{namespace}/{name}"),
                };
                let line = format!(
                    "{share:.0} % of the TCP segments from {}/{} to {peer} were retransmitted",
                    own.0, own.1
                );
                found.push(Sign::seen(SignKind::Lossy, (&own.0, &own.1), peer, line));
            }
        }
        for (key, now) in &self.lookups {
            let count = now - before.lookups.get(key).copied().unwrap_or_default();
            let (client, name, reason) = key;
            let of = |one: &&super::super::ObservedInstance| one.addresses.contains(client);
            let Some(one) = observed.instances.iter().find(of) else { continue };
            if count >= MIN_LOOKUPS {
                let why = match &**reason {
                    NO_SUCH_NAME => "the name does not exist",
                    _ => "no resolver answers",
                };
                let line = format!(
                    "{} has looked up {name} {count:.0} times in {} s: {why}",
                    one.name,
                    SPAN.as_secs()
                );
                let of = (&*one.namespace, &*one.workload);
                found.push(Sign::seen(SignKind::UnknownName, of, name.clone(), line));
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use leno_observe::metrics;

    use super::super::super::tests::instance;
    use super::*;

    #[test]
    fn lost_segments_and_names_are_named() {
        let page = |sent: u32, lost: u32, lookups: u32| {
            let pair =
                "namespace=\"shop\",workload=\"web\",peer_namespace=\"shop\",peer_workload=\"db\"";
            CounterPage::of(&metrics::parse(&format!(
                "leno_flow_segments_total{{{pair},direction=\"sent\"}} {sent}\n\
                 leno_flow_retransmits_total{{{pair}}} {lost}\n\
                 {FAILED_LOOKUPS}{{client=\"10.89.0.2\",name=\"cat.shop\",reason=\"{NO_SUCH_NAME}\"}} {lookups}\n"
            )))
        };
        let address = "10.89.0.2".parse().unwrap();
        let observed = ObservedStatus {
            mesh: "default".to_owned(),
            controller: None,
            gateway: "10.89.0.1".parse().unwrap(),
            needs_controller: true,
            refused_edit: None,
            edits: Vec::new(),
            instances: vec![super::super::super::ObservedInstance {
                addresses: vec![address],
                ..instance(0)
            }],
        };
        let lines = |now: CounterPage| -> Vec<String> {
            now.signs(&page(1_000, 10, 4), &observed).into_iter().map(|sign| sign.line).collect()
        };
        assert!(lines(page(1_100, 11, 6)).is_empty());
        assert_eq!(
            lines(page(1_100, 20, 9)),
            [
                "10 % of the TCP segments from shop/web to shop/db were retransmitted",
                "web-0 has looked up cat.shop 5 times in 30 s: the name does not exist",
            ]
        );
    }
}
