//! The supervisor's admin server: `/metrics`, `/ready`, `/live`.

use std::cell::Cell;
use std::rc::Rc;

use hyper::Request;
use hyper::body::Incoming;
use leno_program::{Family, SocketPair, answer_pages};
use leno_supervise::HungProcesses;
use tokio::net::TcpListener;

use super::promotion::Full;
use super::{OwnEnding, SERVING_PATIENCE, ServedPodTable, SharedPods};

/// The counters of a supervisor.
#[derive(Debug, Default)]
pub(super) struct SupervisorCounts {
    started: Cell<u64>,
    hung: HungProcesses,
    lost: Cell<u64>,
    cut: Cell<u64>,
    held_back_of_node: Cell<u64>,
    held_back_of_namespace: Cell<u64>,
}

impl SupervisorCounts {
    /// Counts a process that was started.
    pub(super) fn started(&self) {
        self.started.set(self.started.get().wrapping_add(1));
    }

    /// Counts a process that hung and was replaced.
    pub(super) fn hung(&self) {
        self.hung.count();
    }

    /// Counts a process that has stopped serving a pod that it should serve.
    pub(super) fn lost(&self) {
        self.lost.set(self.lost.get().wrapping_add(1));
    }

    /// Counts a pod whose open streams did not end within their bound.
    pub(super) fn cut(&self) {
        self.cut.set(self.cut.get().wrapping_add(1));
    }

    /// Counts a busy pod that should get its own process, but does not because a limit is reached.
    pub(super) fn held_back(&self, full: Full) {
        let count = self.held_back_of(full);
        count.set(count.get().wrapping_add(1));
    }

    fn held_back_of(&self, full: Full) -> &Cell<u64> {
        match full {
            Full::Node => &self.held_back_of_node,
            Full::Namespace => &self.held_back_of_namespace,
        }
    }
}

/// Serves requests until the future is dropped.
pub(super) async fn serve(listener: TcpListener, served: SharedPods) {
    let answer = |request: Request<Incoming>, _: SocketPair| {
        let served = Rc::clone(&served);
        async move {
            let not_ready = not_ready(&mut served.borrow_mut());
            answer_pages(&request, || not_ready, || metrics(&served.borrow()))
        }
    };
    leno_program::serve(listener, answer).await;
}

/// Why an update should wait for this supervisor; `None` if it need not. A supervisor that was ready once stays
/// ready: with `maxSurge`, the DaemonSet deletes a pod that is not ready as soon as its successor exists, even if
/// the successor does not serve yet.
pub(super) fn not_ready(served: &mut ServedPodTable) -> Option<&'static str> {
    let waits = |pod: &super::ServedPod| !pod.serving && pod.joined.elapsed() < SERVING_PATIENCE;
    if served.ending != OwnEnding::No {
        return Some("this supervisor is ending: another one serves the pods, or will");
    }
    if served.was_ready {
        return None;
    }
    if served.agent.is_none() {
        return Some("not connected to the agent of this node: check the DaemonSet leno-agent");
    }
    if served.pods.values().any(waits) {
        return Some("not all pods are served yet: their proxies are waiting for certificates");
    }
    served.was_ready = true;
    None
}

/// The text of `/metrics`.
pub(super) fn metrics(served: &ServedPodTable) -> String {
    let mut text = String::new();
    put_pods(&mut text, served);
    put_counts(&mut text, served);
    text
}

/// Appends which pods are served at present, and by which groups.
fn put_pods(text: &mut String, served: &ServedPodTable) {
    let number = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
    let serving = served.pods.values().filter(|pod| pod.serving).count();
    let leaving = served.leaving.len();
    for (name, help, value) in [
        (
            "agent_connected",
            "Whether the agent of the node is connected.",
            number(served.agent.iter().count()),
        ),
        (
            "pods",
            "Pods that a node proxy of this supervisor is to serve.",
            number(served.pods.len()),
        ),
        ("pods_serving", "Those whose connections are accepted.", number(serving)),
        (
            "pods_leaving",
            "Pods that this supervisor no longer serves, but whose open streams it still finishes.",
            number(leaving),
        ),
    ] {
        Family::gauge(text, &format!("leno_supervisor_{name}"), help).sample(&[], value);
    }
    let name = "leno_supervisor_group_pods";
    let mut groups = Family::gauge(text, name, "Pods that share a process, by group.");
    for (group, (_, members)) in &served.groups {
        groups.sample(&[("group", group)], members);
    }
    let name = "leno_supervisor_pod_group";
    let help = "Pods, each with the group whose process serves it; always 1.";
    let mut of = Family::gauge(text, name, help);
    for pod in served.pods.values() {
        let (namespace, name) = (pod.pod.namespace.as_str(), pod.pod.name.as_str());
        of.sample(&[("namespace", namespace), ("pod", name), ("group", &pod.group)], 1);
    }
    let name = "leno_supervisor_pod_promoted";
    let help = "Pods that have a process of their own because they are busy; always 1.";
    let mut promoted = Family::gauge(text, name, help);
    for pod in served.pods.values().filter(|pod| pod.promotion.is_promoted()) {
        let (namespace, name) = (pod.pod.namespace.as_str(), pod.pod.name.as_str());
        promoted.sample(&[("namespace", namespace), ("pod", name)], 1);
    }
}

/// Appends what was counted since the supervisor started.
fn put_counts(text: &mut String, served: &ServedPodTable) {
    for (name, help, value) in [
        ("process_starts_total", "Node proxies that were started.", served.counts.started.get()),
        (
            "pods_lost_total",
            "Times that a node proxy unexpectedly stopped serving a pod. The pod is served again at once.",
            served.counts.lost.get(),
        ),
        (
            "pods_cut_total",
            "Pods whose open streams were cut because they did not end within their bound, or their process ended.",
            served.counts.cut.get(),
        ),
    ] {
        Family::counter(text, &format!("leno_supervisor_{name}"), help).sample(&[], value);
    }
    served.counts.hung.put(text, "leno_supervisor_processes_hung_total", "Node proxies");
    let name = "leno_supervisor_promotions_held_back_total";
    let help = "Times that a busy pod was due for a process of its own, and eight pods of the node or four of its namespace had one.";
    let mut held_back = Family::counter(text, name, help);
    for full in [Full::Node, Full::Namespace] {
        let count = served.counts.held_back_of(full).get();
        held_back.sample(&[("of", full.label())], count);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use leno_supervise::PromotionRules;

    use super::*;

    #[test]
    fn the_guide_has_the_metrics_of_the_supervisor() {
        let times = (Duration::from_secs(1), PromotionRules { after: None, above_percent: 50 });
        let page = metrics(&ServedPodTable::new("leno-proxy".into(), "token".into(), times));
        let guide = include_str!("../../../../docs/guide/kubernetes.md");
        let by_object = ["group_pods", "pod_group", "pod_promoted"];
        let by_object = by_object.map(|name| format!("leno_supervisor_{name}"));
        let by_object: Vec<&str> = by_object.iter().map(String::as_str).collect();
        leno_testkit::reference::check_metrics(guide, "leno_supervisor_", &page, &by_object);
    }
}
