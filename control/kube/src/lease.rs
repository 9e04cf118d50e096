//! Elects the replica that leads. A Lease names the leader.

use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::timeout;

mod election;

use crate::is_status;
use election::{Election, LeaseAction, LeaseRecord};

/// How long after the leader's last renewal the other replicas still regard it as the leader. Kubernetes' own
/// components use the same value.
const TERM: Duration = Duration::from_secs(15);
/// How often each replica reads the Lease, and the leader renews it.
const LOOK: Duration = Duration::from_secs(2);
/// Longest wait for one answer of the API server.
const ANSWER: Duration = Duration::from_secs(2);
/// How long a leader still acts as one after its last renewal that the API server has answered. Even with one more
/// interval and two more answers, this ends before another replica may take over.
const ACTS: Duration = Duration::from_secs(8);
/// The term in seconds that a leader writes into the Lease when it stops leading.
const RELEASED: i32 = 1;

/// Takes part in the election of a leader among the replicas.
pub struct Elector {
    leases: Api<Lease>,
    /// The name of the Lease.
    lease: String,
    election: Election,
    leads: watch::Sender<bool>,
    /// Until when this replica leads, according to its last renewal that the API server has answered.
    until: Option<Instant>,
}

/// The result of reading and writing the Lease.
enum Outcome {
    Leads,
    Follows,
}

impl Elector {
    /// Takes part in the election for the Lease with this namespace and name. `name` is the replica's name, and
    /// `run` distinguishes this run of the replica from others.
    #[must_use]
    pub fn new(client: Client, lease: (&str, &str), (name, run): (&str, &str)) -> Self {
        let (namespace, lease) = (lease.0, lease.1.to_owned());
        Self {
            leases: Api::namespaced(client, namespace),
            lease,
            election: Election::new(format!("{name}_{run}")),
            leads: watch::Sender::new(false),
            until: None,
        }
    }

    /// A receiver of whether this replica leads.
    #[must_use]
    pub fn leads(&self) -> watch::Receiver<bool> {
        self.leads.subscribe()
    }

    /// Takes part until `stop` is true, and then releases the Lease at once. After every read of the Lease, calls
    /// `heard` with whether the API server has answered.
    pub async fn run(mut self, heard: impl Fn(bool), mut stop: watch::Receiver<bool>) {
        loop {
            let begin = Instant::now();
            let outcome = timeout(ANSWER * 2, self.look()).await;
            match outcome {
                Ok(Ok(outcome)) => {
                    heard(true);
                    let leads = matches!(outcome, Outcome::Leads);
                    self.until = leads.then_some(begin + ACTS);
                }
                Ok(Err(error)) => {
                    // A refusal also counts as an answer, for example if this account may not read the Lease.
                    heard(matches!(error, kube::Error::Api(_)));
                    let error: &dyn std::error::Error = &error;
                    tracing::debug!(error, "cannot read the Lease");
                }
                Err(_elapsed) => heard(false),
            }
            self.tell();
            tokio::select! {
                () = tokio::time::sleep(LOOK) => {}
                // A dropped sender also means to stop.
                _ = stop.wait_for(|stop| *stop) => break,
            }
        }
        self.release().await;
    }

    fn tell(&self) {
        let leads = self.until.is_some_and(|until| Instant::now() < until);
        self.leads.send_if_modified(|led| {
            let turned = *led != leads;
            if turned {
                let (me, verb) = (self.election.me(), if leads { "begins" } else { "ends" });
                tracing::info!(me, "the lead of this replica {verb}");
            }
            *led = leads;
            turned
        });
    }

    async fn look(&mut self) -> Result<Outcome, kube::Error> {
        let found = self.leases.get_opt(&self.lease).await?;
        let step = self.election.step(found.as_ref().map(record), Instant::now());
        let now = MicroTime(Timestamp::now());
        let fresh = || LeaseSpec {
            holder_identity: Some(self.election.me().to_owned()),
            lease_duration_seconds: i32::try_from(TERM.as_secs()).ok(),
            acquire_time: Some(now.clone()),
            renew_time: Some(now.clone()),
            ..LeaseSpec::default()
        };
        let written = match (step, found) {
            (LeaseAction::Wait, _) => return Ok(Outcome::Follows),
            (LeaseAction::Create, _) | (_, None) => {
                let metadata =
                    ObjectMeta { name: Some(self.lease.clone()), ..ObjectMeta::default() };
                let lease = Lease { metadata, spec: Some(fresh()) };
                self.leases.create(&PostParams::default(), &lease).await
            }
            (LeaseAction::Take, Some(mut lease)) => {
                let transitions = lease.spec.as_ref().and_then(|spec| spec.lease_transitions);
                let transitions = transitions.unwrap_or(0).saturating_add(1);
                lease.spec = Some(LeaseSpec { lease_transitions: Some(transitions), ..fresh() });
                self.leases.replace(&self.lease, &PostParams::default(), &lease).await
            }
            (LeaseAction::Renew, Some(mut lease)) => {
                lease.spec.get_or_insert_default().renew_time = Some(now);
                self.leases.replace(&self.lease, &PostParams::default(), &lease).await
            }
        };
        match written {
            Ok(_) => Ok(Outcome::Leads),
            // Another replica has written the Lease first, so its version has changed.
            Err(error) if is_status(&error, 409) => Ok(Outcome::Follows),
            Err(error) => Err(error),
        }
    }

    /// Stops leading, then clears the holder in the Lease, so that the next replica that reads it takes over.
    async fn release(mut self) {
        if !*self.leads.borrow() {
            return;
        }
        self.until = None;
        self.tell();
        let released = async {
            let Some(mut lease) = self.leases.get_opt(&self.lease).await? else { return Ok(()) };
            if self.election.step(Some(record(&lease)), Instant::now()) != LeaseAction::Renew {
                return Ok(());
            }
            let spec = lease.spec.get_or_insert_default();
            spec.holder_identity = Some(String::new());
            spec.lease_duration_seconds = Some(RELEASED);
            self.leases.replace(&self.lease, &PostParams::default(), &lease).await.map(drop)
        };
        let released: Result<Result<(), kube::Error>, _> = timeout(ANSWER, released).await;
        if !matches!(released, Ok(Ok(()))) {
            tracing::warn!("the lead was not handed over; another replica takes it after {TERM:?}");
        }
    }
}

fn record(lease: &Lease) -> LeaseRecord {
    let spec = lease.spec.clone().unwrap_or_default();
    let seconds = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
    LeaseRecord {
        version: lease.metadata.resource_version.clone().unwrap_or_default(),
        holder: spec.holder_identity.unwrap_or_default(),
        term: seconds.map_or(TERM, Duration::from_secs),
    }
}
