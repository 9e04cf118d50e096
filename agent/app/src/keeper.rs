//! The keeper captures the pods of the node, takes over captures of an earlier agent, and releases pods that have
//! ended.
//!
//! ```text
//!                      CNI ADD, or seen running               the namespace is gone
//!   (unknown) ────────────────────────────────► captured ────────────────────────► (unknown)
//!       ▲            record, capture, mark          │  CNI DEL of the same sandbox
//!       └───────────────────────────────────────────┘
//! ```
//! The record (`record`) is a file from which the next agent takes the capture over. The mark ([`leno_capture::mark`])
//! shows the proxy that its namespace is captured.
//!
//! A pod is not released when the API server stops listing it, because its processes may still run for a while and must
//! not send plaintext. All functions here block, so callers run them on blocking threads.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Instant, SystemTime};

use leno_capture::{Backend, BackendReport, CaptureChoice, Captured, ProbeReport};
use leno_program::chain;
use leno_resources::UDP_ANNOTATION;
use leno_types::Datagrams;

use crate::brokers::{Brokers, PodSandbox};
use crate::captures::unix_s;
use crate::host::{self, Host, NetnsId};
use crate::metrics::{CaptureOrigin, FailureReason, Metrics, lock};
use crate::pod::Pod;
use crate::record::{CaptureRecord, CaptureRecords};

/// Why a pod is not captured: a message for its events, and a label for the metrics.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct CaptureFailure {
    reason: FailureReason,
    message: String,
}

impl CaptureFailure {
    fn new(reason: FailureReason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }
}

/// The capture of one pod, if there is one. A thread locks it before it works on the pod, so that only one thread
/// works on a pod at a time.
#[derive(Debug, Default)]
struct CaptureSlot(Option<HeldCapture>);

#[derive(Debug)]
struct HeldCapture {
    captured: Captured,
    record: CaptureRecord,
    origin: CaptureOrigin,
    /// How far the pod has left node mode; `None` if it stays.
    leaving: Option<Leaving>,
}

/// Captures and releases the pods of the node; see the module's documentation.
#[derive(Debug)]
pub(crate) struct Keeper {
    host: Host,
    report: ProbeReport,
    records: CaptureRecords,
    places: Mutex<HashMap<String, Arc<Mutex<CaptureSlot>>>>,
    /// The pods whose last attempt has failed, by uid.
    failures: Mutex<HashMap<String, FailedPod>>,
    /// The brokers of pods in node mode; `None` if this process captures no pods.
    brokers: Option<Arc<Brokers>>,
    /// Whether this agent reports which pods are served. Only then do running pods enter and leave node mode without
    /// a failed request: other proxies would not hear of it otherwise.
    reports: bool,
    pub(crate) metrics: Arc<Metrics>,
}

impl Keeper {
    pub(crate) fn new(
        host: Host,
        report: ProbeReport,
        records: CaptureRecords,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            host,
            report,
            records,
            places: Mutex::default(),
            failures: Mutex::default(),
            brokers: None,
            reports: false,
            metrics,
        }
    }

    pub(crate) fn with_brokers(self, brokers: Arc<Brokers>) -> Self {
        Self { brokers: Some(brokers), ..self }
    }

    pub(crate) fn with_reports(self, reports: bool) -> Self {
        Self { reports, ..self }
    }

    /// Captures a pod whose sandbox was just created. If there was an earlier attempt, the capture is repeated.
    pub(crate) fn add(
        &self,
        pod: &Pod,
        netns: &Path,
        container: &str,
    ) -> Result<Backend, CaptureFailure> {
        let done = self.add_captured(pod, netns, container);
        // In node mode the result is only recorded once a node proxy serves the pod.
        if done.is_err() || pod.group.is_none() {
            self.note(&pod.uid, &done);
        }
        done
    }

    /// Waits until a captured pod in node mode is served. The supervisor may be in the middle of an update. This
    /// is async and not blocking, because many pods may wait.
    pub(crate) async fn until_served(&self, pod: &Pod) -> Result<(), CaptureFailure> {
        let (Some(brokers), true) = (&self.brokers, pod.group.is_some()) else { return Ok(()) };
        let done = self.unserved(brokers.until_served(&pod.uid).await);
        self.note(&pod.uid, &done);
        done
    }

    fn add_captured(
        &self,
        pod: &Pod,
        netns: &Path,
        container: &str,
    ) -> Result<Backend, CaptureFailure> {
        let place = self.place(&pod.uid);
        let mut place = lock(&place);
        let missing = || {
            let message = format!("its network namespace {} does not exist", netns.display());
            CaptureFailure::new(FailureReason::Refused, message)
        };
        let done = NetnsId::of(netns).ok_or_else(missing).inspect_err(|f| self.count(f));
        let id = done?;
        let started = (netns.to_owned(), id, Some(container.to_owned()));
        let backend = self.capture(&mut place, pod, started, CaptureOrigin::Cni)?;
        self.offer(&place, pod, true)?;
        Ok(backend)
    }

    /// Captures a pod that runs without being captured: it started before the agent, or the plugin was not called
    /// for it.
    pub(crate) fn reconcile(&self, pod: &Pod) -> Result<(), CaptureFailure> {
        if self.reports && pod.withdrawn && !pod.ended {
            return self.leave(pod);
        }
        if !pod.meshed || pod.ended {
            return Ok(());
        }
        let done = self.reconcile_meshed(pod);
        // If there is nothing to capture yet, the failure that was recorded at the plugin's call stays.
        if !matches!(done, Ok(false)) {
            self.note(&pod.uid, &done);
        }
        done.map(drop)
    }

    /// Captures the pod if necessary. Returns false if none of its processes runs.
    fn reconcile_meshed(&self, pod: &Pod) -> Result<bool, CaptureFailure> {
        let place = self.place(&pod.uid);
        let mut place = lock(&place);
        self.stay(&mut place)?;
        if self.lives(&mut place)
            && let Some(kept) = &place.0
        {
            // The pod's own sysctls are written after the plugin was called, and may have overwritten the mark.
            let again = pod.sysctls.then(|| leno_capture::mark(&kept.record.netns)).transpose();
            again.map_err(|error| refused(&error))?;
        } else {
            // Without a process the namespace cannot be found. The CNI plugin's call will name it.
            let Some((netns, id)) = self.host.netns_of(&pod.uid) else { return Ok(false) };
            self.capture(&mut place, pod, (netns, id, None), CaptureOrigin::Reconciled)?;
        }
        self.offer(&place, pod, false)?;
        drop(place);
        if let (Some(brokers), true) = (&self.brokers, pod.group.is_some()) {
            let served = brokers.check_served(&pod.uid);
            self.unserved(served.and_then(|()| self.complete(&pod.uid)))?;
        }
        Ok(true)
    }

    /// Completes the capture of a pod that entered node mode while it ran, once a node proxy accepts its connections. From then
    /// on they are refused while no proxy listens.
    ///
    /// # Errors
    /// Why the pod is not captured completely.
    pub(crate) fn complete(&self, uid: &str) -> Result<(), String> {
        let place = self.place(uid);
        let mut place = lock(&place);
        if !self.lives(&mut place) {
            return Err("it is not captured".to_owned());
        }
        let Some(kept) = place.0.as_mut().filter(|kept| kept.record.entering) else {
            return Ok(());
        };
        if !self.brokers.as_ref().is_some_and(|brokers| brokers.is_serving(uid)) {
            return Err("its node proxy does not accept its connections yet".to_owned());
        }
        let complete = CaptureRecord { entering: false, ..kept.record.clone() };
        kept.captured.upgrade(&complete.workload()).map_err(|error| chain(&error))?;
        kept.record = complete;
        if let Err(error) = self.records.write(&kept.record) {
            // The next agent lets the pod's connections pass while no proxy listens, until it completes the capture itself.
            tracing::warn!(uid, %error, "a record cannot be written");
        }
        Ok(())
    }

    /// Offers a captured pod to the supervisor of node proxies, if the pod is in node mode. The pod's listeners
    /// are created after the capture, which takes note of them.
    fn offer(&self, place: &CaptureSlot, pod: &Pod, is_new: bool) -> Result<(), CaptureFailure> {
        let (Some(brokers), Some(kept)) = (&self.brokers, &place.0) else { return Ok(()) };
        let Some(mut placed) = pod.placed(kept.record.workload().datagrams) else { return Ok(()) };
        if brokers.follow(&placed) {
            return Ok(());
        }
        placed.kubelet.addresses = host::addresses();
        let (cgroup, others) = self.host.groups_of(&pod.uid);
        let record = &kept.record;
        let at =
            PodSandbox { netns: &record.netns, cgroup, others, is_new, enters: record.entering };
        brokers.serve(placed, &at).map_err(|error| {
            CaptureFailure::new(
                FailureReason::Unserved,
                format!("cannot start its broker: {error}"),
            )
        })
    }

    fn unserved(&self, served: Result<(), String>) -> Result<(), CaptureFailure> {
        let failed = served.map_err(|why| CaptureFailure::new(FailureReason::Unserved, why));
        failed.inspect_err(|failed| self.count(failed))
    }

    /// Whether a pod is captured.
    pub(crate) fn is_captured(&self, uid: &str) -> bool {
        let place = self.place(uid);
        let mut place = lock(&place);
        self.lives(&mut place)
    }

    /// The network namespace of a pod: the captured one, or else that of its processes.
    pub(crate) fn namespace_of(&self, uid: &str) -> Option<(PathBuf, NetnsId)> {
        let captured = lock(&self.places).get(uid).cloned();
        let recorded = captured.and_then(|place| {
            let place = lock(&place);
            let record = &place.0.as_ref()?.record;
            record.is_alive().then(|| (record.netns.clone(), record.netns_id))
        });
        recorded.or_else(|| self.host.netns_of(uid))
    }

    /// The pod's control group of version 2.
    pub(crate) fn cgroup_of(&self, uid: &str) -> Option<PathBuf> {
        self.host.pod_cgroup(uid)
    }

    /// The root of the node's control groups of version 2.
    pub(crate) fn cgroup2(&self) -> Option<PathBuf> {
        self.host.cgroup2()
    }

    /// Whether this slot has a capture whose namespace still exists. If the recorded file of the namespace is
    /// gone, for example because its process has ended, another file of the same namespace is recorded.
    fn lives(&self, place: &mut CaptureSlot) -> bool {
        let Some(kept) = &mut place.0 else { return false };
        let was = kept.record.netns.clone();
        if !self.finds(&mut kept.record) {
            return false;
        }
        if kept.record.netns != was {
            kept.captured.moved(kept.record.netns.clone());
        }
        true
    }

    /// Whether the namespace of a record exists, under the recorded file or another one. The record is updated
    /// with the file that was found.
    fn finds(&self, record: &mut CaptureRecord) -> bool {
        if record.is_alive() {
            return true;
        }
        let found = self.host.netns_of(&record.uid);
        let Some((netns, _)) = found.filter(|(_, id)| *id == record.netns_id) else { return false };
        record.netns = netns;
        if let Err(error) = self.records.write(record) {
            // This does no harm: the next call finds the old file missing and searches again.
            tracing::warn!(uid = record.uid, %error, "a record cannot be written");
        }
        true
    }

    /// Releases a pod whose sandbox ends. A capture of another sandbox of the same pod stays.
    pub(crate) fn delete(&self, uid: &str, container: &str) {
        let place = self.place(uid);
        let mut place = lock(&place);
        let is_it = |kept: &HeldCapture| kept.record.container.as_deref() == Some(container);
        if place.0.as_ref().is_some_and(is_it) || !self.lives(&mut place) {
            // A failure was logged, and the next round tries again.
            let _failed = self.forget(&mut place);
        }
    }

    /// Takes over the pods that an earlier agent has captured, and upgrades those captures that still exist.
    pub(crate) fn take_over(&self) {
        let records = self.records.all().unwrap_or_else(|error| {
            tracing::error!(%error, "the records of captured pods cannot be read");
            Vec::new()
        });
        for record in records {
            let place = self.place(&record.uid);
            let mut place = lock(&place);
            if place.0.is_none() {
                self.take_over_one(&mut place, record);
            }
        }
    }

    fn take_over_one(&self, place: &mut CaptureSlot, mut record: CaptureRecord) {
        let (pod, started) = (format!("{}/{}", record.namespace, record.name), Instant::now());
        if !self.finds(&mut record) {
            self.remove_record(&record.uid);
            return;
        }
        let workload = record.workload();
        if record.leaving {
            self.take_leave(&record, &workload);
            return;
        }
        let found = match record.backend() {
            Some(Backend::Ebpf) => Captured::adopt(&workload),
            Some(backend) => leno_capture::capture(backend, &workload).map(Some),
            None => Ok(None),
        };
        match found {
            Ok(Some(mut captured)) => {
                let upgraded = match captured.backend() {
                    Backend::Ebpf => captured.upgrade(&workload),
                    _ => Ok(()),
                };
                if let Err(error) = self.marked(&record, upgraded) {
                    let error = chain(&error);
                    tracing::error!(pod, error, "cannot be taken over");
                    return;
                }
                self.metrics.captured(
                    captured.backend(),
                    CaptureOrigin::TakenOver,
                    started.elapsed(),
                );
                tracing::info!(pod, backend = %captured.backend(), "taken over");
                place.0 = Some(HeldCapture {
                    captured,
                    record,
                    origin: CaptureOrigin::TakenOver,
                    leaving: None,
                });
            }
            // If the pod still runs, the next round captures it.
            Ok(None) => {
                tracing::warn!(pod, "was captured by an earlier agent and is no longer captured")
            }
            Err(error) => tracing::error!(pod, error = chain(&error), "cannot be taken over"),
        }
    }

    /// Marks the namespace of a capture that was taken over, because an earlier agent may have ended between the
    /// capture and the mark. If the upgrade has failed, the capture is only complete if the mark is already there.
    fn marked(
        &self,
        record: &CaptureRecord,
        upgraded: Result<(), leno_capture::Error>,
    ) -> Result<(), leno_capture::Error> {
        let Err(error) = upgraded else { return leno_capture::mark(&record.netns) };
        if !leno_capture::is_marked(&record.netns)? {
            return Err(error);
        }
        let (uid, error) = (&record.uid, chain(&error));
        tracing::warn!(uid, error, "is still captured by an older agent's programs");
        Ok(())
    }

    /// The slot of a pod, which is created if there is none.
    fn place(&self, uid: &str) -> Arc<Mutex<CaptureSlot>> {
        Arc::clone(lock(&self.places).entry(uid.to_owned()).or_default())
    }

    pub(crate) fn backends(&self) -> &[BackendReport] {
        &self.report.backends
    }

    fn uses_ebpf(&self) -> bool {
        self.report.backends.iter().any(|b| b.backend == Backend::Ebpf && b.usable)
    }

    fn count(&self, failed: &CaptureFailure) {
        self.metrics.failed(failed.reason);
    }

    fn capture(
        &self,
        place: &mut CaptureSlot,
        pod: &Pod,
        sandbox: (PathBuf, NetnsId, Option<String>),
        origin: CaptureOrigin,
    ) -> Result<Backend, CaptureFailure> {
        let started = Instant::now();
        let done = self.try_all(place, pod, sandbox, origin);
        let full = format!("{}/{}", pod.namespace, pod.name);
        match &done {
            Ok(backend) => {
                self.metrics.captured(*backend, origin, started.elapsed());
                let (origin, ms) = (origin.name(), started.elapsed().as_millis());
                tracing::info!(pod = full, %backend, origin, ms, "captured");
            }
            Err(failed) => {
                self.count(failed);
                // The next rounds retry a running pod, and their caller logs new reasons.
                if origin == CaptureOrigin::Cni {
                    tracing::error!(pod = full, "cannot be captured: {failed}");
                }
            }
        }
        done
    }

    /// Tries the backends that the pod allows, best first.
    fn try_all(
        &self,
        place: &mut CaptureSlot,
        pod: &Pod,
        (netns, netns_id, container): (PathBuf, NetnsId, Option<String>),
        origin: CaptureOrigin,
    ) -> Result<Backend, CaptureFailure> {
        let choice = pod.capture.clone().unwrap_or(Ok(CaptureChoice::Auto)).map_err(|unknown| {
            CaptureFailure::new(FailureReason::Annotation, format!("leno.dev/capture: {unknown}"))
        })?;
        let datagrams = pod.datagrams.clone().unwrap_or(Ok(Datagrams::Off)).map_err(|unknown| {
            CaptureFailure::new(FailureReason::Annotation, format!("{UDP_ANNOTATION}: {unknown}"))
        })?;
        let wanted: Vec<Backend> = match choice {
            CaptureChoice::Auto => Backend::ALL.to_vec(),
            CaptureChoice::Only(backend) => vec![backend],
        };
        // A capture of an earlier sandbox of this pod has the same name, so it must be released first.
        self.forget(place).map_err(|error| refused(&error))?;
        // With an old mark, or one that another program has set, the proxy would start before the pod is captured.
        leno_capture::unmark(&netns).map_err(|error| refused(&error))?;
        // A pod that runs without a proxy goes on as before until a node proxy accepts its connections.
        let entering = self.reports
            && origin == CaptureOrigin::Reconciled
            && pod.group.is_some()
            && pod.served != Some(true);
        let mut refusals = Vec::new();
        for backend in wanted {
            let cgroup = match self.usable(backend, pod, origin) {
                Ok(cgroup) => cgroup,
                Err(why) => {
                    refusals.push(format!("{backend}: {why}"));
                    continue;
                }
            };
            let record = CaptureRecord {
                namespace: pod.namespace.clone(),
                name: pod.name.clone(),
                uid: pod.uid.clone(),
                container: container.clone(),
                netns: netns.clone(),
                netns_id,
                cgroup,
                backend: backend.name().to_owned(),
                since_unix_s: Some(unix_s(SystemTime::now())),
                datagrams: datagrams.to_string(),
                entering,
                leaving: false,
            };
            self.records.write(&record).map_err(|error| {
                CaptureFailure::new(
                    FailureReason::Record,
                    format!("cannot write its record: {error}"),
                )
            })?;
            match self.one(place, record, (backend, origin)) {
                Ok(()) => return Ok(backend),
                Err(error) => refusals.push(format!("{backend}: {}", chain(&error))),
            }
            self.remove_record(&pod.uid);
        }
        Err(CaptureFailure::new(FailureReason::Unusable, refusals.join("; ")))
    }

    fn one(
        &self,
        place: &mut CaptureSlot,
        record: CaptureRecord,
        (backend, origin): (Backend, CaptureOrigin),
    ) -> Result<(), leno_capture::Error> {
        let mut captured = leno_capture::capture(backend, &record.workload())?;
        // The mark is set last, because a proxy that waits for it must be captured when it sees the mark.
        if let Err(error) = leno_capture::mark(&record.netns) {
            captured.release()?;
            return Err(error);
        }
        place.0 = Some(HeldCapture { captured, record, origin, leaving: None });
        Ok(())
    }

    /// Whether a backend can capture this pod. Returns the pod's control group if the backend needs it.
    fn usable(
        &self,
        backend: Backend,
        pod: &Pod,
        origin: CaptureOrigin,
    ) -> Result<Option<PathBuf>, String> {
        self.report.choose(CaptureChoice::Only(backend)).map_err(|error| chain(&error))?;
        if backend != Backend::Ebpf {
            return Ok(None);
        }
        // A node proxy is not in the pod's user namespace, so it has the same user in any case.
        if pod.own_users && pod.group.is_none() {
            return Err(
                "with hostUsers: false, the kernel sees its proxy as another user: remove \
                 hostUsers: false, or use another backend"
                    .to_owned(),
            );
        }
        if origin == CaptureOrigin::Reconciled && self.host.proxy_listens(&pod.uid) {
            return Err(
                "its proxy listens already, and only listeners that are opened later can be \
                 captured: restart the pod"
                    .to_owned(),
            );
        }
        let Some(cgroup) = self.host.pod_cgroup(&pod.uid) else {
            return Err(
                "the pod has no control group of version 2 on this node: mount cgroup2 at \
                 /sys/fs/cgroup, or at /sys/fs/cgroup/unified"
                    .to_owned(),
            );
        };
        Ok(Some(cgroup))
    }

    /// Releases a capture and removes its record. If the release fails, both stay.
    fn forget(&self, place: &mut CaptureSlot) -> Result<(), leno_capture::Error> {
        let uid = place.0.as_ref().map(|kept| kept.record.uid.clone());
        self.undo(place)?;
        if let (Some(brokers), Some(uid)) = (&self.brokers, uid) {
            brokers.release(&uid);
        }
        Ok(())
    }

    /// As [`forget`](Self::forget), but leaves the pod's broker alone.
    fn undo(&self, place: &mut CaptureSlot) -> Result<(), leno_capture::Error> {
        let Some(mut kept) = place.0.take() else { return Ok(()) };
        let pod = format!("{}/{}", kept.record.namespace, kept.record.name);
        // Netfilter's rules end with their namespace, whose file may now name another pod's namespace.
        if (kept.captured.backend() == Backend::Ebpf || kept.record.is_alive())
            && let Err(error) = kept.captured.release()
        {
            tracing::warn!(pod, error = chain(&error), "cannot be released; retrying later");
            place.0 = Some(kept);
            return Err(error);
        }
        self.remove_record(&kept.record.uid);
        tracing::info!(pod, "released");
        Ok(())
    }

    fn remove_record(&self, uid: &str) {
        if let Err(error) = self.records.remove(uid) {
            tracing::warn!(uid, %error, "a record cannot be removed");
        }
    }
}

fn refused(error: &leno_capture::Error) -> CaptureFailure {
    CaptureFailure::new(FailureReason::Refused, chain(error))
}

mod captured_pods;
mod leave;
mod tidy;

use leave::Leaving;

pub(crate) use captured_pods::{CapturedPod, FailedPod};

#[cfg(test)]
mod tests;
