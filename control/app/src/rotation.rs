//! Changes the certificate authority: starts using a renewed issuer, carries out operators' requests, ends revocations,
//! and ends a phase of a rotation of the root once every proxy has acknowledged it.
//!
//! ```text
//!   every TICK:  request? ──► begin, abort, revoke ─┐
//!                issuer changed? revocation over? ──┼──► stored ──► Authority ──► proxies
//!                all proxies acknowledged? ─────────┘
//! ```
//! After a crash the control plane continues with the stored state.

mod cluster;
mod progress;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, sleep};
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context as _;
use leno_identity::report::{IdentityReport, RequestReport};
use leno_identity::{
    Authority, AuthorityDirectory, AuthorityState, OperatorRequest, OperatorVerb, RotationError,
    RotationPhase, read_issuer,
};
use leno_program::Family;
use leno_serve::PlaneState;
use leno_types::Identity;

pub(crate) use cluster::{ClusterParts, PublishedRoots, trust_annotation};
use progress::PhaseProgress;

/// How often files are checked and reports of proxies are counted.
const TICK: Duration = Duration::from_millis(500);
/// How long the control plane waits after its start for proxies to connect before it counts them. Proxies try to
/// connect at least every 5 s.
const SETTLE: Duration = Duration::from_secs(15);

/// Changes the authority of a single machine.
pub(crate) struct Rotation {
    /// The authority and its report, which also show the progress of proxies.
    shown: Arc<RotationReport>,
    store: AuthorityDirectory,
    /// The file with the roots for verifying the control plane, if this process writes it.
    roots_file: Option<PathBuf>,
    /// The roots that were last written to the file.
    written: String,
    /// The directory in which the operator places an issuer: a certificate and its key that sign workloads'
    /// certificates.
    issuer: Option<PathBuf>,
    /// The lifetime of the certificates of workloads.
    lifetime: Duration,
    /// Shortest duration of a phase. Other trust domains must have time to fetch the bundle.
    phase_hold: Duration,
    started: Instant,
}

/// The state of the authority and its rotation, as it is reported.
pub(crate) struct RotationReport {
    authority: Arc<Authority>,
    state: Arc<PlaneState>,
    /// Why the present phase cannot end yet, in sentences for operators, except for the proxies of this process.
    waits: Mutex<Vec<String>>,
    /// Why the authority could not be changed in the last step.
    problem: Mutex<Option<String>>,
}

impl RotationReport {
    pub(crate) fn new(authority: Arc<Authority>, state: Arc<PlaneState>) -> Arc<Self> {
        let (waits, problem) = (Mutex::default(), Mutex::default());
        Arc::new(Self { authority, state, waits, problem })
    }

    /// The report for `/identity`.
    pub(crate) fn report(&self) -> IdentityReport {
        let trust = self.authority.trust();
        let state = trust.state();
        let progress = PhaseProgress::of(&self.state, state.phase);
        IdentityReport {
            trust_domain: self.authority.trust_domain().to_string(),
            phase: state.phase.as_str().to_owned(),
            aborted: state.aborted,
            since_unix_s: state.since_unix_s,
            tls_profile: leno_crypto::profile().to_string(),
            own_root: state.signing().is_own_root(),
            issuer: trust.issuer().to_owned(),
            chain: trust.chain(),
            roots: trust.roots(),
            others: trust.others(),
            federated: trust.federated(),
            bundle: self.state.wanted_trust().map(|wanted| wanted.bundle).unwrap_or_default(),
            proxies: progress.report(),
            revoked: state.revoked.keys().cloned().collect(),
            waits: locked(&self.waits).clone(),
            request: (!state.last_request.is_empty()).then(|| RequestReport {
                id: state.last_request.clone(),
                refused: state.last_refused.clone(),
            }),
            problem: locked(&self.problem).clone(),
        }
    }

    /// Appends the expiry of certificates, for alerts, and the progress of a rotation, as Prometheus text.
    pub(crate) fn render(&self, text: &mut String) {
        let trust = self.authority.trust();
        let phase = trust.state().phase;
        let progress = PhaseProgress::of(&self.state, phase);
        let unix = |time: SystemTime| {
            time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
        };
        let phases = [
            RotationPhase::Stable,
            RotationPhase::Add,
            RotationPhase::Switch,
            RotationPhase::Remove,
        ];
        let number = phases.iter().position(|one| *one == phase).unwrap_or_default();
        let rows: [(&str, &str, u64); 7] = [
            (
                "root_expiration_timestamp_seconds",
                "When the root certificate ends.",
                unix(trust.root_not_after()),
            ),
            (
                "issuer_expiration_timestamp_seconds",
                "When the certificate ends that signs those of workloads.",
                unix(trust.issuer_not_after()),
            ),
            (
                "rotation_phase",
                "Phase of a rotation of the root: 0 none, 1 add, 2 switch, 3 remove.",
                number as u64,
            ),
            (
                "other_roots",
                "Roots of another authority of the trust domain, such as SPIRE, that workloads trust.",
                trust.others_der().len() as u64,
            ),
            (
                "federated_trust_domains",
                "Other trust domains whose workloads are accepted as clients.",
                trust.federated_der().len() as u64,
            ),
            (
                "trust_current_proxies",
                "Connected proxies that have acknowledged the trust bundle.",
                progress.current as u64,
            ),
            (
                "trust_waiting_proxies",
                "Proxies that have not acknowledged the trust bundle, or have no certificate of the key that signs.",
                progress.waiting.len() as u64,
            ),
        ];
        for (name, help, value) in rows {
            let name = format!("leno_control_{name}");
            Family::gauge(text, &name, help).sample(&[], value);
        }
    }

    /// The state in the next phase, if a rotation is in progress and no proxy of this process still has to acknowledge
    /// the present phase.
    fn acknowledged(&self) -> Option<AuthorityState> {
        let trust = self.authority.trust();
        let phase = trust.state().phase;
        let progress = PhaseProgress::of(&self.state, phase);
        if phase == RotationPhase::Stable || !progress.waiting.is_empty() {
            return None;
        }
        let next = trust.state().advance(now());
        tracing::warn!(
            from = phase.as_str(),
            to = next.phase.as_str(),
            proxies = progress.connected,
            "the root rotation enters its next phase"
        );
        Some(next)
    }

    /// Sets the problem for the report; `None` if there is none any more. Logs a problem once, when it is new.
    fn trouble(&self, problem: Option<String>) {
        let mut known = locked(&self.problem);
        if *known != problem {
            if let Some(problem) = &problem {
                tracing::error!(problem, "the root rotation cannot continue");
            }
            *known = problem;
        }
    }
}

impl Rotation {
    pub(crate) fn new(shown: Arc<RotationReport>, directory: &Path, lifetime: Duration) -> Self {
        let (roots_file, written, issuer) = (None, String::new(), None);
        let (store, started) = (AuthorityDirectory::new(directory), Instant::now());
        let phase_hold = Duration::ZERO;
        Self { shown, store, roots_file, written, issuer, lifetime, phase_hold, started }
    }

    /// Sets the directory in which the operator places an issuer.
    pub(crate) fn with_issuer(self, issuer: Option<PathBuf>) -> Self {
        Self { issuer, ..self }
    }

    /// Sets the shortest duration of a phase.
    pub(crate) fn with_phase_hold(self, phase_hold: Duration) -> Self {
        Self { phase_hold, ..self }
    }

    /// Sets the file for the roots.
    pub(crate) fn with_roots_file(self, roots_file: Option<PathBuf>) -> Self {
        Self { roots_file, ..self }
    }

    /// Runs until the process ends, on a separate thread. It often reads and writes files, which would block a
    /// thread of the runtime.
    pub(crate) fn start(mut self) -> std::io::Result<()> {
        let run = move || loop {
            let moved = self.step();
            self.shown.trouble(moved.err().map(|error| format!("{error:#}")));
            sleep(TICK);
        };
        thread::Builder::new().name("rotation".to_owned()).spawn(run)?;
        Ok(())
    }

    fn step(&mut self) -> anyhow::Result<()> {
        self.write_roots()?;
        if let Some(request) = self.store.request()? {
            let asked = self.operator().asked(&self.shown, &request)?;
            // `None` if an earlier process carried out the request and ended before it could record that.
            if let Some(next) = asked {
                self.take(next)?;
            }
            self.store.obeyed()?;
        }
        if let Some(next) = self.operator().given(&self.shown)? {
            return self.take(next);
        }
        let trust = self.shown.authority.trust();
        let held = held(trust.state(), self.phase_hold);
        let wait =
            held.map(|left| format!("{left} s, until other trust domains have fetched the roots"));
        let may_end = wait.is_none() && self.started.elapsed() >= SETTLE;
        *locked(&self.shown.waits) = wait.into_iter().collect();
        if trust.state().phase == RotationPhase::Stable || !may_end {
            return Ok(());
        }
        match self.shown.acknowledged() {
            Some(next) => self.take(next),
            None => Ok(()),
        }
    }

    fn operator(&self) -> Operator<'_> {
        Operator { issuer: self.issuer.as_deref(), lifetime: self.lifetime }
    }

    /// Stores the next state, then signs with it.
    fn take(&mut self, next: AuthorityState) -> anyhow::Result<()> {
        let place = self.store.place();
        // Checked before it is stored, because the next start must not read an invalid state.
        Authority::from_state(&place, next.clone(), self.shown.authority.trust_domain())?;
        self.store.save(&next)?;
        self.shown.authority.apply(&place, next)?;
        // Published before proxies are counted again, because their acknowledgements so far are for the earlier
        // bundle.
        self.shown.state.publish_trust(&self.shown.authority);
        self.write_roots()
    }

    fn write_roots(&mut self) -> anyhow::Result<()> {
        let trust = self.shown.authority.trust();
        let Some(file) = self.roots_file.as_ref().filter(|_| self.written != trust.roots_pem())
        else {
            return Ok(());
        };
        leno_identity::write_public(file, trust.roots_pem().as_bytes())?;
        trust.roots_pem().clone_into(&mut self.written);
        Ok(())
    }
}

/// For how many more seconds the phase of a rotation must last; `None` if it may end, or without a rotation.
fn held(state: &AuthorityState, hold: Duration) -> Option<u64> {
    let lasted = now().saturating_sub(state.since_unix_s);
    let left = hold.as_secs().saturating_sub(lasted);
    (state.phase != RotationPhase::Stable && left > 0).then_some(left)
}

/// Derives the next state of the authority from what an operator has provided, in files or in a cluster.
#[derive(Clone, Copy, Debug)]
struct Operator<'a> {
    /// The directory in which the operator places an issuer.
    issuer: Option<&'a Path>,
    /// The lifetime of the certificates of workloads.
    lifetime: Duration,
}

impl Operator<'_> {
    /// The state after a request. If the request is rejected, the state differs from the present one only by a record
    /// of the rejection. `None` if the request was already carried out.
    fn asked(
        &self,
        shown: &RotationReport,
        request: &OperatorRequest,
    ) -> anyhow::Result<Option<AuthorityState>> {
        let trust = shown.authority.trust();
        let state = trust.state();
        if state.last_request == request.id {
            return Ok(None);
        }
        let next = match &request.verb {
            OperatorVerb::Abort => state.abort(now()),
            OperatorVerb::Begin if self.issuer.is_some() => Err(RotationError::Given),
            OperatorVerb::Revoke(name) => match name.parse::<Identity>() {
                Ok(identity) => {
                    let begin = shown.authority.newest_begin(self.lifetime, SystemTime::now());
                    state.revoke(&identity, begin, now())
                }
                Err(_) => Err(RotationError::NotAnIdentity),
            },
            OperatorVerb::Begin => {
                let next = Authority::new_root(shown.authority.trust_domain())?;
                let begun = state.begin(next, now());
                begun.and_then(|next| Ok(trust.check_room(&next).map(|()| next)?))
            }
        };
        let (next, last_refused) = match next {
            Ok(next) => {
                let phase = next.phase.as_str();
                tracing::warn!(verb = ?request.verb, phase, "carrying out a request of the operator");
                (next, None)
            }
            Err(error) => (state.clone(), Some(error.to_string())),
        };
        Ok(Some(AuthorityState { last_request: request.id.clone(), last_refused, ..next }))
    }

    /// The state after an issuer was renewed or replaced, or after a revocation has ended; `None` if nothing has
    /// changed.
    fn given(&self, shown: &RotationReport) -> anyhow::Result<Option<AuthorityState>> {
        let trust = shown.authority.trust();
        if let Some(issuer) = self.issuer {
            let given = read_issuer(issuer)?;
            if let Some(next) = trust.state().with_issuer(&given, now()) {
                trust.check_room(&next).context("the configured issuer")?;
                tracing::warn!(phase = next.phase.as_str(), "using the configured issuer");
                return Ok(Some(next));
            }
        }
        Ok(trust.state().without_ended(now()))
    }
}

/// Locks a mutex. Poisoning is ignored, because values are only replaced as a whole, so a panic leaves no partial
/// value.
fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}
