//! The agent's counters and the text of `/metrics`.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use leno_capture::Backend;
use leno_program::Family;

const FAILING: &str = "Pods whose last capture failed.";
/// The CNI commands for which the CNI plugin calls the agent: the values of the label `command`.
const COMMANDS: [&str; 3] = ["add", "del", "check"];
/// The results of these calls: the values of the label `result`. `passed` means that the call succeeded and names no
/// backend: the pod is not in the mesh, or the command was DEL or CHECK.
const RESULTS: [&str; 3] = ["captured", "passed", "failed"];
/// The results of asking the API server which pod has the address of a flow's other end: the values of the label
/// `result`.
const LOOKUPS: [&str; 3] = ["pod", "none", "failed"];
/// The results of writing into the status of a pod whether it is served.
const REPORTS: [&str; 2] = ["written", "failed"];

/// Why a pod could not be captured. Each reason is the value of a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FailureReason {
    /// An annotation of the pod, for the capture backend or for UDP, has an unknown value.
    Annotation,
    /// No backend that the pod allows works on this node or for this pod.
    Unusable,
    /// A step before or after the capture itself failed: the network namespace does not exist, or an earlier capture or
    /// a mark could not be removed or set. (An error of a backend is [`Unusable`](Self::Unusable).)
    Refused,
    /// The file that records the capture for a later agent could not be written.
    Record,
    /// No node proxy serves the pod.
    Unserved,
}

impl FailureReason {
    const ALL: [Self; 5] =
        [Self::Annotation, Self::Unusable, Self::Refused, Self::Record, Self::Unserved];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Annotation => "annotation",
            Self::Unusable => "unusable",
            Self::Refused => "refused",
            Self::Record => "record",
            Self::Unserved => "unserved",
        }
    }
}

/// What made the agent capture a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CaptureOrigin {
    /// A call of the CNI plugin, before the pod's containers started.
    Cni,
    /// The API server has listed the pod, which was already running.
    Reconciled,
    /// An earlier agent had captured it.
    TakenOver,
}

impl CaptureOrigin {
    const ALL: [Self; 3] = [Self::Cni, Self::Reconciled, Self::TakenOver];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Cni => "cni",
            Self::Reconciled => "reconciled",
            Self::TakenOver => "taken_over",
        }
    }
}

/// The counters and flags of the agent. The supervisors of node proxies have their own metrics (`Brokers::render`).
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    captures: Mutex<BTreeMap<(&'static str, CaptureOrigin), u64>>,
    failures: Mutex<BTreeMap<FailureReason, u64>>,
    /// The sum of the durations of all captures, and their number.
    seconds: Mutex<(Duration, u64)>,
    requests: Mutex<BTreeMap<(&'static str, &'static str), u64>>,
    lookups: Mutex<BTreeMap<&'static str, u64>>,
    reports: Mutex<BTreeMap<&'static str, u64>>,
    pub(crate) installations: AtomicU64,
    /// Whether the last attempt to install the CNI plugin, or to check its installation, succeeded.
    pub(crate) installed: AtomicBool,
    /// Whether the watch of the node's pods works.
    pub(crate) followed: AtomicBool,
    /// Whether each pod that ran when the agent started is captured, is gone, or has failed so often
    /// (`retry::GIVEN_UP`) that the agent no longer waits for it. This is not a metric; `/ready` reports it.
    pub(crate) reconciled: AtomicBool,
    pub(crate) watch_failures: AtomicU64,
    /// Whether the agent still has to report which of the pods that ran when it started are served. This is not a metric,
    /// either.
    pub(crate) awaits_reports: AtomicBool,
}

impl Metrics {
    /// Counts a captured pod, and how long the capture took.
    pub(crate) fn captured(&self, backend: Backend, origin: CaptureOrigin, took: Duration) {
        *lock(&self.captures).entry((backend.name(), origin)).or_default() += 1;
        let mut seconds = lock(&self.seconds);
        seconds.0 += took;
        seconds.1 += 1;
    }

    /// Counts a pod that could not be captured.
    pub(crate) fn failed(&self, reason: FailureReason) {
        *lock(&self.failures).entry(reason).or_default() += 1;
    }

    /// Counts a request of the plugin by its result.
    pub(crate) fn asked(&self, command: &'static str, result: &'static str) {
        *lock(&self.requests).entry((command, result)).or_default() += 1;
    }

    /// Counts one question to the API server, which pod has a given address, by its result (one of [`LOOKUPS`]).
    pub(crate) fn looked_up(&self, result: &'static str) {
        *lock(&self.lookups).entry(result).or_default() += 1;
    }

    /// Counts a write of a pod's status.
    pub(crate) fn reported(&self, is_written: bool) {
        let [written, failed] = REPORTS;
        let result = if is_written { written } else { failed };
        *lock(&self.reports).entry(result).or_default() += 1;
    }

    /// The text of `/metrics`. `now` is how many pods each backend captures, `failing` how many are
    /// not captured.
    pub(crate) fn render(&self, now: &BTreeMap<Backend, usize>, failing: usize) -> String {
        let mut text = String::new();
        let mut family = |name: &str, kind: &str, help: &str, rows: Rows<'_>| {
            let name = format!("leno_agent_{name}");
            let mut family = Family::new(&mut text, (&name, kind, help));
            for (labels, value) in rows {
                family.sample(&labels, value);
            }
        };
        let pods = Backend::ALL.iter().map(|backend| {
            let count = now.get(backend).copied().unwrap_or_default();
            (vec![("backend", backend.name())], count as u64)
        });
        family("pods_captured", "gauge", "Pods that are captured.", pods.collect());
        family("pods_failing", "gauge", FAILING, one(failing as u64));
        let captures = pairs(Backend::ALL.map(Backend::name), CaptureOrigin::ALL);
        let captures = counted(captures, &self.captures).map(|((backend, origin), count)| {
            (vec![("backend", backend), ("origin", origin.name())], count)
        });
        family("captures_total", "counter", "Captures made or adopted.", captures.collect());
        let failures = counted(FailureReason::ALL, &self.failures);
        let failures = failures.map(|(reason, count)| (vec![("reason", reason.name())], count));
        family("capture_failures_total", "counter", "Captures that failed.", failures.collect());
        let requests = counted(pairs(COMMANDS, RESULTS), &self.requests);
        let requests = requests.map(|((command, result), count)| {
            (vec![("command", command), ("result", result)], count)
        });
        family("cni_requests_total", "counter", "Requests of the CNI plugin.", requests.collect());
        let lookups = counted(LOOKUPS, &self.lookups);
        let lookups = lookups.map(|(result, count)| (vec![("result", result)], count));
        let help = "Questions to the API server for the pod with the address of a peer.";
        family("peer_lookups_total", "counter", help, lookups.collect());
        let reports = counted(REPORTS, &self.reports);
        let reports = reports.map(|(result, count)| (vec![("result", result)], count));
        let help = "Writes of whether a node proxy serves a pod into the pod's status.";
        family("served_reports_total", "counter", help, reports.collect());
        let number = |value: &AtomicU64| one(value.load(Ordering::Relaxed));
        let flag = |value: &AtomicBool| one(value.load(Ordering::Relaxed).into());
        let help = "Whether the CNI plugin is the last of the node's chain.";
        family("plugin_installed", "gauge", help, flag(&self.installed));
        let help = "Times that the CNI plugin was installed.";
        family("plugin_installations_total", "counter", help, number(&self.installations));
        let help = "Whether the node's pods are known from the API server.";
        family("pods_followed", "gauge", help, flag(&self.followed));
        let help = "Failed reads and watches of pods.";
        family("watch_failures_total", "counter", help, number(&self.watch_failures));
        let (sum, count) = *lock(&self.seconds);
        let summary = ("leno_agent_capture_seconds", "summary", "How long capturing a pod took.");
        let mut seconds = Family::new(&mut text, summary);
        seconds.part("_sum", &[], sum.as_secs_f64());
        seconds.part("_count", &[], count);
        text
    }
}

/// Samples with their labels.
type Rows<'a> = Vec<(Vec<(&'a str, &'a str)>, u64)>;

/// The counts for all `known` labels; 0 for those that were not counted yet.
fn counted<K: Copy + Ord>(
    known: impl IntoIterator<Item = K>,
    counts: &Mutex<BTreeMap<K, u64>>,
) -> impl Iterator<Item = (K, u64)> {
    let mut all: BTreeMap<K, u64> = known.into_iter().map(|key| (key, 0)).collect();
    all.extend(lock(counts).iter().map(|(key, count)| (*key, *count)));
    all.into_iter()
}

fn pairs<A: Copy, B: Copy, const N: usize, const M: usize>(a: [A; N], b: [B; M]) -> Vec<(A, B)> {
    a.into_iter().flat_map(|a| b.map(|b| (a, b))).collect()
}

/// The sample of a metric without labels.
fn one(value: u64) -> Rows<'static> {
    vec![(Vec::new(), value)]
}

/// Locks a mutex. Poisoning is ignored, because no code panics while it holds one of these locks.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::brokers::Brokers;
    use crate::host::Host;

    #[test]
    fn the_text_has_every_series_and_its_type() {
        let metrics = Metrics::default();
        metrics.captured(Backend::Ebpf, CaptureOrigin::Cni, Duration::from_millis(500));
        metrics.failed(FailureReason::Unusable);
        metrics.asked("add", "captured");
        metrics.installed.store(true, Ordering::Relaxed);
        let text = metrics.render(&BTreeMap::from([(Backend::Nftables, 3)]), 2);
        for line in [
            "# TYPE leno_agent_pods_captured gauge",
            "leno_agent_pods_captured{backend=\"nftables\"} 3",
            "leno_agent_pods_captured{backend=\"ebpf\"} 0",
            "leno_agent_pods_failing 2",
            "leno_agent_captures_total{backend=\"ebpf\",origin=\"cni\"} 1",
            "leno_agent_capture_failures_total{reason=\"unusable\"} 1",
            "leno_agent_capture_seconds_sum 0.5",
            "leno_agent_capture_seconds_count 1",
            "leno_agent_cni_requests_total{command=\"add\",result=\"captured\"} 1",
            "leno_agent_plugin_installed 1",
            "leno_agent_pods_followed 0",
            "leno_agent_captures_total{backend=\"nftables\",origin=\"taken_over\"} 0",
            "leno_agent_cni_requests_total{command=\"del\",result=\"failed\"} 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }

    #[tokio::test]
    async fn the_guide_has_the_metrics_of_the_agent() {
        let mut page = Metrics::default().render(&BTreeMap::new(), 0);
        let runtime = tokio::runtime::Handle::current();
        let host = Host { cgroups: "".into(), proc: "".into(), netns: "".into() };
        let (brokers, _ended) = Brokers::new("leno-broker".into(), host, runtime);
        brokers.render(&mut page);
        let guide = include_str!("../../../docs/guide/kubernetes.md");
        leno_testkit::reference::check_metrics(guide, "leno_agent_", &page, &[]);
    }
}
