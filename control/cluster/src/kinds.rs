//! Reports, as a condition of this replica's own pod, whether it follows all kinds of objects.
//!
//! A kind that cannot be listed costs its own objects only, so the replica serves and is ready. The condition is
//! how a user who may read pods learns of it, and what `leno check` reads. It is a condition of each pod, not of
//! one object for all replicas: rights are shared, but a replica that started later knows less.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use leno_kube::api::{Patch, PatchParams};
use leno_kube::{Api, Client, Error, Reflection, Report, Selection};
use leno_resources::KINDS_CONDITION;
use serde_json::json;
use tokio::time::{interval, timeout};

use crate::counts;
use crate::reconcile::{Reconciler, run};

/// How often the kinds are looked at: what is said of one also depends on how long it has failed.
const LOOK: Duration = Duration::from_secs(1);
/// How long a kind must have failed before the condition reports it: an API server that restarts fails for less.
const SETTLE: Duration = Duration::from_secs(5);
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

/// Returns the kinds that cannot be followed, and `None` until the first objects were read.
pub type FailingKinds = Arc<dyn Fn() -> Option<Vec<FailingKind>> + Send + Sync>;

/// Keeps the condition [`KINDS_CONDITION`] of one pod. Outside of a cluster there is no such pod, and nothing to do.
pub struct KindsReporter {
    pods: Api<Pod>,
    pod: String,
    written: AtomicU64,
    failed: AtomicU64,
}

/// What the condition says.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Verdict {
    status: String,
    reason: String,
    message: String,
}

/// The condition as the pod has it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Condition {
    verdict: Verdict,
    /// When its status became what it is.
    since: Option<Time>,
}

impl KindsReporter {
    /// For the pod that this process runs in.
    #[must_use]
    pub fn new(client: Client, namespace: &str, pod: &str) -> Self {
        let (written, failed) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { pods: Api::namespaced(client, namespace), pod: pod.to_owned(), written, failed }
    }

    /// Watches the pod, and writes whenever its condition differs from what `failing` says, until the process ends.
    pub async fn run(&self, failing: FailingKinds) {
        run(Observed { own: self, failing, wanted: None, pod: Reflection::default() }).await;
    }

    /// Appends what was counted, as Prometheus text.
    pub fn render(&self, text: &mut String) {
        let help = "Times that the condition of the replica's pod was written, by result.";
        let results = [("written", &self.written), ("failed", &self.failed)];
        counts::render(text, ("condition_writes_total", help), &results);
    }

    /// Whether the condition was written, or has no pod.
    async fn write(&self, condition: &Condition) -> bool {
        let Condition { verdict: Verdict { status, reason, message }, since } = condition;
        let condition = json!({"type": KINDS_CONDITION, "status": status, "reason": reason,
            "message": message, "lastTransitionTime": since});
        // A strategic merge: conditions of other types stay.
        let patch = Patch::Strategic(json!({"status": {"conditions": [condition]}}));
        let params = PatchParams::default();
        let write = self.pods.patch_status(&self.pod, &params, &patch);
        let failure = match timeout(ANSWER, write).await {
            Ok(Ok(_)) => {
                self.written.fetch_add(1, Ordering::Relaxed);
                return true;
            }
            // The watch is about to report the pod's end.
            Ok(Err(Error::Api(status))) if status.code == 404 => return true,
            Ok(Err(error)) => error.to_string(),
            Err(_elapsed) => format!("no answer in {ANSWER:?}"),
        };
        self.failed(&failure);
        false
    }

    fn failed(&self, failure: &str) {
        self.failed.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(pod = self.pod, failure, "the pod's condition cannot be kept; trying again");
    }
}

/// What is to be said, and what the pod says.
struct Observed<'a> {
    own: &'a KindsReporter,
    failing: FailingKinds,
    wanted: Option<Verdict>,
    /// The pod, if there is one, with its condition, if it has one.
    pod: Reflection<(), Option<Condition>>,
}

enum Observation {
    Kinds(Option<Vec<FailingKind>>),
    Pod(Report<Pod>),
}

impl Observed<'_> {
    /// The condition to be written.
    fn due(&self) -> Option<Condition> {
        let (wanted, found) = (self.wanted.as_ref()?, self.pod.values().get(&())?);
        if found.as_ref().is_some_and(|found| found.verdict == *wanted) {
            return None;
        }
        let same = found.as_ref().filter(|found| found.verdict.status == wanted.status);
        let since = same.and_then(|same| same.since.clone());
        let since = since.unwrap_or_else(|| Time(Timestamp::now()));
        Some(Condition { verdict: wanted.clone(), since: Some(since) })
    }
}

impl Reconciler for Observed<'_> {
    type Observation = Observation;

    /// The reason of a failure may change with every attempt.
    const PAUSE: Duration = Duration::from_secs(10);
    const RETRY: Duration = Duration::from_secs(10);

    fn watches(&self) -> BoxStream<'static, Observation> {
        let failing = Arc::clone(&self.failing);
        let looks = stream::unfold(interval(LOOK), |mut ticks| async move {
            ticks.tick().await;
            Some(((), ticks))
        });
        let kinds = looks.map(move |()| Observation::Kinds(failing()));
        let pod = leno_kube::watch(self.own.pods.clone(), Selection::named(&self.own.pod));
        stream::select(kinds, pod.map(Observation::Pod)).boxed()
    }

    fn observe(&mut self, observation: Observation) {
        match observation {
            Observation::Kinds(failing) => self.wanted = failing.map(|kinds| verdict(&kinds)),
            Observation::Pod(Report::Event(event)) => {
                self.pod.take(event, |pod| ((), Some(condition(pod))));
            }
            Observation::Pod(Report::Resumed) => {}
            Observation::Pod(Report::Failed(error)) => self.own.failed(&error.to_string()),
        }
    }

    fn is_due(&self) -> bool {
        self.due().is_some()
    }

    async fn reconcile(&mut self) -> bool {
        let Some(due) = self.due() else { return true };
        let written = self.own.write(&due).await;
        if written {
            self.pod.insert((), Some(due));
        }
        written
    }
}

/// Our condition of a pod.
fn condition(pod: Pod) -> Option<Condition> {
    let found = pod.status?.conditions?.into_iter().find(|one| one.type_ == KINDS_CONDITION)?;
    let (reason, message) = (found.reason.unwrap_or_default(), found.message.unwrap_or_default());
    let verdict = Verdict { status: found.status, reason, message };
    Some(Condition { verdict, since: found.last_transition_time })
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
        return Verdict { status: "True".to_owned(), reason: "AllFollowed".to_owned(), message };
    }
    let message = message.chars().take(MAX_MESSAGE).collect();
    Verdict { status: "False".to_owned(), reason: "KindsNotFollowed".to_owned(), message }
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
        assert_eq!((&*said.status, &*said.reason), ("False", "KindsNotFollowed"));
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
