//! Follows the pods of the cluster, and keeps the fields that the observer needs.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::Deref;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Namespace, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use leno_dashboard::ProcessEnds;
use leno_dashboard::hub::TICK;
use leno_dashboard::policies::Labels;
use leno_kube::{Api, Client, Event, Reflection, WatchReport, WatchSelection, watch};
use leno_resources::{NamespaceMode, PodMode};
use leno_sources::{PROXY_CONTAINER, is_meshed, is_ready, owner};
use leno_types::{Owner, TEMPLATE_HASH_LABEL};

use crate::scrape::ROUND;

/// Most pods that are followed. The largest cluster that Kubernetes supports has 150,000.
const MAX_PODS: usize = 150_000;
/// The label that contains the version of the template for pods of a StatefulSet or DaemonSet.
const REVISION_LABEL: &str = "controller-revision-hash";
/// The label by which the control plane's pods are recognised in its namespace.
const NAME_LABEL: &str = "app.kubernetes.io/name";
const CONTROLLER: &str = "leno-controller";
const AGENT: &str = "leno-agent";
/// Labels that have a different value in each pod of a StatefulSet. They are dropped, so that its pods can share
/// one set of labels.
const OWN_LABELS: [&str; 2] =
    ["statefulset.kubernetes.io/pod-name", "apps.kubernetes.io/pod-index"];
/// Most labels of a pod that are kept, in the order of their keys.
const MAX_LABELS: usize = 64;
/// From this number of sets on, those that no pod uses any more are dropped.
const MIN_SETS: usize = 1_024;
/// The reasons for waiting of a container that starts normally.
const STARTING: [&str; 2] = ["ContainerCreating", "PodInitializing"];

/// An observation may be recorded up to this long after the traffic that it counts: after the time until the next
/// observation, and the duration of that observation. One second is added, because the API server reports the creation
/// of a namespace only in whole seconds.
const SEEN_WITHIN_MS: u64 = (TICK.as_secs() + ROUND.as_secs() + 1) * 1_000;

type Key = (String, String);

/// The fields of a pod that are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObservedPod {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) owner: Owner,
    /// Whether it has a sidecar.
    pub(crate) sidecar: bool,
    pub(crate) running: bool,
    pub(crate) ready: bool,
    /// Whether it is being deleted or has completed.
    pub(crate) ending: bool,
    pub(crate) address: Option<IpAddr>,
    /// The version of the template from which it was created.
    pub(crate) template: Option<String>,
    /// Whether it belongs to the control plane, provided that it is in the control plane's namespace.
    pub(crate) is_controller: bool,
    /// Whether it is a node's agent, provided that it is in the control plane's namespace.
    pub(crate) is_agent: bool,
    /// Its labels. Pods of one template share one set.
    pub(crate) labels: Arc<Labels>,
    /// When it was created, in seconds since 1970.
    pub(crate) created_s: i64,
    /// Why its containers do not run or are not ready, as text; empty if that is not known.
    pub(crate) trouble: String,
    /// Whether a container has failed or cannot start.
    pub(crate) has_failed: bool,
    /// How many times its proxy was restarted, and how it ended the last time.
    proxy_ends: (u32, Option<String>),
    /// The same for its other containers.
    application_ends: (u32, Option<String>),
    /// Its settings of node mode, if it has no sidecar and is not in its node's network.
    mode: Option<PodMode>,
}

/// A pod, and whether it has a proxy: a sidecar or, according to its namespace, a node proxy. It shares the pod
/// with [`Pods`].
#[derive(Clone, Debug)]
pub(crate) struct PodInMesh {
    pub(crate) meshed: bool,
    pod: Arc<ObservedPod>,
}

impl Deref for PodInMesh {
    type Target = ObservedPod;

    fn deref(&self) -> &ObservedPod {
        &self.pod
    }
}

/// All pods of the cluster that the API server has reported.
#[derive(Debug, Default)]
pub(crate) struct Pods {
    pods: Mutex<Reflection<Key, Arc<ObservedPod>>>,
    labels: Mutex<LabelSets>,
    namespaces: Mutex<Reflection<String, ObservedNamespace>>,
    /// The pods that are not followed because of [`MAX_PODS`].
    beyond: Mutex<BTreeSet<Key>>,
}

/// The sets of labels of pods. Equal sets are kept only once.
#[derive(Debug, Default)]
struct LabelSets {
    all: BTreeSet<Arc<Labels>>,
    /// The number of sets at which unused ones are dropped.
    full: usize,
}

impl LabelSets {
    fn shared(&mut self, labels: Arc<Labels>) -> Arc<Labels> {
        if let Some(known) = self.all.get(&labels) {
            return known.clone();
        }
        if self.all.len() >= self.full.max(MIN_SETS) {
            self.all.retain(|one| Arc::strong_count(one) > 1);
            self.full = 2 * self.all.len();
        }
        self.all.insert(labels.clone());
        labels
    }
}

/// A namespace of the cluster.
#[derive(Clone, Copy, Debug, Default)]
struct ObservedNamespace {
    mode: NamespaceMode,
    /// When it was created, in milliseconds since 1970.
    created_ms: u64,
}

impl ObservedNamespace {
    fn of(metadata: &ObjectMeta) -> Self {
        let created = metadata.creation_timestamp.as_ref();
        let created_ms = created.map_or(0, |time| time.0.as_millisecond());
        Self {
            mode: NamespaceMode::new(metadata.labels.as_ref(), metadata.annotations.as_ref()),
            created_ms: u64::try_from(created_ms).unwrap_or(0),
        }
    }
}

impl Pods {
    /// Follows the pods and namespaces of a cluster until the future is dropped.
    pub(crate) async fn follow(self: std::sync::Arc<Self>, client: Client) {
        let mut pods = pin!(watch(Api::<Pod>::all(client.clone()), WatchSelection::default()));
        let mut namespaces = pin!(watch(Api::<Namespace>::all(client), WatchSelection::default()));
        loop {
            tokio::select! {
                Some(report) = pods.next() => match report.map(|pod| ObservedPod::of(&pod)) {
                    WatchReport::Event(event) => self.take(event),
                    WatchReport::Failed(error) => failed("pods", &error),
                    WatchReport::Resumed => {}
                },
                Some(report) = namespaces.next() => match report {
                    WatchReport::Event(event) => {
                        lock(&self.namespaces).take(event, |namespace: Namespace| {
                            let of = namespace.metadata;
                            let observed = ObservedNamespace::of(&of);
                            (of.name.unwrap_or_default(), Some(observed))
                        });
                    }
                    WatchReport::Failed(error) => failed("namespaces", &error),
                    WatchReport::Resumed => {}
                },
                else => return,
            }
        }
    }

    /// Applies an event of the watch.
    pub(crate) fn take(&self, event: Event<ObservedPod>) {
        let mut pods = lock(&self.pods);
        let key = |pod: &ObservedPod| (pod.namespace.clone(), pod.name.clone());
        match &event {
            Event::Init => lock(&self.beyond).clear(),
            Event::InitApply(pod) | Event::Apply(pod) => {
                if pods.values().len() >= MAX_PODS && !pods.values().contains_key(&key(pod)) {
                    lock(&self.beyond).insert(key(pod));
                    return;
                }
            }
            Event::Delete(pod) => drop(lock(&self.beyond).remove(&key(pod))),
            Event::InitDone => {}
        }
        pods.take(event, |mut pod| {
            pod.labels = lock(&self.labels).shared(pod.labels);
            (key(&pod), Some(Arc::new(pod)))
        });
    }

    /// Whether all pods and namespaces were listed once.
    pub(crate) fn are_known(&self) -> bool {
        lock(&self.pods).is_complete() && lock(&self.namespaces).is_complete()
    }

    /// Those of the namespaces `of` that exist in the cluster, each with the time, in milliseconds since 1970,
    /// from which observations belong to it and not to an earlier namespace of the same name. `None` before
    /// namespaces were listed.
    pub(crate) fn namespaces(&self, of: &BTreeSet<String>) -> Option<BTreeMap<String, u64>> {
        let namespaces = lock(&self.namespaces);
        let since = |name: &String| {
            let created_ms = namespaces.values().get(name)?.created_ms;
            Some((name.clone(), created_ms.saturating_add(SEEN_WITHIN_MS)))
        };
        namespaces.is_complete().then(|| of.iter().filter_map(since).collect())
    }

    /// How many pods are not followed because there are too many.
    pub(crate) fn beyond(&self) -> usize {
        lock(&self.beyond).len()
    }

    /// All pods, by namespace and name. The pods are shared, not copied.
    pub(crate) fn all(&self) -> Vec<PodInMesh> {
        let pods = lock(&self.pods);
        let namespaces = lock(&self.namespaces);
        let within = |pod: &Arc<ObservedPod>| {
            let mode = namespaces.values().get(&pod.namespace).copied().unwrap_or_default().mode;
            let is_node = pod.mode.is_some_and(|own| own.is_node(mode));
            PodInMesh { meshed: pod.sidecar || is_node, pod: pod.clone() }
        };
        pods.values().values().map(within).collect()
    }
}

impl ObservedPod {
    /// Reduces a pod to the fields that are kept.
    pub(crate) fn of(pod: &Pod) -> Self {
        let (metadata, status) = (&pod.metadata, pod.status.as_ref());
        let shared = pod.spec.as_ref().is_some_and(|spec| spec.host_network == Some(true));
        let sidecar = is_meshed(pod) && !shared;
        let label = |name: &str| metadata.labels.as_ref().and_then(|labels| labels.get(name));
        let statuses: Vec<&ContainerStatus> = status
            .into_iter()
            .flat_map(|status| {
                let own = status.container_statuses.iter().flatten();
                own.chain(status.init_container_statuses.iter().flatten())
            })
            .collect();
        let (proxies, applications): (Vec<&ContainerStatus>, Vec<&ContainerStatus>) =
            statuses.iter().copied().partition(|one| one.name == PROXY_CONTAINER);
        let phase = status.and_then(|status| status.phase.as_deref()).unwrap_or_default();
        let address = status.and_then(|status| status.pod_ip.as_ref()?.parse().ok());
        let mode = || PodMode::new(metadata.labels.as_ref(), metadata.annotations.as_ref());
        Self {
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
            owner: owner(pod),
            sidecar,
            running: phase == "Running",
            ready: is_ready(pod),
            ending: metadata.deletion_timestamp.is_some()
                || matches!(phase, "Succeeded" | "Failed"),
            address,
            template: label(TEMPLATE_HASH_LABEL).or_else(|| label(REVISION_LABEL)).cloned(),
            is_controller: label(NAME_LABEL).is_some_and(|name| name == CONTROLLER),
            is_agent: label(NAME_LABEL).is_some_and(|name| name == AGENT),
            labels: Arc::new(labels(metadata)),
            created_s: metadata.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second()),
            trouble: trouble(&statuses),
            has_failed: statuses.iter().any(|one| one.restart_count > 0 || is_stuck(one)),
            proxy_ends: ends(&proxies),
            application_ends: ends(&applications),
            mode: (!is_meshed(pod) && !shared).then(mode),
        }
    }

    /// How many times its proxy has ended.
    pub(crate) fn proxy_ends(&self, workload: &str) -> ProcessEnds {
        self.ends(workload, &self.proxy_ends)
    }

    /// How many times its applications have ended.
    pub(crate) fn application_ends(&self, workload: &str) -> ProcessEnds {
        self.ends(workload, &self.application_ends)
    }

    fn ends(&self, workload: &str, (times, ended): &(u32, Option<String>)) -> ProcessEnds {
        ProcessEnds {
            namespace: self.namespace.clone(),
            workload: workload.to_owned(),
            instance: self.name.clone(),
            times: *times,
            ended: ended.clone(),
        }
    }
}

/// The labels of a pod, without those that differ between pods of the same template.
fn labels(of: &ObjectMeta) -> Labels {
    let all = of.labels.iter().flatten().filter(|(key, _)| !OWN_LABELS.contains(&&***key));
    all.take(MAX_LABELS).map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// How many times these containers were restarted, and how the one that ended last has ended.
fn ends(containers: &[&ContainerStatus]) -> (u32, Option<String>) {
    let times = containers.iter().map(|one| u32::try_from(one.restart_count).unwrap_or(0)).sum();
    let last = containers.iter().filter_map(|one| one.last_state.as_ref()?.terminated.as_ref());
    let last = last.max_by_key(|one| one.finished_at.as_ref().map(|time| time.0));
    (times, last.map(how))
}

/// How a container has ended, such as `exited with 3`.
fn how(ended: &ContainerStateTerminated) -> String {
    if ended.reason.as_deref() == Some("OOMKilled") {
        return "was killed for exceeding its memory limit".to_owned();
    }
    // Exit codes above 128 stand for a signal, as in a shell.
    match ended.exit_code {
        code if code > 128 => format!("was ended by signal {}", code - 128),
        code => format!("exited with {code}"),
    }
}

/// Whether a container waits for another reason than that it is being started.
fn is_stuck(one: &ContainerStatus) -> bool {
    let waiting = one.state.as_ref().and_then(|state| state.waiting.as_ref());
    let reason = waiting.and_then(|waiting| waiting.reason.as_deref());
    reason.is_some_and(|reason| !STARTING.contains(&reason))
}

/// Why containers are not ready, such as `application: CrashLoopBackOff, exited with 3`.
fn trouble(containers: &[&ContainerStatus]) -> String {
    let of = |one: &&ContainerStatus| {
        let state = one.state.as_ref();
        let waiting = state.and_then(|state| state.waiting.as_ref()?.reason.clone());
        let ended = state.and_then(|state| state.terminated.as_ref());
        let before = one.last_state.as_ref().and_then(|state| state.terminated.as_ref());
        let failed = ended.filter(|ended| ended.exit_code != 0);
        let parts: Vec<String> =
            waiting.into_iter().chain(failed.or(before).filter(|_| !one.ready).map(how)).collect();
        (!parts.is_empty()).then(|| format!("{}: {}", one.name, parts.join(", ")))
    };
    let all: Vec<String> = containers.iter().filter_map(of).collect();
    match all.is_empty() {
        true if containers.iter().any(|one| !one.ready) => {
            let names = containers.iter().filter(|one| !one.ready).map(|one| &*one.name);
            format!("not ready: {}", names.collect::<Vec<_>>().join(", "))
        }
        _ => all.join("; "),
    }
}

fn failed(what: &str, error: &leno_kube::WatchError) {
    tracing::warn!(error = leno_program::chain(error), "cannot watch {what}; retrying");
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Poisoning is ignored, because values are only replaced as a whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A pod in the namespace `shop` of the Deployment `web`.
    pub(crate) fn pod(name: &str, status: serde_json::Value) -> ObservedPod {
        let pod = serde_json::json!({
            "metadata": {
                "name": name, "namespace": "shop",
                "labels": {"pod-template-hash": "7d9"},
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-7d9",
                    "uid": "u", "controller": true}]
            },
            "spec": {"containers": [{"name": "application"}],
                "initContainers": [{"name": "leno-proxy"}]},
            "status": status,
        });
        ObservedPod::of(&serde_json::from_value(pod).unwrap())
    }

    /// The pod in a namespace without settings.
    pub(crate) fn in_mesh(pod: ObservedPod) -> PodInMesh {
        PodInMesh { meshed: pod.sidecar, pod: Arc::new(pod) }
    }

    #[test]
    fn pods_of_one_template_share_their_labels_and_none_is_copied() {
        let pods = Pods::default();
        let status = || serde_json::json!({"phase": "Running"});
        for event in [
            Event::Init,
            Event::InitApply(pod("web-a", status())),
            Event::InitApply(pod("web-b", status())),
            Event::InitDone,
        ] {
            pods.take(event);
        }
        let (once, again) = (pods.all(), pods.all());
        assert!(Arc::ptr_eq(&once[0].labels, &once[1].labels));
        assert!(Arc::ptr_eq(&once[0].pod, &again[0].pod));
        assert_eq!(once[0].labels["pod-template-hash"], "7d9");
        let mut sets = LabelSets::default();
        let set = |nth: usize| Arc::new(Labels::from([("nth".to_owned(), nth.to_string())]));
        let kept = sets.shared(set(0));
        (1..5 * MIN_SETS).for_each(|nth| drop(sets.shared(set(nth))));
        assert!(sets.all.len() <= MIN_SETS && Arc::ptr_eq(&sets.shared(set(0)), &kept));
    }

    fn container(name: &str, ready: bool, restarts: i32) -> serde_json::Value {
        serde_json::json!({"name": name, "image": "i", "imageID": "", "ready": ready,
            "restartCount": restarts, "state": {"running": {}}})
    }

    #[test]
    fn a_pod_is_what_its_owner_and_its_containers_are() {
        let mut application = container("application", false, 2);
        application["state"] = serde_json::json!({"waiting": {"reason": "CrashLoopBackOff"}});
        application["lastState"] =
            serde_json::json!({"terminated": {"exitCode": 137, "reason": "OOMKilled"}});
        let pod = pod(
            "web-7d9-a",
            serde_json::json!({
                "phase": "Running", "podIP": "10.0.0.7",
                "containerStatuses": [application],
                "initContainerStatuses": [container("leno-proxy", true, 1)],
                "conditions": [{"type": "Ready", "status": "False"}]
            }),
        );
        assert_eq!(
            (pod.owner.name.as_str(), pod.sidecar, pod.running, pod.ready),
            ("web", true, true, false)
        );
        assert_eq!(pod.address, Some("10.0.0.7".parse().unwrap()));
        assert_eq!(pod.template.as_deref(), Some("7d9"));
        let said = "application: CrashLoopBackOff, was killed for exceeding its memory limit";
        assert_eq!((&*pod.trouble, pod.has_failed), (said, true));
        let ends = pod.application_ends("web");
        assert_eq!(
            (ends.times, ends.ended.as_deref()),
            (2, Some("was killed for exceeding its memory limit"))
        );
        assert_eq!((pod.proxy_ends("web").times, pod.proxy_ends("web").ended), (1, None));
    }

    #[test]
    fn a_pod_in_node_mode_has_a_proxy_if_its_namespace_says_so() {
        let made = serde_json::from_value::<Pod>(serde_json::json!({
            "metadata": {"name": "a", "namespace": "shop"}, "spec": {"containers": [{"name": "x"}]}
        }));
        let pods = Pods::default();
        for event in
            [Event::Init, Event::InitApply(ObservedPod::of(&made.unwrap())), Event::InitDone]
        {
            pods.take(event);
        }
        assert!(!pods.are_known(), "the namespaces were not listed");
        assert!(!pods.all()[0].meshed);
        let labels = [("leno.dev/inject", "enabled"), ("leno.dev/mode", "node")];
        let labels: BTreeMap<&str, &str> = labels.into();
        let made = "2026-11-28T10:00:00Z";
        let of = serde_json::from_value(
            serde_json::json!({"labels": labels, "creationTimestamp": made}),
        );
        lock(&pods.namespaces).insert("shop".to_owned(), ObservedNamespace::of(&of.unwrap()));
        assert!(pods.all()[0].meshed);
        assert_eq!(lock(&pods.namespaces).values()["shop"].created_ms, 1_795_860_000_000);
    }
}
