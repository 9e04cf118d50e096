//! Read-only views of the keeper, for the admin server: captured pods, failures, counters.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime};

use leno_capture::{Backend, CaptureCounters, LeftOut, OpenWays};
use leno_program::chain;

use super::{CaptureFailure, CaptureSlot, Keeper};
use crate::metrics::{CaptureOrigin, FailureReason, lock};

/// Longest wait for a pod on which another thread works. A check of a pod takes less time, a capture more.
const BRIEFLY: Duration = Duration::from_millis(50);

/// A captured pod, as the admin server shows it.
#[derive(Clone, Debug)]
pub(crate) struct CapturedPod {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) backend: Backend,
    pub(crate) origin: CaptureOrigin,
    /// When the pod was captured, in seconds since 1970.
    pub(crate) since_unix_s: Option<u64>,
    /// Traffic that is not captured.
    pub(crate) passes: LeftOut,
}

/// A pod that could not be captured.
#[derive(Clone, Debug)]
pub(crate) struct FailedPod {
    pub(crate) why: String,
    pub(crate) reason: FailureReason,
    /// How many times it has failed in a row.
    pub(crate) times: u64,
    pub(crate) last: SystemTime,
}

impl Keeper {
    /// Records the result of the last attempt.
    pub(super) fn note<T>(&self, uid: &str, done: &Result<T, CaptureFailure>) {
        let mut failures = lock(&self.failures);
        let Err(failed) = done else {
            failures.remove(uid);
            return;
        };
        let times = failures.get(uid).map_or(0, |before| before.times) + 1;
        let (why, reason) = (failed.message.clone(), failed.reason);
        failures.insert(uid.to_owned(), FailedPod { why, reason, times, last: SystemTime::now() });
    }

    /// Drops the failures of pods that no longer exist.
    pub(crate) fn retain_failures(&self, is_there: impl Fn(&str) -> bool) {
        lock(&self.failures).retain(|uid, _| is_there(uid));
    }

    /// The pods whose last attempt has failed, by uid.
    pub(crate) fn failures(&self) -> HashMap<String, FailedPod> {
        lock(&self.failures).clone()
    }

    /// The captured pods by uid. The value is `None` while another thread works on the pod.
    pub(crate) fn held(&self) -> HashMap<String, Option<CapturedPod>> {
        let held = |uid: String, place: &CaptureSlot| {
            let kept = place.0.as_ref()?;
            let held = CapturedPod {
                namespace: kept.record.namespace.clone(),
                name: kept.record.name.clone(),
                backend: kept.captured.backend(),
                origin: kept.origin,
                since_unix_s: kept.record.since_unix_s,
                passes: kept.captured.workload().left_out(),
            };
            Some((uid, Some(held)))
        };
        let each = self.places().into_iter().filter_map(|(uid, place)| match briefly(&place) {
            Some(place) => held(uid, &place),
            None => Some((uid, None)),
        });
        each.collect()
    }

    /// How a pod's connections were treated, from the kernel's counters. `None` if they cannot be read or another
    /// thread works on the pod. With netfilter this runs a command.
    pub(crate) fn connections(&self, uid: &str) -> Option<CaptureCounters> {
        let place = lock(&self.places).get(uid).cloned()?;
        let place = briefly(&place)?;
        let counters = place.0.as_ref()?.captured.counters();
        let noted = counters.inspect_err(|error| {
            tracing::debug!(uid, error = chain(error), "its counters are unknown");
        });
        noted.ok()
    }

    /// The ways around a pod's capture that are open. `None` if the pod is not captured or another thread works on it.
    pub(crate) fn open_ways(&self, uid: &str) -> Option<OpenWays> {
        let place = lock(&self.places).get(uid).cloned()?;
        let (backend, workload) = {
            let place = briefly(&place)?;
            let captured = &place.0.as_ref()?.captured;
            (captured.backend(), captured.workload().clone())
        };
        Some(leno_capture::open_ways(backend, &workload, &self.host.all_processes(uid)))
    }

    /// The text of `/metrics`.
    pub(crate) fn metrics(&self) -> String {
        let failing = lock(&self.failures).len();
        let mut text = self.metrics.render(&self.captured(), failing);
        if let Some(brokers) = &self.brokers {
            brokers.render(&mut text);
        }
        text
    }

    /// The number of pods that each backend captures.
    fn captured(&self) -> BTreeMap<Backend, usize> {
        let mut sum = BTreeMap::new();
        for (_, place) in self.places() {
            // A pod on which another thread works is counted when that has ended.
            let Ok(place) = place.try_lock() else { continue };
            if let Some(kept) = &place.0 {
                *sum.entry(kept.captured.backend()).or_default() += 1;
            }
        }
        sum
    }

    fn places(&self) -> Vec<(String, Arc<Mutex<CaptureSlot>>)> {
        let places = lock(&self.places);
        places.iter().map(|(uid, place)| (uid.clone(), Arc::clone(place))).collect()
    }
}

/// Locks a slot, but waits for at most [`BRIEFLY`].
fn briefly(place: &Mutex<CaptureSlot>) -> Option<MutexGuard<'_, CaptureSlot>> {
    let begin = Instant::now();
    loop {
        match place.try_lock() {
            Ok(place) => return Some(place),
            Err(_busy) if begin.elapsed() > BRIEFLY => return None,
            Err(_busy) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}
