//! Releases pods that their namespace withdraws from the mesh, while they run.
//!
//! ```text
//!  captured ── withdrawn ──► Heard ── HEARD ──► Passing ── ACCEPTED ──► Finishing ── FINISHED ──► released
//!     ▲                        │                   its queues are            open requests
//!     └──── not withdrawn ─────┘                   emptied                   and streams end
//! ```
//! Other proxies send the pod plaintext from the withdrawal on, and must all have heard of it before its connections reach the
//! application without its proxy. Each step is taken in a round of the agent, and no thread waits for it.

use std::time::{Duration, Instant};

use leno_capture::CaptureTarget;
use leno_program::chain;

use super::{CaptureFailure, CaptureSlot, Keeper, refused};
use crate::metrics::lock;
use crate::pod::Pod;
use crate::record::CaptureRecord;

/// How long other proxies may take to hear that a pod leaves the mesh. They are told within a second; a proxy that has lost its
/// control plane connects again within some seconds.
pub(super) const HEARD: Duration = Duration::from_secs(30);
/// The time in which a proxy accepts the connections that are queued at its listeners, even on a busy machine.
pub(super) const ACCEPTED: Duration = Duration::from_secs(1);
/// The time in which requests end that the pod's proxy has under way, for which it may still open connections to the application. It
/// passes on the address of their clients by the kernel programs. Streams that last longer have the connections that they need.
pub(super) const FINISHED: Duration = Duration::from_secs(60);

/// A step of a pod that leaves node mode, and when it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leaving {
    /// Other proxies hear that the pod leaves.
    Heard(Instant),
    /// New connections pass the proxy, which accepts those in its queues.
    Passing(Instant),
    /// The proxy finishes what is open.
    Finishing(Instant),
}

impl Keeper {
    /// Takes the next step of a pod that is withdrawn from the mesh, if it is captured and the step is due.
    pub(super) fn leave(&self, pod: &Pod) -> Result<(), CaptureFailure> {
        let Some(place) = lock(&self.places).get(&pod.uid).cloned() else { return Ok(()) };
        let mut place = lock(&place);
        if !self.lives(&mut place) {
            return Ok(());
        }
        let Some(kept) = &mut place.0 else { return Ok(()) };
        match kept.leaving {
            // Other proxies go by the report that it is served.
            None if pod.served == Some(true) => {}
            None => {
                let pod = format!("{}/{}", pod.namespace, pod.name);
                tracing::info!(pod, seconds = HEARD.as_secs(), "leaves node mode, and is released");
                kept.leaving = Some(Leaving::Heard(Instant::now()));
            }
            Some(Leaving::Heard(since)) if since.elapsed() >= HEARD => self.pass(&mut place)?,
            Some(Leaving::Passing(since)) if since.elapsed() >= ACCEPTED => {
                kept.leaving = Some(Leaving::Finishing(Instant::now()));
                self.let_brokers_leave(&pod.uid);
            }
            Some(Leaving::Finishing(since)) if since.elapsed() >= FINISHED => {
                self.undo(&mut place).map_err(|error| refused(&error))?;
            }
            Some(Leaving::Heard(_) | Leaving::Passing(_) | Leaving::Finishing(_)) => {}
        }
        Ok(())
    }

    /// Has a pod stay that was about to leave. If its connections pass already, it is released, and captured again as a pod that
    /// enters.
    pub(super) fn stay(&self, place: &mut CaptureSlot) -> Result<(), CaptureFailure> {
        let Some(kept) = &mut place.0 else { return Ok(()) };
        match kept.leaving {
            None => Ok(()),
            Some(Leaving::Heard(_)) => {
                kept.leaving = None;
                Ok(())
            }
            Some(Leaving::Passing(_) | Leaving::Finishing(_)) => {
                let uid = kept.record.uid.clone();
                self.undo(place).map_err(|error| refused(&error))?;
                self.let_brokers_leave(&uid);
                Ok(())
            }
        }
    }

    /// Releases a pod whose connections an earlier agent has had pass.
    pub(super) fn take_leave(&self, record: &CaptureRecord, workload: &CaptureTarget) {
        let (pod, released) = (format!("{}/{}", record.namespace, record.name), record.backend());
        let released = released.map_or(Ok(()), |backend| leno_capture::release(backend, workload));
        match released {
            Ok(()) => {
                self.remove_record(&record.uid);
                tracing::info!(pod, "released");
            }
            // The next agent tries again. Until then its new connections pass.
            Err(error) => tracing::error!(pod, error = chain(&error), "cannot be released"),
        }
    }

    /// Has new connections of a pod pass its proxy.
    fn pass(&self, place: &mut CaptureSlot) -> Result<(), CaptureFailure> {
        let Some(kept) = &mut place.0 else { return Ok(()) };
        kept.record.leaving = true;
        // Written first: an agent that finds connections passing must not refuse them.
        self.records.write(&kept.record).map_err(|error| {
            CaptureFailure::new(
                crate::metrics::FailureReason::Record,
                format!("its record cannot be written: {error}"),
            )
        })?;
        kept.captured.let_pass().map_err(|error| refused(&error))?;
        kept.leaving = Some(Leaving::Passing(Instant::now()));
        Ok(())
    }

    fn let_brokers_leave(&self, uid: &str) {
        if let Some(brokers) = &self.brokers {
            brokers.leave(uid);
        }
    }
}
