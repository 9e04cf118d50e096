//! What proxies report about themselves: the connection to the control plane, the certificate, the load, and the
//! decisions of their policies.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::proxy_counters::{CONNECTED, EXPIRATION, IDENTITY};
use super::{NamespacedName, Scrape};
use crate::metrics::Sample;

/// The metric that counts decisions, by policy.
const DECISIONS: &str = "leno_authorization_total";
/// The maximum number of pairs of policy and decision that are read from one proxy. Each worker of a proxy counts
/// at most this many pairs separately (`leno_telemetry::MAX_AUTHORIZATION_POLICIES`).
const MAX_DECISIONS: usize = 256;
/// The maximum number of bytes of the names in all these pairs. With [`MAX_DECISIONS`] pairs, each pair has 64
/// bytes on average.
const MAX_DECISION_BYTES: usize = 16 * 1024;
/// The start of the year 10000, in seconds since 1970. An X.509 certificate cannot end later, so a value from here
/// on does not come from a proxy.
const NO_CERTIFICATE_S: u64 = 253_402_300_800;

/// What a proxy reports about itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProxyState {
    /// Whether the control plane is connected; `None` if the proxy uses no control plane.
    pub connected: Option<bool>,
    /// The least possible age of its configuration, in seconds: the time since the control plane last answered,
    /// and 0 while the control plane is connected.
    pub configuration_age_s: f64,
    /// The number of services and workloads that it has received.
    pub resources: u64,
    /// The number of responses of the control plane that it has rejected.
    pub rejected: u64,
    /// The identity that it proves.
    pub identity: Option<String>,
    /// When its certificate expires, in seconds since 1970.
    pub certificate_ends_s: Option<u64>,
    /// The number of accepted connections that are open.
    pub connections: u64,
    /// The largest number of connections that it keeps open at once.
    pub max_connections: u64,
    /// Memory that buffers and connections use, in bytes, by the proxy's own accounting.
    pub memory_bytes: u64,
    /// The memory that buffers and connections may use, in bytes.
    pub memory_budget_bytes: u64,
    /// The number of decisions since the proxy started, by policy (`shop/web`, `default`) and decision. An `Arc`,
    /// because several scrapes and answers hold copies of the report.
    #[serde(skip)]
    pub decisions: Arc<BTreeMap<(String, String), u64>>,
}

/// The report on the proxy of an instance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProxyReport {
    /// The namespace of the instance.
    pub namespace: String,
    /// The workload of the instance.
    pub workload: String,
    /// The name of the instance.
    pub instance: String,
    /// Whether the instance is ready for traffic.
    pub ready: bool,
    /// Why the proxy did not answer; `None` if it answered.
    pub silent: Option<String>,
    /// What it reported; `None` if it did not answer.
    pub state: Option<ProxyState>,
}

impl ProxyState {
    /// The state in the samples of a page.
    pub(super) fn of(samples: &[Sample]) -> Self {
        let mut state = Self::default();
        let (mut decisions, mut bytes) = (BTreeMap::new(), 0);
        for sample in samples {
            let label = |name: &str| sample.labels.get(name).cloned().unwrap_or_default();
            // The cast of a float to an integer saturates.
            let count = sample.value as u64;
            match sample.name.as_str() {
                CONNECTED => state.connected = Some(sample.value != 0.0),
                "leno_discovery_age_seconds" => state.configuration_age_s = sample.value,
                "leno_discovery_resources" => state.resources = count,
                "leno_discovery_nacks_total" => state.rejected = count,
                IDENTITY => state.identity = Some(label("identity")),
                EXPIRATION if (1..NO_CERTIFICATE_S).contains(&count) => {
                    state.certificate_ends_s = Some(count)
                }
                "leno_connections_open" => state.connections = count,
                "leno_connections_limit" => state.max_connections = count,
                "leno_memory_charged_bytes" => state.memory_bytes = count,
                "leno_memory_budget_bytes" => state.memory_budget_bytes = count,
                DECISIONS => {
                    let key = (label("policy"), label("decision"));
                    let own = key.0.len() + key.1.len();
                    if let Some(sum) = decisions.get_mut(&key) {
                        *sum = count.saturating_add(*sum);
                    } else if decisions.len() < MAX_DECISIONS && bytes + own <= MAX_DECISION_BYTES {
                        bytes += own;
                        decisions.insert(key, count);
                    }
                }
                _ => {}
            }
        }
        state.decisions = Arc::new(decisions);
        state
    }
}

impl Scrape {
    /// The proxies that were queried, in the order of their instances.
    #[must_use]
    pub fn proxies(&self) -> Vec<ProxyReport> {
        let of = |one: &super::StatInstance| {
            let name: NamespacedName = (one.namespace.clone(), one.name.clone());
            let silent = self.silent.get(&name).cloned();
            let counted = self.counted.get(&name).filter(|_| silent.is_none());
            let state = counted.map(|counted| counted.state.clone());
            (silent.is_some() || state.is_some()).then(|| ProxyReport {
                namespace: one.namespace.clone(),
                workload: one.workload.clone(),
                instance: one.name.clone(),
                ready: one.ready,
                silent,
                state,
            })
        };
        self.instances.iter().filter_map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::admin::AdminReply;
    use crate::stat::{ProxyCounters, StatInstance};

    #[test]
    fn a_proxy_reports_its_control_plane_its_certificate_and_its_decisions() {
        let text = "leno_discovery_connected 0\nleno_discovery_age_seconds 12.5\nleno_discovery_resources 7\n\
                    leno_identity_info{identity=\"spiffe://d/ns/shop/sa/web\"} 1\n\
                    leno_identity_expiration_timestamp_seconds 1700000000\n\
                    leno_authorization_total{decision=\"deny\",policy=\"shop/locked\"} 3\n";
        let instance = |name: &str| StatInstance {
            namespace: "shop".to_owned(),
            workload: "web".to_owned(),
            name: name.to_owned(),
            meshed: true,
            ready: true,
            proxy: None,
        };
        let reply = AdminReply { status: 200, body: text.to_owned() };
        let answers = vec![
            (instance("web-0"), Some(ProxyCounters::of(&reply))),
            (instance("web-1"), Some(Err("timed out".to_owned()))),
            (instance("plain"), None),
        ];
        let mut now = Scrape::new("default", Instant::now(), answers);
        now.remember(&now.clone());
        let proxies = now.proxies();
        let [answered, silent] = proxies.as_slice() else { panic!("{proxies:?}") };
        let state = answered.state.as_ref().unwrap();
        assert_eq!((state.connected, state.configuration_age_s), (Some(false), 12.5));
        assert_eq!((state.resources, state.certificate_ends_s), (7, Some(1_700_000_000)));
        assert_eq!(state.identity.as_deref(), Some("spiffe://d/ns/shop/sa/web"));
        assert_eq!(state.decisions[&("shop/locked".to_owned(), "deny".to_owned())], 3);
        assert_eq!((silent.silent.as_deref(), &silent.state), (Some("timed out"), &None));
        for (ends, shown) in [
            ("0", None),
            ("253402300799", Some(NO_CERTIFICATE_S - 1)),
            ("253402300800", None),
            ("1e300", None),
        ] {
            let page = format!("{EXPIRATION} {ends}\n");
            let state = ProxyState::of(&crate::metrics::parse(&page));
            assert_eq!(state.certificate_ends_s, shown, "{ends}");
        }
        let many: String = (0..2 * MAX_DECISIONS)
            .map(|nth| format!("{DECISIONS}{{decision=\"deny\",policy=\"shop/{nth}\"}} 1\n"))
            .collect();
        let state = ProxyState::of(&crate::metrics::parse(&many));
        assert_eq!(state.decisions.len(), MAX_DECISIONS);
        let long: String = (0..MAX_DECISIONS)
            .map(|nth| format!("{DECISIONS}{{decision=\"deny\",policy=\"{nth:0396}\"}} 1e300\n"))
            .collect();
        // Sent twice, because samples with equal labels are added up.
        let state = ProxyState::of(&crate::metrics::parse(&long.repeat(2)));
        assert_eq!(state.decisions.len(), MAX_DECISION_BYTES / 400);
        assert!(state.decisions.values().all(|count| *count == u64::MAX));
        let (first, again) = (now.proxies().remove(0), now.proxies().remove(0));
        let of = |one: ProxyReport| one.state.unwrap().decisions;
        assert!(Arc::ptr_eq(&of(first), &of(again)));
    }
}
