//! Releases the captures of pods that have ended, and all captures when a node leaves the mesh.

use std::cell::RefCell;
use std::time::Duration;

use leno_capture::Backend;
use leno_program::chain;

use super::Keeper;
use crate::metrics::lock;
use crate::record::{CaptureRecord, owner, pod_of};

/// The time in which a proxy accepts the connections that are queued at its listeners, even on a busy machine.
const ACCEPTED: Duration = Duration::from_secs(1);

impl Keeper {
    /// Releases the pods whose namespaces are gone, and removes pins that belong to no recorded
    /// pod.
    pub(crate) fn prune(&self) {
        let places: Vec<_> = lock(&self.places).values().cloned().collect();
        for place in places {
            let mut place = lock(&place);
            if place.0.is_some() && !self.lives(&mut place) {
                // A failure was logged, and the next round tries again.
                let _failed = self.forget(&mut place);
            }
        }
        self.prune_brokers();
        for record in self.records.all().unwrap_or_default() {
            self.prune_record(&record.uid);
        }
        if self.uses_ebpf()
            && let Err(error) = self.prune_pins()
        {
            tracing::warn!(error = chain(&error), "cannot remove the pins of ended pods");
        }
        // A second reference to a slot means that another thread works on that pod.
        let has_pod = |place: &super::CaptureSlot| place.0.is_some();
        lock(&self.places)
            .retain(|_, place| std::sync::Arc::strong_count(place) > 1 || has_pod(&lock(place)));
    }

    /// Removes the record of a pod that is not captured and whose namespace is gone. Takes the pod's lock, because
    /// another thread may be capturing the pod again.
    fn prune_record(&self, uid: &str) {
        let place = self.place(uid);
        let place = lock(&place);
        if place.0.is_none()
            && let Some(mut record) = self.records.of(uid)
            && !self.finds(&mut record)
        {
            self.remove_record(uid);
        }
    }

    /// Ends the brokers of pods that are not captured, because these pods have ended while no agent ran.
    fn prune_brokers(&self) {
        let Some(brokers) = &self.brokers else { return };
        for uid in brokers.uids() {
            let place = self.place(&uid);
            let place = lock(&place);
            if place.0.is_none() {
                brokers.release(&uid);
            }
        }
    }

    /// Removes the pins of pods that are neither captured nor recorded. Takes each pod's lock.
    fn prune_pins(&self) -> Result<(), leno_capture::Error> {
        let pinned = RefCell::new(Vec::new());
        leno_capture::prune(|name| {
            pinned.borrow_mut().extend(pod_of(name).map(ToOwned::to_owned));
            true
        })?;
        for uid in pinned.into_inner() {
            let place = self.place(&uid);
            let place = lock(&place);
            if place.0.is_none() && self.records.of(&uid).is_none() {
                leno_capture::prune(|name| name != owner(&uid))?;
            }
        }
        Ok(())
    }

    /// Releases all captures and removes their records, for a node that leaves the mesh. Returns how many pods
    /// were released, and a line for each pod that could not be released, whose record stays.
    pub(crate) fn release_all(&self) -> (usize, Vec<String>) {
        let mut left = Vec::new();
        let mut released = 0;
        match self.records.all() {
            Ok(records) => {
                self.let_all_pass(&records);
                for mut record in records {
                    match self.release_one(&mut record) {
                        Ok(()) => released += 1,
                        Err(why) => {
                            left.push(format!("{}/{}: {why}", record.namespace, record.name));
                        }
                    }
                }
            }
            Err(error) => left.push(format!("the records cannot be read: {error}")),
        }
        let kept = |name: &str| pod_of(name).is_none_or(|uid| self.records.of(uid).is_some());
        if let Err(error) = leno_capture::prune(kept) {
            left.push(format!("pinned programs: {}", chain(&error)));
        }
        (released, left)
    }

    /// Stops capturing new connections, and waits until the proxies have accepted those in their
    /// queues.
    fn let_all_pass(&self, records: &[CaptureRecord]) {
        for record in records {
            let passes = record.backend().map(|backend| {
                leno_capture::let_pass(backend, &record.workload()).map_err(|error| chain(&error))
            });
            if let Some(Err(error)) = passes {
                // The release, which comes next, tries again and reports the error.
                tracing::debug!(
                    uid = record.uid,
                    error,
                    "continues to be captured until it is released"
                );
            }
        }
        if !records.is_empty() {
            std::thread::sleep(ACCEPTED);
        }
    }

    fn release_one(&self, record: &mut CaptureRecord) -> Result<(), String> {
        let lives = self.finds(record);
        let (uid, workload) = (&record.uid, record.workload());
        // Netfilter's rules end with their namespace, whose file may now name another pod's namespace.
        let release = |backend: Backend| match backend {
            Backend::Ebpf => leno_capture::release(backend, &workload),
            _ if lives => leno_capture::release(backend, &workload),
            _ => Ok(()),
        };
        let backend = record.backend().ok_or_else(|| {
            format!(
                "was captured by {:?}, a backend that this version does not support",
                record.backend
            )
        })?;
        release(backend).map_err(|error| chain(&error))?;
        if lives {
            leno_capture::unmark(&record.netns).map_err(|error| chain(&error))?;
        }
        self.records.remove(uid).map_err(|error| format!("its record: {error}"))
    }
}
