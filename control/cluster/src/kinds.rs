//! Reports, as a condition of this replica's own pod, whether it follows all kinds of objects.
//!
//! A kind that cannot be listed costs its own objects only, so the replica serves and is ready. The condition is
//! how a user who may read pods learns of it, and what `leno check` reads. It is a condition of each pod, not of
//! one object for all replicas: rights are shared, but a replica that started later knows less.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use leno_kube::api::{Patch, PatchParams};
use leno_kube::{Api, Client, Error};
use leno_resources::KINDS_CONDITION;
use serde_json::json;
use tokio::time::timeout;

use crate::counts;

/// How often the kinds are looked at.
const LOOK: Duration = Duration::from_secs(1);
/// How long a kind must have failed before the condition reports it: an API server that restarts fails for less.
const SETTLE: Duration = Duration::from_secs(5);
/// Least time between two writes. The reason of a failure may change with every attempt.
const PAUSE: Duration = Duration::from_secs(10);
/// Pause after a write that failed. Outside of a cluster there is no pod to write to.
const FAILED_PAUSE: Duration = Duration::from_secs(60);
/// Longest wait for the API server's answer.
const ANSWER: Duration = Duration::from_secs(10);
/// Longest message, in characters: a status is read as a whole.
const MAX_MESSAGE: usize = 4_096;

/// A kind whose objects cannot be listed or watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailingKind {
    /// The kind, as Kubernetes writes it.
    pub kind: &'static str,
    /// For how long.
    pub time: Duration,
    /// The API server's answer.
    pub reason: String,
}

/// Writes the condition [`KINDS_CONDITION`] of one pod.
pub struct KindsReporter {
    pods: Api<Pod>,
    pod: String,
    written: AtomicU64,
    failed: AtomicU64,
}

/// What the condition says.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Verdict {
    status: &'static str,
    reason: &'static str,
    message: String,
}

impl KindsReporter {
    /// For the pod that this process runs in.
    #[must_use]
    pub fn new(client: Client, namespace: &str, pod: &str) -> Self {
        let (written, failed) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { pods: Api::namespaced(client, namespace), pod: pod.to_owned(), written, failed }
    }

    /// Writes whenever the verdict differs from the one that was written last, until the process ends. `failing`
    /// returns the kinds that cannot be followed, and `None` until the first objects were read.
    pub async fn run(&self, failing: impl Fn() -> Option<Vec<FailingKind>>) {
        let mut last: Option<Verdict> = None;
        let mut since = Timestamp::now();
        loop {
            let now = failing().map(|kinds| verdict(&kinds));
            let Some(now) = now.filter(|now| Some(now) != last.as_ref()) else {
                tokio::time::sleep(LOOK).await;
                continue;
            };
            if last.as_ref().is_none_or(|last| last.status != now.status) {
                since = Timestamp::now();
            }
            if self.write(&now, since).await {
                last = Some(now);
                tokio::time::sleep(PAUSE).await;
            } else {
                tokio::time::sleep(FAILED_PAUSE).await;
            }
        }
    }

    /// Appends what was counted, as Prometheus text.
    pub fn render(&self, text: &mut String) {
        let help = "Times that the condition of the replica's pod was written, by result.";
        let results = [("written", &self.written), ("failed", &self.failed)];
        counts::render(text, ("condition_writes_total", help), &results);
    }

    /// Whether the condition was written.
    async fn write(&self, verdict: &Verdict, since: Timestamp) -> bool {
        let Verdict { status, reason, message } = verdict;
        let condition = json!({"type": KINDS_CONDITION, "status": status, "reason": reason,
            "message": message, "lastTransitionTime": Time(since)});
        // A strategic merge: conditions of other types stay.
        let patch = Patch::Strategic(json!({"status": {"conditions": [condition]}}));
        let params = PatchParams::default();
        let write = self.pods.patch_status(&self.pod, &params, &patch);
        let failure = match timeout(ANSWER, write).await {
            Ok(Ok(_)) => {
                self.written.fetch_add(1, Ordering::Relaxed);
                return true;
            }
            Ok(Err(Error::Api(status))) if status.code == 404 => {
                self.failed.fetch_add(1, Ordering::Relaxed);
                tracing::debug!(pod = self.pod, "this process runs in no such pod");
                return false;
            }
            Ok(Err(error)) => error.to_string(),
            Err(_elapsed) => format!("no answer in {ANSWER:?}"),
        };
        self.failed.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(
            pod = self.pod,
            failure,
            "the pod's condition cannot be written; trying again"
        );
        false
    }
}

/// What the condition says of these kinds.
fn verdict(failing: &[FailingKind]) -> Verdict {
    let lines = failing.iter().filter(|one| one.time >= SETTLE).map(
        |FailingKind { kind, reason, .. }| {
            format!("{kind} cannot be followed: {reason}; {}", remedy(reason))
        },
    );
    let message = lines.collect::<Vec<_>>().join(". ");
    if message.is_empty() {
        return Verdict { status: "True", reason: "AllFollowed", message };
    }
    let message = message.chars().take(MAX_MESSAGE).collect();
    Verdict { status: "False", reason: "KindsNotFollowed", message }
}

/// What an operator does about it. The API server's answers have no codes beyond these words.
fn remedy(reason: &str) -> &'static str {
    if reason.contains("forbidden") {
        "give the controller its rights again: leno upgrade | kubectl apply --server-side -f -"
    } else if reason.contains("conversion webhook") {
        "mend the conversion webhook that the kind's CustomResourceDefinition names"
    } else {
        "the controller tries again; its log names each attempt"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failing(kind: &'static str, seconds: u64, reason: &str) -> FailingKind {
        FailingKind { kind, time: Duration::from_secs(seconds), reason: reason.to_owned() }
    }

    #[test]
    fn each_kind_is_named_with_its_reason_and_a_remedy_once_it_has_failed_for_a_while() {
        assert_eq!(verdict(&[]).status, "True");
        assert_eq!(verdict(&[failing("Pod", 1, "connection refused")]).status, "True");
        let two = [
            failing("HTTPRoute", 5, "httproutes is forbidden: User x cannot list"),
            failing("GRPCRoute", 60, "conversion webhook for grpcroutes failed"),
            failing("Pod", 1, "connection refused"),
        ];
        let said = verdict(&two);
        assert_eq!((said.status, said.reason), ("False", "KindsNotFollowed"));
        for part in [
            "HTTPRoute cannot be followed: httproutes is forbidden",
            "leno upgrade",
            "GRPCRoute cannot",
            "mend the conversion webhook",
        ] {
            assert!(said.message.contains(part), "{part}: {}", said.message);
        }
        assert!(!said.message.contains("Pod"), "{}", said.message);
        let long = failing("HTTPRoute", 5, &"x".repeat(10_000));
        assert_eq!(verdict(&[long]).message.chars().count(), MAX_MESSAGE);
    }
}
