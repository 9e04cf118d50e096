//! Rotation in a cluster: the leader changes the authority in the Secret `leno-ca`, and all replicas follow the Secret.
//!
//! ```text
//!  the leader: request, issuer, all acknowledged ──► Secret ──► each replica ──► its proxies
//!       ▲                                                                           │
//!       └── Replicas ◄── annotation of the replica's pod ◄── PhaseProgress ◄────────┘
//! ```

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leno_cluster::{
    AuthorityStore, ReplicaTrust, Replicas, RootsReconciler, TrustBundleReconciler,
    WebhookReconciler,
};
use leno_identity::{Authority, AuthorityState, RotationPhase};
use leno_serve::PlaneState;
use tokio::sync::watch;
use tokio::time::interval;

use super::progress::PhaseProgress;
use super::{Operator, RotationReport, SETTLE, TICK, held, locked};

/// The parts for rotation in a cluster.
pub(crate) struct ClusterParts {
    pub(crate) store: AuthorityStore,
    pub(crate) replicas: Arc<Replicas>,
    pub(crate) published: PublishedRoots,
    pub(crate) leads: watch::Receiver<bool>,
    /// The name of this replica's pod.
    pub(crate) name: String,
    /// The directory in which the operator places an issuer: a certificate and its key that sign workloads'
    /// certificates.
    pub(crate) issuer: Option<PathBuf>,
    /// The lifetime of workloads' certificates.
    pub(crate) lifetime: Duration,
    /// Shortest duration of a phase. Kubelets need this time to update the roots in pods, which proxies read when
    /// they start.
    pub(crate) phase_hold: Duration,
    /// When this process started.
    pub(crate) started: Instant,
}

/// The reconcilers that publish the roots with which others verify the control plane.
#[derive(Clone)]
pub(crate) struct PublishedRoots {
    /// Publishes the roots for proxies that start.
    pub(crate) roots: Arc<RootsReconciler>,
    /// Publishes the roots for the API server, which calls the webhooks.
    pub(crate) hooks: Arc<WebhookReconciler>,
    /// Publishes the roots for pods that mount them.
    pub(crate) bundle: Arc<TrustBundleReconciler>,
}

/// The message while `ca.pem` of the Secret differs from the state beside it.
const IGNORED_EDIT: &str = "ca.pem or ca-key.pem of the Secret leno-ca was edited, which has no \
                            effect, because the control plane signs with authority.json beside \
                            them: replace the root with `leno identity rotate-root`, or set an \
                            issuer with controller.issuerSecret; the next phase of a rotation \
                            writes both fields again";

impl ClusterParts {
    /// Changes the authority while this replica leads, until the process ends.
    pub(crate) async fn run(mut self, shown: Arc<RotationReport>) {
        let mut tick = interval(TICK);
        loop {
            if !*self.leads.borrow() {
                locked(&shown.waits).clear();
            }
            if self.leads.wait_for(|leads| *leads).await.is_err() {
                return;
            }
            tick.tick().await;
            let step = self.step(&shown).await;
            let ignored = self.store.has_ignored_edit().then(|| IGNORED_EDIT.to_owned());
            shown.trouble(step.err().map(|error| format!("{error:#}")).or(ignored));
        }
    }

    async fn step(&self, shown: &RotationReport) -> anyhow::Result<()> {
        let trust = shown.authority.trust();
        if self.store.stored().as_ref() != Some(trust.state()) {
            // The watch has not reported the last stored state yet.
            return self.complete(shown).await;
        }
        let operator = Operator { issuer: self.issuer.as_deref(), lifetime: self.lifetime };
        if let Some(request) = self.replicas.request()
            && let Some(next) = operator.asked(shown, &request)?
        {
            return self.take(shown, &next).await;
        }
        if let Some(next) = operator.given(shown)? {
            return self.take(shown, &next).await;
        }
        let waits = self.waits(shown, trust.state());
        let may_end = waits.is_empty();
        *locked(&shown.waits) = waits;
        match may_end.then(|| shown.acknowledged()).flatten() {
            Some(next) => self.take(shown, &next).await,
            None => Ok(()),
        }
    }

    /// What prevents the phase from ending, besides the proxies of this replica.
    fn waits(&self, shown: &RotationReport, state: &AuthorityState) -> Vec<String> {
        if state.phase == RotationPhase::Stable {
            return Vec::new();
        }
        let mut waits = self.replicas.waits(&self.name, &serves(&shown.state, state.phase), SETTLE);
        if self.started.elapsed() < SETTLE {
            waits.push("this replica has just started".to_owned());
        }
        if !self.published.roots.is_settled() {
            waits.push("not all namespaces have the roots yet".to_owned());
        }
        if !self.published.hooks.is_settled() {
            let reason =
                "the API server does not verify the webhooks by these roots yet (caBundle)";
            waits.push(reason.to_owned());
        }
        if !self.published.bundle.is_settled() {
            waits.push("the ClusterTrustBundle does not have the roots yet: the log of the controller says why".to_owned());
        }
        if let Some(left) = held(state, self.phase_hold) {
            let meanwhile = "until kubelets have put the roots into pods, and other trust domains have fetched them";
            waits.push(format!("{left} s, {meanwhile}"));
        }
        waits
    }

    /// Stores the state if an earlier release has written the Secret, which then lacks a state. No change is made
    /// before that.
    async fn complete(&self, shown: &RotationReport) -> anyhow::Result<()> {
        let trust = shown.authority.trust();
        let Some(stored) = self.store.stored() else { return Ok(()) };
        if stored.since_unix_s == 0 && stored.to.certificates == trust.state().to.certificates {
            self.take(shown, trust.state()).await?;
        }
        Ok(())
    }

    async fn take(&self, shown: &RotationReport, next: &AuthorityState) -> anyhow::Result<()> {
        self.store.save(next, shown.authority.trust_domain()).await?;
        Ok(())
    }
}

/// Identifies a phase and the bundle that a replica serves in it, so that reports about another phase are not
/// counted.
fn serves(state: &PlaneState, phase: RotationPhase) -> String {
    let wanted = state.wanted_trust().unwrap_or_default();
    format!("{} {} {}", phase.as_str(), wanted.bundle, wanted.issuer)
}

/// The value of the annotation in which this replica reports about its proxies during a rotation; `None` without a
/// rotation.
pub(crate) fn trust_annotation(
    authority: &Authority,
    state: &PlaneState,
    (run, started): (&str, Instant),
) -> Option<String> {
    let phase = authority.trust().state().phase;
    if phase == RotationPhase::Stable {
        return None;
    }
    let trust = ReplicaTrust {
        run: run.to_owned(),
        serves: serves(state, phase),
        settled: started.elapsed() >= SETTLE,
        waiting: PhaseProgress::of(state, phase).waiting.len(),
    };
    Some(serde_json::to_string(&trust).expect("texts and numbers are always JSON"))
}
