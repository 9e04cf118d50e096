//! Reports in the status of the node's pods whether node proxies serve them: the condition `leno.dev/Served`.
//!
//! ```text
//!  a pod starts     captured, served ──► True ──► the CNI call returns, and the pod gets its address and containers
//!  a pod runs       its mode becomes node ──► captured, served ──► True ──► other proxies connect with mTLS
//!                   its namespace withdraws it from the mesh ──► False ──► other proxies send plaintext; then it is released
//!                   it is not captured, and not in node mode: a True of before ──► False
//! ```
//! Other proxies send a pod without a true condition plaintext, unless its mTLS mode forbids that. So the condition stays true as
//! long as the pod is captured: if its supervisor, its broker or its process is replaced, connections wait for the next one.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod as Object;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use leno_kube::api::{Patch, PatchParams};
use leno_kube::{Api, Client, Error};
use leno_resources::SERVED_CONDITION;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::brokers::Brokers;
use crate::follow::Pods;
use crate::keeper::Keeper;
use crate::metrics::{Metrics, lock};
use crate::pod::Pod;

/// How often all pods are compared with their reports, in addition to each progress of a supervisor.
const ROUND: Duration = Duration::from_secs(5);
/// The same while the agent is not ready for the lack of reports.
const FIRST_ROUND: Duration = Duration::from_millis(500);
/// How long the same report is not written again, after a failure or until the watch shows it.
const AGAIN: Duration = Duration::from_secs(4);
/// Longest wait for the API server. A pod that starts waits as long, and starts without the report then.
const ANSWER: Duration = Duration::from_secs(3);

/// How long reports that cannot be written keep the agent from being ready. One pod whose status can never be written must not
/// block a rollout.
const GIVEN_UP: Duration = Duration::from_secs(30);

/// Writes the reports of a node; see the module's documentation.
pub(crate) struct ServedReports {
    client: Client,
    metrics: Arc<Metrics>,
    /// The last reports that were tried, by uid.
    tried: Mutex<BTreeMap<String, (bool, Instant)>>,
}

/// Why a report was not written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReportFailure {
    #[error("the API server has not answered for {:?}", ANSWER)]
    Late,
    #[error("the API server has not written it")]
    Refused(#[source] Error),
}

impl ServedReports {
    pub(crate) fn new(client: Client, metrics: Arc<Metrics>) -> Self {
        Self { client, metrics, tried: Mutex::default() }
    }

    /// Compares all pods with their reports, and writes those that differ, until the runtime ends.
    pub(crate) async fn follow(
        self: Arc<Self>,
        pods: Arc<Pods>,
        (keeper, brokers): (Arc<Keeper>, Arc<Brokers>),
    ) {
        pods.until_known().await;
        let mut settled = None;
        loop {
            let changes = brokers.changes();
            let (all, of_node) = (pods.all(), (Arc::clone(&keeper), Arc::clone(&brokers)));
            // Read before the pods are compared: those that were awaited are served by then.
            let is_settled = self.metrics.reconciled.load(Ordering::Relaxed);
            let own = Arc::clone(&self);
            let due = move || own.due(all, &of_node.0, &of_node.1);
            let (due, waiting) = tokio::task::spawn_blocking(due).await.unwrap_or_default();
            let is_complete = self.report_all(due).await && waiting == 0;
            if is_settled {
                let since: &mut Instant = settled.get_or_insert_with(Instant::now);
                if is_complete || since.elapsed() > GIVEN_UP {
                    self.metrics.awaits_reports.store(false, Ordering::Relaxed);
                }
            }
            let awaits = self.metrics.awaits_reports.load(Ordering::Relaxed);
            let _elapsed = timeout(if awaits { FIRST_ROUND } else { ROUND }, changes).await;
        }
    }

    /// Writes reports. Returns whether all were written.
    async fn report_all(&self, due: Vec<(Pod, bool)>) -> bool {
        let mut all = true;
        for (pod, served) in due {
            if let Err(failed) = self.report(&pod, served).await {
                all = false;
                if failed.is_of_all() {
                    break;
                }
            }
        }
        all
    }

    /// The reports to write, and how many others were tried just now. Blocks.
    fn due(&self, pods: Vec<Pod>, keeper: &Keeper, brokers: &Brokers) -> (Vec<(Pod, bool)>, usize) {
        let now = Instant::now();
        let tried = {
            let mut tried = lock(&self.tried);
            tried.retain(|_, (_, at)| now.duration_since(*at) < AGAIN);
            tried.clone()
        };
        let wanted = |pod: Pod| {
            let is_served =
                || brokers.check_served(&pod.uid).is_ok() && keeper.complete(&pod.uid).is_ok();
            let served = wanted(&pod, is_served, || keeper.is_captured(&pod.uid))?;
            Some((pod, served))
        };
        let is_tried = |(pod, served): &(Pod, bool)| {
            tried.get(&pod.uid).is_some_and(|(last, _)| last == served)
        };
        let (waiting, due): (Vec<_>, Vec<_>) =
            pods.into_iter().filter_map(wanted).partition(is_tried);
        (due, waiting.len())
    }

    /// Reports that a pod is served before its containers start, unless its status says so already. The pod starts without the
    /// report if that cannot be written in time: until it is, other proxies may send the pod plaintext.
    pub(crate) async fn before_start(&self, pod: &Pod) {
        if pod.group.is_some() && pod.served != Some(true) {
            // The failure was logged, and the next round writes the report.
            let _failed = self.report(pod, true).await;
        }
    }

    async fn report(&self, pod: &Pod, served: bool) -> Result<(), ReportFailure> {
        lock(&self.tried).insert(pod.uid.clone(), (served, Instant::now()));
        let done = self.write(pod, served).await;
        self.metrics.reported(done.is_ok());
        let name = format!("{}/{}", pod.namespace, pod.name);
        match &done {
            Ok(()) => tracing::info!(pod = name, served, "reported"),
            Err(failed) => {
                let error = leno_program::chain(failed);
                tracing::warn!(
                    pod = name,
                    served,
                    error,
                    "whether the pod is served cannot be reported; tried again"
                );
            }
        }
        done
    }

    async fn write(&self, pod: &Pod, served: bool) -> Result<(), ReportFailure> {
        let api = Api::<Object>::namespaced(self.client.clone(), &pod.namespace);
        let (params, patch) = (PatchParams::default(), Patch::Strategic(patch(&pod.uid, served)));
        match timeout(ANSWER, api.patch_status(&pod.name, &params, &patch)).await {
            Ok(Ok(_)) => Ok(()),
            // The pod is gone, or another one has its name.
            Ok(Err(Error::Api(status))) if matches!(status.code, 404 | 409) => Ok(()),
            Ok(Err(error)) => Err(ReportFailure::Refused(error)),
            Err(_elapsed) => Err(ReportFailure::Late),
        }
    }
}

impl ReportFailure {
    /// Whether the reports of other pods would fail in the same way.
    fn is_of_all(&self) -> bool {
        !matches!(self, Self::Refused(Error::Api(_)))
    }
}

/// What the status of a pod should report; `None` if it stays as it is.
fn wanted(
    pod: &Pod,
    is_served: impl FnOnce() -> bool,
    is_captured: impl FnOnce() -> bool,
) -> Option<bool> {
    match (&pod.group, pod.served) {
        _ if pod.ended => None,
        (Some(_), None | Some(false)) => is_served().then_some(true),
        (None, Some(true)) => (pod.withdrawn || !is_captured()).then_some(false),
        (Some(_), Some(true)) | (None, None | Some(false)) => None,
    }
}

/// The change of a pod's status. It applies to the pod of this uid alone, because pods of a StatefulSet reuse names. A strategic
/// merge keeps conditions of other types.
fn patch(uid: &str, served: bool) -> Value {
    let (status, reason, message) = match served {
        true => ("True", "NodeProxy", "a proxy of the pod's node serves it"),
        false => (
            "False",
            "NotInNodeMode",
            "the pod is not in node mode, so other proxies send it plaintext",
        ),
    };
    let condition = json!({"type": SERVED_CONDITION, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": Time(Timestamp::now())});
    json!({"metadata": {"uid": uid}, "status": {"conditions": [condition]}})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(mode: &str, phase: &str, served: Option<&str>) -> Pod {
        let condition =
            |status: &str| format!(r#"{{"type":"{SERVED_CONDITION}","status":"{status}"}}"#);
        let conditions = served.map(condition).unwrap_or_default();
        let text = format!(
            r#"{{"metadata":{{"name":"web-0","namespace":"shop","uid":"u",
                "labels":{{"leno.dev/inject":"enabled","leno.dev/mode":"{mode}"}}}},
                "spec":{{"containers":[{{"name":"web"}}]}},
                "status":{{"phase":"{phase}","conditions":[{conditions}]}}}}"#
        );
        Pod::new(&serde_json::from_str(&text).unwrap()).within(None)
    }

    #[test]
    fn a_report_is_true_once_a_pod_is_served_and_false_once_it_is_not_captured_any_more() {
        let running = |mode: &str, served: Option<&str>, is_served: bool, is_captured: bool| {
            wanted(&pod(mode, "Running", served), || is_served, || is_captured)
        };
        for before in [None, Some("False"), Some("Unknown")] {
            assert_eq!(running("node", before, false, false), None, "{before:?}");
            assert_eq!(running("node", before, false, true), None, "{before:?}: connections wait");
            assert_eq!(running("node", before, true, true), Some(true), "{before:?}");
            assert_eq!(running("sidecar", before, false, false), None, "{before:?}");
            assert_eq!(running("sidecar", before, true, true), None, "{before:?}");
        }
        // While a supervisor, a broker or a process is replaced.
        assert_eq!(running("node", Some("True"), false, true), None);
        assert_eq!(
            running("node", Some("True"), false, false),
            None,
            "the CNI call of its sandbox"
        );
        assert_eq!(running("sidecar", Some("True"), true, true), None, "it is captured still");
        let withdrawn = Pod { withdrawn: true, ..pod("sidecar", "Running", Some("True")) };
        assert_eq!(wanted(&withdrawn, || true, || true), Some(false), "it is to be released");
        // The mesh was removed from the node in between.
        assert_eq!(running("sidecar", Some("True"), false, false), Some(false));
        assert_eq!(wanted(&pod("node", "Failed", None), || true, || true), None);
    }

    #[test]
    fn a_report_changes_one_condition_of_one_pod() {
        for (served, status) in [(true, "True"), (false, "False")] {
            let patch = patch("u", served);
            assert_eq!(patch["metadata"], json!({"uid": "u"}));
            let conditions = patch["status"]["conditions"].as_array().unwrap();
            assert_eq!((patch["status"].as_object().unwrap().len(), conditions.len()), (1, 1));
            assert_eq!(conditions[0]["type"], SERVED_CONDITION);
            assert_eq!(conditions[0]["status"], status);
        }
    }
}
