//! Cancels an unfinished removal of the mesh, while this replica leads.

use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Namespace;
use leno_kube::api::{Patch, PatchParams};
use leno_kube::{
    Api, Client, Error, Reflection, Resource, WatchError, WatchReport, WatchSelection, is_status,
};
use leno_resources::{REMOVAL_ANNOTATION, REMOVAL_RUN_ANNOTATION, removal};
use leno_types::Removal;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use crate::counts;
use crate::reconcile::{Reconciler, while_leading};
use crate::webhooks::INJECTOR;

/// Longest wait for all answers of the API server during one check.
const ANSWERS: Duration = Duration::from_secs(10);
/// How long plaintext is still accepted after mTLS was enabled again. Proxies are informed of that within a
/// second; a proxy that had lost its control plane connects again within a few seconds.
const HOLD: Duration = Duration::from_secs(15);
/// The name of the DaemonSet of agents. Without agents no pod is captured.
const AGENT: &str = "leno-agent";

/// Cancels a removal of the mesh that was begun but not finished, if the mesh was installed again since. Otherwise
/// the mesh would stay half removed: without mTLS, and without any report of it.
///
/// A removal deletes the webhooks before it records its first step. So if a step is recorded and the webhooks
/// exist, the mesh was installed since, and has to be restored. The steps are undone in reverse order:
///
/// ```text
///  released, plaintext ── agents ready ──► permissive ── agents ready, HOLD ──► none
///  pods may have no capture                mTLS is used, plaintext is accepted  as before
/// ```
///
/// Three watches report that something may have changed. The controller then reads the objects again, in the order
/// of [`look`](Self::look). It decides only by what it has read, because watches of different kinds report in no
/// particular order.
pub struct RemovalReconciler {
    client: Client,
    /// The control plane's own namespace. Its annotation records how far the removal has gone.
    namespace: String,
    /// How many times a check had each outcome.
    counts: [(Outcome, AtomicU64); 7],
}

/// The outcome of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// A step was undone.
    Back,
    /// The mesh was not installed again: it is being removed, or its removal was abandoned.
    Removed,
    /// No step is in effect any more, but the watch has not reported that yet.
    Over,
    /// The mesh was installed again, but the agents are not ready on all nodes.
    NoAgents,
    /// The mesh was installed again, but [`HOLD`] has not passed.
    Held,
    /// Another client has changed the namespace since it was read.
    Conflict,
    /// The objects could not be read or written.
    Failed,
}

impl Outcome {
    /// All outcomes, in the order of their declaration.
    const ALL: [Self; 7] = [
        Self::Back,
        Self::Removed,
        Self::Over,
        Self::NoAgents,
        Self::Held,
        Self::Conflict,
        Self::Failed,
    ];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Back => "back",
            Self::Removed => "removed",
            Self::Over => "over",
            Self::NoAgents => "no_agents",
            Self::Held => "held",
            Self::Conflict => "conflict",
            Self::Failed => "failed",
        }
    }
}

/// How far a removal has gone, and whether it has to be cancelled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RemovalProgress {
    /// No step is in effect.
    Over,
    /// A step is in effect, and the mesh was not installed again.
    Removed,
    /// A step has to be undone, because the mesh was installed again.
    Halfway(HeldRemoval),
}

/// A mesh that was installed again while a step of its removal is in effect, as it was read. It is only changed if
/// it has not changed since.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldRemoval {
    /// The step in effect.
    pub step: Removal,
    /// The step to go back to.
    pub to: Removal,
    /// Whether the agents are ready on all nodes.
    pub captures: bool,
    /// The version of the namespace in which the step was read.
    version: Option<String>,
}

impl HeldRemoval {
    /// Why the step cannot be undone yet, if so. `held` is how long the step has been in effect.
    fn waits(&self, held: Duration) -> Option<Outcome> {
        if !self.captures {
            return Some(Outcome::NoAgents);
        }
        // Without a step in effect, a workload no longer accepts plaintext that it did not accept before the
        // removal, so this waits.
        (self.to == Removal::None && held < HOLD).then_some(Outcome::Held)
    }
}

/// The step to go back to. `None` if no step is in effect.
const fn back(step: Removal) -> Option<Removal> {
    match step {
        Removal::None => None,
        Removal::Permissive => Some(Removal::None),
        Removal::Plaintext | Removal::Released => Some(Removal::Permissive),
    }
}

impl RemovalReconciler {
    /// Creates the reconciler for the mesh whose control plane runs in this namespace.
    #[must_use]
    pub fn new(client: Client, namespace: &str) -> Self {
        let counts = Outcome::ALL.map(|outcome| (outcome, AtomicU64::new(0)));
        Self { client, namespace: namespace.to_owned(), counts }
    }

    /// Watches, and writes while `leads` is true. Returns when the sender of `leads` is dropped.
    pub async fn run(&self, leads: watch::Receiver<bool>) {
        while_leading(leads, || Observed::new(self)).await;
    }

    /// Appends the counters, as Prometheus text.
    pub fn render(&self, text: &mut String) {
        let help = "Checks whether a removal must be reverted, by result.";
        let results = self.counts.each_ref().map(|(outcome, count)| (outcome.as_str(), count));
        counts::render(text, ("removal_looks_total", help), &results);
    }

    fn count(&self, outcome: Outcome) {
        self.counts[outcome as usize].1.fetch_add(1, Ordering::Relaxed);
    }

    fn failed(&self, failure: &str) {
        self.count(Outcome::Failed);
        tracing::warn!(failure, "unknown whether the mesh stays; retrying");
    }

    /// Reads how far the removal has gone, and whether it has to be cancelled.
    ///
    /// # Errors
    /// If the API server does not answer, or does not permit reading.
    pub async fn look(&self) -> Result<RemovalProgress, Error> {
        // The order matters: if a step was read first, the removal had deleted the webhooks by then, so webhooks
        // that are read afterwards are new.
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let metadata = namespaces.get_metadata(&self.namespace).await?.metadata;
        let step = removal(&metadata.annotations.unwrap_or_default());
        let Some(to) = back(step) else { return Ok(RemovalProgress::Over) };
        let webhooks: Api<MutatingWebhookConfiguration> = Api::all(self.client.clone());
        if webhooks.get_opt(INJECTOR).await?.is_none() {
            return Ok(RemovalProgress::Removed);
        }
        let agents: Api<DaemonSet> = Api::namespaced(self.client.clone(), &self.namespace);
        let captures = agents.get_opt(AGENT).await?.as_ref().is_some_and(are_ready);
        let version = metadata.resource_version;
        Ok(RemovalProgress::Halfway(HeldRemoval { step, to, captures, version }))
    }

    /// Undoes a step, unless the namespace has changed since it was read, for example because a removal has begun
    /// again. Returns whether the step was written.
    ///
    /// # Errors
    /// If the API server does not answer, or does not permit writing.
    pub async fn write(&self, seen: &HeldRemoval) -> Result<bool, Error> {
        let said = match seen.to {
            Removal::None => json!({REMOVAL_ANNOTATION: null, REMOVAL_RUN_ANNOTATION: null}),
            to => json!({REMOVAL_ANNOTATION: to.as_str()}),
        };
        let patch: Value =
            json!({"metadata": {"resourceVersion": seen.version, "annotations": said}});
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let patch = Patch::Merge(&patch);
        match namespaces.patch_metadata(&self.namespace, &PatchParams::default(), &patch).await {
            Ok(_) => Ok(true),
            Err(error) if is_status(&error, 409) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// What the watches have reported about a removal, and what the checks have found since.
struct Observed<'a> {
    own: &'a RemovalReconciler,
    /// The step in the namespace's annotation.
    step: Reflection<(), Removal>,
    /// Whether a watch has reported something since the last check, or the last check has failed.
    changed: bool,
    /// The step that is in effect, and since when this replica has found it so.
    since: Option<(Removal, Instant)>,
    /// The outcome of the last check.
    last: Option<Outcome>,
}

/// A report of one of the watches.
enum Observation {
    Step(WatchReport<Removal>),
    /// A change of another object that decides whether a step may be undone.
    Other(WatchReport<()>),
}

impl<'a> Observed<'a> {
    fn new(own: &'a RemovalReconciler) -> Self {
        Self { own, step: Reflection::default(), changed: false, since: None, last: None }
    }

    fn holds(&self) -> bool {
        self.step.values().get(&()).is_some_and(|step| *step > Removal::None)
    }

    /// Checks once, and undoes a step if that is permitted.
    async fn one(&mut self) -> Result<Outcome, Error> {
        let seen = match self.own.look().await? {
            RemovalProgress::Halfway(seen) => seen,
            nothing => {
                self.since = None;
                let over = nothing == RemovalProgress::Over;
                return Ok(if over { Outcome::Over } else { Outcome::Removed });
            }
        };
        let held = match self.since {
            Some((step, at)) if step == seen.step => at,
            _ => self.since.insert((seen.step, Instant::now())).1,
        };
        if let Some(waits) = seen.waits(held.elapsed()) {
            return Ok(waits);
        }
        if !self.own.write(&seen).await? {
            return Ok(Outcome::Conflict);
        }
        let from = seen.step;
        match seen.to {
            Removal::None => {
                tracing::warn!("the mesh was installed again while it was being removed: it stays");
            }
            to => tracing::warn!(
                %from, %to,
                "the mesh was installed again while it was being removed: its removal goes back \
                 one step"
            ),
        }
        Ok(Outcome::Back)
    }
}

impl Reconciler for Observed<'_> {
    type Observation = Observation;

    fn watches(&self) -> BoxStream<'static, Observation> {
        let RemovalReconciler { client, namespace, .. } = self.own;
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let namespaces = leno_kube::watch(namespaces, WatchSelection::named(namespace));
        let webhooks: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
        let agents: Api<DaemonSet> = Api::namespaced(client.clone(), namespace);
        let others = stream::select(changes_of(webhooks, INJECTOR), changes_of(agents, AGENT));
        let others = others.map(Observation::Other);
        let step = |one: Namespace| removal(&one.metadata.annotations.unwrap_or_default());
        let steps = namespaces.map(move |report| Observation::Step(report.map(step)));
        stream::select(steps, others).boxed()
    }

    fn observe(&mut self, observation: Observation) {
        let error = match observation {
            Observation::Step(WatchReport::Event(event)) => {
                self.step.take(event, |step| ((), Some(step)));
                if !self.holds() {
                    (self.since, self.last) = (None, None);
                }
                self.changed = true;
                return;
            }
            Observation::Other(WatchReport::Event(_)) => {
                self.changed = true;
                return;
            }
            Observation::Step(WatchReport::Resumed) | Observation::Other(WatchReport::Resumed) => {
                return;
            }
            Observation::Step(WatchReport::Failed(error))
            | Observation::Other(WatchReport::Failed(error)) => error,
        };
        self.own.failed(&match &error {
            WatchError::InitialListFailed(error) | WatchError::WatchStartFailed(error) => {
                failure(error)
            }
            error => error.to_string(),
        });
    }

    fn is_due(&self) -> bool {
        self.holds() && (self.changed || self.last == Some(Outcome::Held))
    }

    fn not_before(&self) -> Option<Instant> {
        let (_, since) = self.since.filter(|_| !self.changed)?;
        Some(since + HOLD)
    }

    async fn reconcile(&mut self) -> bool {
        self.changed = false;
        let done = timeout(ANSWERS, self.one()).await;
        let outcome = match done {
            Ok(Ok(outcome)) => {
                self.own.count(outcome);
                outcome
            }
            Ok(Err(error)) => {
                self.own.failed(&failure(&error));
                Outcome::Failed
            }
            Err(_elapsed) => {
                self.own.failed("no answer");
                Outcome::Failed
            }
        };
        if outcome == Outcome::NoAgents && self.last != Some(outcome) {
            tracing::warn!(
                "the mesh was installed again while it was being removed: mTLS waits until {AGENT} is ready on \
                 all nodes"
            );
        }
        self.last = Some(outcome);
        let again = matches!(outcome, Outcome::Failed | Outcome::Conflict);
        self.changed |= again;
        !again
    }
}

/// Watches one object, and yields only that it has changed.
fn changes_of<K>(api: Api<K>, name: &str) -> BoxStream<'static, WatchReport<()>>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    leno_kube::watch(api, WatchSelection::named(name)).map(|report| report.map(drop)).boxed()
}

/// The text to log for an error, with what to do about it.
fn failure(error: &Error) -> String {
    match error {
        Error::Api(status) if status.code == 403 => format!(
            "{}: ClusterRole and Role leno-controller are not those of this version: leno upgrade \
             | kubectl apply --server-side -f -",
            status.message
        ),
        error => error.to_string(),
    }
}

/// Whether a ready agent runs on every node that should have one.
fn are_ready(agents: &DaemonSet) -> bool {
    agents.status.as_ref().is_some_and(|status| {
        status.observed_generation == agents.metadata.generation
            && status.number_ready == status.desired_number_scheduled
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_back_by_steps_and_only_where_pods_are_captured() {
        let seen =
            |step, captures| HeldRemoval { step, to: back(step).unwrap(), captures, version: None };
        for step in [Removal::Released, Removal::Plaintext] {
            let seen = seen(step, true);
            assert_eq!((seen.to, seen.waits(Duration::ZERO)), (Removal::Permissive, None));
        }
        let permissive = seen(Removal::Permissive, true);
        assert_eq!(permissive.to, Removal::None);
        assert_eq!(permissive.waits(Duration::ZERO), Some(Outcome::Held));
        assert_eq!(permissive.waits(HOLD), None);
        for step in [Removal::Released, Removal::Plaintext, Removal::Permissive] {
            assert_eq!(seen(step, false).waits(HOLD), Some(Outcome::NoAgents), "{step}");
        }
        assert_eq!(back(Removal::None), None);
    }

    #[test]
    fn agents_are_ready_on_all_nodes_or_not_at_all() {
        let agents = |status: Value| {
            let object = json!({"metadata": {"generation": 2}, "status": status});
            are_ready(&serde_json::from_value(object).unwrap())
        };
        let status = |observed: u64, wanted: u64, ready: u64| {
            json!({"observedGeneration": observed, "desiredNumberScheduled": wanted,
                "numberReady": ready, "currentNumberScheduled": 0, "numberMisscheduled": 0})
        };
        assert!(agents(status(2, 3, 3)));
        assert!(!agents(status(2, 3, 2)));
        assert!(!agents(status(1, 3, 3)), "of an older description");
        assert!(!agents(Value::Null), "its status is not known");
    }

    #[test]
    fn each_result_is_counted_under_its_own_name() {
        for (place, outcome) in Outcome::ALL.iter().enumerate() {
            assert_eq!(*outcome as usize, place);
        }
    }
}
