//! Writes what a replica reports into its own pod: conditions for users, and annotations for the leader.
//!
//! The conditions are for users who may read pods, and for `leno check`. Each pod has its own conditions, because
//! replicas differ: one that has just started has listed fewer objects, and each has other proxies.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use leno_kube::api::{Patch, PatchParams};
use leno_kube::{Api, Client, Error, Reflection, WatchReport, WatchSelection};
use serde_json::{Value, json};
use tokio::time::{interval, timeout};

use crate::counts;
use crate::reconcile::{Reconciler, run};

/// How often the report is computed again, because it may depend on how long a state has lasted.
const LOOK: Duration = Duration::from_secs(1);
/// Longest wait for the API server's answer.
const ANSWER: Duration = Duration::from_secs(10);
/// Longest message, in characters, because clients read a status as a whole.
pub(crate) const MAX_MESSAGE: usize = 4_096;

/// A condition that the pod should have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaPodCondition {
    /// Its type.
    pub(crate) kind: &'static str,
    pub(crate) status: &'static str,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

impl ReplicaPodCondition {
    /// True if there is no message, with the first reason; otherwise false, with the second.
    pub(crate) fn new(
        kind: &'static str,
        (good, bad): (&'static str, &'static str),
        message: &str,
    ) -> Self {
        let (status, reason) = if message.is_empty() { ("True", good) } else { ("False", bad) };
        Self { kind, status, reason, message: message.chars().take(MAX_MESSAGE).collect() }
    }
}

/// What the pod should report about its replica.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplicaReport {
    /// The conditions that are known now.
    pub conditions: Vec<ReplicaPodCondition>,
    /// Annotations by name. An annotation with the value `None` must not exist.
    pub annotations: BTreeMap<&'static str, Option<String>>,
}

/// Returns the current report.
pub type ReportSource = Arc<dyn Fn() -> ReplicaReport + Send + Sync>;

/// Keeps the conditions and annotations of one pod up to date. Outside of a cluster this does nothing, because
/// there is no such pod.
pub struct ReplicaReporter {
    pods: Api<Pod>,
    pod: String,
    written: AtomicU64,
    failed: AtomicU64,
}

/// What the pod reports at present.
#[derive(Clone, Debug, Default)]
struct ReportedConditions {
    /// The conditions, by type.
    conditions: BTreeMap<String, ReplicaCondition>,
    annotations: BTreeMap<String, String>,
}

/// The fields that have to be written.
#[derive(Debug, Default)]
struct PodStatusPatch {
    conditions: Vec<(&'static str, ReplicaCondition)>,
    /// The annotations that have to change.
    annotations: BTreeMap<&'static str, Option<String>>,
}

/// A condition that the pod has at present.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ReplicaCondition {
    status: String,
    reason: String,
    message: String,
    /// When the condition's status last changed.
    since: Option<Time>,
}

impl ReplicaCondition {
    fn says(&self, condition: &ReplicaPodCondition) -> bool {
        let ReplicaPodCondition { status, reason, message, .. } = condition;
        (&*self.status, &*self.reason, &self.message) == (*status, *reason, message)
    }
}

impl ReplicaReporter {
    /// Creates the reporter for the pod in which this process runs.
    #[must_use]
    pub fn new(client: Client, namespace: &str, pod: &str) -> Self {
        let (written, failed) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { pods: Api::namespaced(client, namespace), pod: pod.to_owned(), written, failed }
    }

    /// Watches the pod, and writes whenever its conditions or annotations differ from the report. Ends with the
    /// process.
    pub async fn run(&self, reports: ReportSource) {
        let (wanted, pod) = (ReplicaReport::default(), Reflection::default());
        run(Observed { own: self, reports, wanted, pod }).await;
    }

    /// Appends the counters, as Prometheus text.
    pub fn render(&self, text: &mut String) {
        let help = "Times that the condition of the replica's pod was written, by result.";
        let results = [("written", &self.written), ("failed", &self.failed)];
        counts::render(text, ("condition_writes_total", help), &results);
    }

    /// Writes the patch. Returns true if all was written, or if the pod does not exist.
    async fn write(&self, due: &PodStatusPatch) -> bool {
        let condition = |(kind, written): &(&str, ReplicaCondition)| -> Value {
            let ReplicaCondition { status, reason, message, since } = written;
            json!({"type": kind, "status": status, "reason": reason, "message": message,
                "lastTransitionTime": since})
        };
        let conditions: Vec<Value> = due.conditions.iter().map(condition).collect();
        // A strategic merge patch keeps conditions of other types. A write to a pod's status may also contain
        // annotations.
        let mut patch = json!({"status": {"conditions": conditions}});
        if !due.annotations.is_empty() {
            patch["metadata"] = json!({"annotations": due.annotations});
        }
        let patch = Patch::Strategic(patch);
        let params = PatchParams::default();
        let write = self.pods.patch_status(&self.pod, &params, &patch);
        let failure = match timeout(ANSWER, write).await {
            Ok(Ok(_)) => {
                self.written.fetch_add(1, Ordering::Relaxed);
                return true;
            }
            // The pod was deleted, and the watch will report that.
            Ok(Err(Error::Api(status))) if status.code == 404 => return true,
            Ok(Err(error)) => error.to_string(),
            Err(_elapsed) => format!("no answer in {ANSWER:?}"),
        };
        self.failed(&failure);
        false
    }

    fn failed(&self, failure: &str) {
        self.failed.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(pod = self.pod, failure, "cannot write the pod's conditions; retrying");
    }
}

/// The wanted report, and the present report of the pod.
struct Observed<'a> {
    own: &'a ReplicaReporter,
    reports: ReportSource,
    wanted: ReplicaReport,
    /// The present report; empty if the pod does not exist.
    pod: Reflection<(), ReportedConditions>,
}

enum Observation {
    Wanted(ReplicaReport),
    Reported(WatchReport<ReportedConditions>),
}

impl Observed<'_> {
    fn due(&self) -> PodStatusPatch {
        let Some(said) = self.pod.values().get(&()) else { return PodStatusPatch::default() };
        let due = |wanted: &ReplicaPodCondition| {
            let found = said.conditions.get(wanted.kind);
            if found.is_some_and(|found| found.says(wanted)) {
                return None;
            }
            let same = found.filter(|found| found.status == wanted.status);
            let since = same.and_then(|same| same.since.clone());
            let written = ReplicaCondition {
                status: wanted.status.to_owned(),
                reason: wanted.reason.to_owned(),
                message: wanted.message.clone(),
                since: Some(since.unwrap_or_else(|| Time(Timestamp::now()))),
            };
            Some((wanted.kind, written))
        };
        let ReplicaReport { conditions, annotations } = &self.wanted;
        let differs =
            |name: &str, value: &Option<String>| said.annotations.get(name) != value.as_ref();
        let others = annotations.iter().filter(|(name, value)| differs(name, value));
        PodStatusPatch {
            conditions: conditions.iter().filter_map(due).collect(),
            annotations: others.map(|(name, value)| (*name, value.clone())).collect(),
        }
    }
}

impl PodStatusPatch {
    fn is_empty(&self) -> bool {
        self.conditions.is_empty() && self.annotations.is_empty()
    }
}

impl Reconciler for Observed<'_> {
    type Observation = Observation;

    /// Longer than by default, because the reason of a failure may change with every attempt.
    const PAUSE: Duration = Duration::from_secs(10);
    const RETRY: Duration = Duration::from_secs(10);

    fn watches(&self) -> BoxStream<'static, Observation> {
        let reports = Arc::clone(&self.reports);
        let looks = stream::unfold(interval(LOOK), |mut ticks| async move {
            ticks.tick().await;
            Some(((), ticks))
        });
        let wanted = looks.map(move |()| Observation::Wanted(reports()));
        let pod = leno_kube::watch(self.own.pods.clone(), WatchSelection::named(&self.own.pod));
        let said = pod.map(|report| Observation::Reported(report.map(said_by)));
        stream::select(wanted, said).boxed()
    }

    fn observe(&mut self, observation: Observation) {
        match observation {
            Observation::Wanted(wanted) => self.wanted = wanted,
            Observation::Reported(WatchReport::Event(event)) => {
                self.pod.take(event, |said| ((), Some(said)));
            }
            Observation::Reported(WatchReport::Resumed) => {}
            Observation::Reported(WatchReport::Failed(error)) => {
                self.own.failed(&error.to_string())
            }
        }
    }

    fn is_due(&self) -> bool {
        !self.due().is_empty()
    }

    async fn reconcile(&mut self) -> bool {
        let due = self.due();
        let is_written = self.own.write(&due).await;
        if is_written && let Some(said) = self.pod.values().get(&()) {
            let mut said = said.clone();
            let conditions = due.conditions.into_iter();
            said.conditions.extend(conditions.map(|(kind, written)| (kind.to_owned(), written)));
            for (name, value) in due.annotations {
                match value {
                    Some(value) => said.annotations.insert(name.to_owned(), value),
                    None => said.annotations.remove(name),
                };
            }
            self.pod.insert((), said);
        }
        is_written
    }
}

fn said_by(mut pod: Pod) -> ReportedConditions {
    let annotations = pod.metadata.annotations.take().unwrap_or_default();
    let conditions = pod.status.and_then(|status| status.conditions).unwrap_or_default();
    let written = conditions.into_iter().map(|one| {
        let (reason, message) = (one.reason.unwrap_or_default(), one.message.unwrap_or_default());
        let since = one.last_transition_time;
        (one.type_, ReplicaCondition { status: one.status, reason, message, since })
    });
    ReportedConditions { conditions: written.collect(), annotations }
}
