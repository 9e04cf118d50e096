//! Collects what the leader needs during a rotation of the root: the other replicas, each one's report about its
//! proxies, and an operator's request.
//!
//! ```text
//!  replica ── annotation of its own pod: ReplicaTrust ──┐
//!  replica ── the same ─────────────────────────────────┼──► Replicas ──► the leader goes on, or not
//!  operator ── ConfigMap leno-identity: OperatorRequest ┘
//! ```
//! Replicas exchange nothing else. A client that may write these objects in the control plane's namespace can
//! control a rotation.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use leno_identity::OperatorRequest;
use leno_kube::{Api, Client, Reflection, WatchReport, WatchSelection};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

/// The annotation by which a replica reports to the leader which roots its proxies trust, while a rotation is
/// under way.
pub const TRUST_ANNOTATION: &str = "leno.dev/trust";
/// The label of the control plane's pods, and its value.
const LABEL: (&str, &str) = ("app.kubernetes.io/name", "leno-controller");
/// How long the leader waits for a replica that is not ready. After that time its proxies have connected to other
/// replicas. For a ready replica the leader waits without end.
const UNREADY: Duration = Duration::from_secs(60);
/// Most replicas that a message names.
const MAX_NAMED: usize = 5;

/// What a replica reports about its proxies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaTrust {
    /// Distinguishes this run of the process from others with the same pod name.
    pub run: String,
    /// The phase, the trust bundle and the signing key that the replica serves.
    pub serves: String,
    /// Whether the replica has run for so long that all its proxies are connected.
    pub settled: bool,
    /// How many of its proxies do not use the bundle and the key yet.
    pub waiting: usize,
}

/// Follows the other replicas and the operator's request.
#[derive(Debug, Default)]
pub struct Replicas(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    /// The replicas by the names of their pods; `None` until they are listed.
    pods: Option<BTreeMap<String, ReplicaPod>>,
    request: Option<OperatorRequest>,
    /// When a replica last appeared, disappeared or restarted.
    changed: Option<Instant>,
}

#[derive(Clone, Debug)]
struct ReplicaPod {
    trust: Option<ReplicaTrust>,
    /// Since when the replica is not ready, as far as this process has observed.
    unready: Option<Instant>,
}

/// The name of a pod and, if the pod runs, whether it is ready and its report.
type ObservedReplica = (String, Option<(bool, Option<ReplicaTrust>)>);

enum Observation {
    Pod(WatchReport<ObservedReplica>),
    Request(WatchReport<Option<OperatorRequest>>),
}

impl Replicas {
    /// Follows the replicas and the request until the process ends.
    pub async fn run(self: Arc<Self>, client: Client, namespace: String) {
        let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
        let maps: Api<ConfigMap> = Api::namespaced(client, &namespace);
        let pods = leno_kube::watch(pods, WatchSelection::labelled(LABEL.0, LABEL.1));
        let requests = leno_kube::watch(maps, WatchSelection::named(OperatorRequest::CONFIG_MAP));
        let pods = pods.map(|report| Observation::Pod(report.map(replica)));
        let requests =
            requests.map(|report| Observation::Request(report.map(|map| requested(&map))));
        let both = stream::select(pods, requests);
        let mut found = Reflection::<String, (bool, Option<ReplicaTrust>)>::default();
        let mut request = Reflection::<(), OperatorRequest>::default();
        let mut both = std::pin::pin!(both);
        while let Some(observation) = both.next().await {
            match observation {
                Observation::Pod(WatchReport::Event(event)) => {
                    found.take(event, |observed| observed);
                    if found.is_complete() {
                        self.table().take(found.values(), Instant::now());
                    }
                }
                Observation::Request(WatchReport::Event(event)) => {
                    request.take(event, |request| ((), request));
                    self.table().request = request.values().get(&()).cloned();
                }
                Observation::Pod(WatchReport::Failed(error))
                | Observation::Request(WatchReport::Failed(error)) => {
                    let error: &dyn std::error::Error = &error;
                    tracing::warn!(error, "cannot watch the replicas; retrying");
                }
                Observation::Pod(WatchReport::Resumed)
                | Observation::Request(WatchReport::Resumed) => {}
            }
        }
    }

    /// The operator's request, even if it was already carried out.
    #[must_use]
    pub fn request(&self) -> Option<OperatorRequest> {
        self.table().request.clone()
    }

    /// The reasons why a phase cannot end because of replicas other than `own`. In this phase, all replicas must
    /// serve `serves`. No reason is left when all proxies use that, and no replica has appeared or disappeared for
    /// `settle`.
    #[must_use]
    pub fn waits(&self, own: &str, serves: &str, settle: Duration) -> Vec<String> {
        self.table().waits(own, serves, settle, Instant::now())
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // Poisoning is ignored, because values are only replaced as a whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn take(&mut self, found: &BTreeMap<String, (bool, Option<ReplicaTrust>)>, now: Instant) {
        let before = self.pods.take().unwrap_or_default();
        let mut pods = BTreeMap::new();
        for (name, (is_ready, trust)) in found {
            let known = before.get(name).and_then(|pod| pod.unready);
            let unready = (!is_ready).then(|| known.unwrap_or(now));
            pods.insert(name.clone(), ReplicaPod { trust: trust.clone(), unready });
        }
        let same = |name: &String, pod: &ReplicaPod| {
            before.get(name).is_some_and(|before| match (&before.trust, &pod.trust) {
                (Some(before), Some(trust)) => before.run == trust.run,
                // The replica reports for the first time, or no longer.
                _ => true,
            })
        };
        if before.len() != pods.len() || !pods.iter().all(|(name, pod)| same(name, pod)) {
            self.changed = Some(now);
        }
        self.pods = Some(pods);
    }

    fn waits(&self, own: &str, serves: &str, settle: Duration, now: Instant) -> Vec<String> {
        let Some(pods) = &self.pods else {
            return vec!["the replicas of the control plane are unknown yet".to_owned()];
        };
        let counts =
            |pod: &ReplicaPod| pod.unready.is_none_or(|since| now.duration_since(since) < UNREADY);
        let others = pods.iter().filter(|(name, pod)| *name != own && counts(pod));
        let why = |pod: &ReplicaPod| match &pod.trust {
            None => Some("has not reported yet".to_owned()),
            Some(trust) if trust.serves != serves => Some("is in another phase".to_owned()),
            Some(trust) if !trust.settled => Some("has just started".to_owned()),
            Some(trust) if trust.waiting > 0 => Some(format!("waits for {}", trust.waiting)),
            Some(_) => None,
        };
        let mut waits: Vec<String> = others
            .filter_map(|(name, pod)| Some(format!("replica {name} {}", why(pod)?)))
            .take(MAX_NAMED)
            .collect();
        if self.changed.is_some_and(|changed| now.duration_since(changed) < settle) {
            waits.push("a replica has just come or gone".to_owned());
        }
        waits
    }
}

/// The replica in a running pod of the control plane.
fn replica(pod: Pod) -> ObservedReplica {
    let status = pod.status.unwrap_or_default();
    let is_over = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
    let conditions = status.conditions.unwrap_or_default();
    let is_ready = conditions.iter().any(|one| one.type_ == "Ready" && one.status == "True");
    let said = pod.metadata.annotations.unwrap_or_default().remove(TRUST_ANNOTATION);
    let trust = said.and_then(|said| serde_json::from_str(&said).ok());
    (pod.metadata.name.unwrap_or_default(), (!is_over).then_some((is_ready, trust)))
}

fn requested(map: &ConfigMap) -> Option<OperatorRequest> {
    let json = map.data.as_ref()?.get(OperatorRequest::KEY)?;
    match serde_json::from_str(json) {
        Ok(request) => Some(request),
        Err(error) => {
            tracing::warn!(%error, config_map = OperatorRequest::CONFIG_MAP, "a request cannot be read");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTLE: Duration = Duration::from_secs(15);

    fn says(run: &str, waiting: usize) -> Option<ReplicaTrust> {
        let (run, serves) = (run.to_owned(), "add both old".to_owned());
        Some(ReplicaTrust { run, serves, settled: true, waiting })
    }

    #[tokio::test(start_paused = true)]
    async fn a_phase_waits_for_the_proxies_of_every_replica_that_may_have_some() {
        let mut table = Table::default();
        let waits = |table: &Table, serves: &str| {
            table.waits("own", serves, SETTLE, Instant::now()).join(", ")
        };
        assert!(waits(&table, "add both old").contains("unknown yet"));
        let take = |table: &mut Table, found: &[(&str, bool, Option<ReplicaTrust>)]| {
            let found = found.iter().cloned();
            let found = found.map(|(name, ready, trust)| (name.to_owned(), (ready, trust)));
            table.take(&found.collect(), Instant::now());
        };
        take(&mut table, &[("own", true, None), ("b", true, None)]);
        tokio::time::advance(SETTLE).await;
        assert_eq!(waits(&table, "add both old"), "replica b has not reported yet");
        take(&mut table, &[("own", true, None), ("b", true, says("1", 2))]);
        assert_eq!(waits(&table, "add both old"), "replica b waits for 2");
        assert_eq!(waits(&table, "switch both new"), "replica b is in another phase");
        take(&mut table, &[("own", true, None), ("b", true, says("1", 0))]);
        assert_eq!(waits(&table, "add both old"), "");
        // This replica was killed and has restarted. Its proxies may be connected to other replicas, or to none at
        // the moment.
        take(&mut table, &[("own", true, None), ("b", true, says("2", 0))]);
        assert_eq!(waits(&table, "add both old"), "a replica has just come or gone");
        tokio::time::advance(SETTLE).await;
        assert_eq!(waits(&table, "add both old"), "");
        take(&mut table, &[("own", true, None), ("b", false, says("2", 3))]);
        assert_eq!(waits(&table, "add both old"), "replica b waits for 3");
        tokio::time::advance(UNREADY).await;
        assert_eq!(waits(&table, "add both old"), "", "it is gone for the API server as well");
    }
}
