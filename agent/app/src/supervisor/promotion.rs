//! Gives a busy pod its own proxy process, and returns the pod to a shared one when it is quiet
//! (`leno_supervise::Promotion`).
//!
//! The pod joins the new group, and leaves its present group once the new one serves it. The agent is not
//! involved, because it only decides between supervisors.

use std::rc::Rc;
use std::time::{Duration, Instant};

use leno_handover::{CpuUse, PlacedPod};
use leno_supervise::{ProcessSharing, Promotion, PromotionRules, is_key_of};

use super::{OwnEnding, ServedPod, ServedPodTable, SharedPods, join, leave};

/// Most pods of a node that may have their own process because they are busy. Each process uses memory of the
/// node's limit.
pub(super) const MAX_PROMOTED: usize = 8;
/// Most such pods of one namespace. It is half of the node's limit, so that one tenant cannot use it up.
pub(super) const MAX_PROMOTED_OF_NAMESPACE: usize = MAX_PROMOTED / 2;

/// Why a busy pod that should get its own process does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Full {
    /// The limit of the node is reached.
    Node,
    /// The limit of its namespace is reached.
    Namespace,
}

impl Full {
    /// The value of the label in metrics.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Namespace => "namespace",
        }
    }
}

/// The group to which a pod is moving.
pub(super) struct NextGroup {
    key: String,
    number: u64,
}

/// The promotion rules of a pod: those of its namespace, or else those of the supervisor. The pod itself can only
/// shorten the time after which it is promoted. It cannot prolong that time, because a busy pod slows down the
/// others in its process. It also cannot turn promotion on if its namespace or the supervisor has turned it off.
pub(super) fn rules(all: PromotionRules, pod: &PlacedPod) -> PromotionRules {
    let after = |ms: u64| (ms > 0).then(|| Duration::from_millis(ms));
    let own = pod.promote_after_ms.and_then(after);
    let sooner = |all: Duration| own.map_or(all, |own| own.min(all));
    let of_all = pod.namespace_promote_after_ms.map_or(all.after, after);
    PromotionRules { after: of_all.map(sooner), ..all }
}

/// Records the CPU time that a process has used for a pod. A pod whose process serves no other pod is not
/// promoted, however busy it is.
pub(super) fn has_used(served: &SharedPods, of: (&str, u64), used: CpuUse) {
    if judge(served, of, |promotion| promotion.used(Instant::now(), used)) {
        let (uid, percent) = (of.0, used.percent());
        tracing::warn!(
            uid,
            percent,
            "a pod uses much CPU in its node proxy: it gets a node proxy \
             of its own"
        );
        go(served, uid);
    }
}

/// Records that the thread that handles the pod's connections has stalled. A pod that causes stalls repeatedly
/// gets its own process.
pub(super) fn has_stalled(served: &SharedPods, of: (&str, u64)) {
    if judge(served, of, |promotion| promotion.has_stalled(Instant::now())) {
        let uid = of.0;
        tracing::warn!(
            uid,
            "the proxy thread of a pod stalls again: it gets a node proxy of its own"
        );
        go(served, uid);
    }
}

/// Whether the pod with this membership is promoted now. For that, `is_due` must return true, its process must
/// serve other pods as well, and the limits must permit it. If a limit is reached, the measurement of the pod
/// begins again.
fn judge(
    served: &SharedPods,
    (uid, number): (&str, u64),
    is_due: impl FnOnce(&mut Promotion) -> bool,
) -> bool {
    let mut served = served.borrow_mut();
    let full = served.pods.get(uid).and_then(|pod| served.full(&pod.pod.namespace));
    let ServedPodTable { pods, groups, counts, .. } = &mut *served;
    let Some(pod) = pods.get_mut(uid).filter(|pod| pod.number == number) else { return false };
    if pod.promotion.is_promoted() {
        return is_due(&mut pod.promotion);
    }
    if groups.get(&pod.group).is_none_or(|(_, members)| *members <= 1) {
        // CPU time from before must not count once other pods share the process.
        pod.promotion.has_joined(Instant::now());
        return false;
    }
    let mut next = pod.promotion.clone();
    let is_promoted = is_due(&mut next);
    if is_promoted && let Some(full) = full {
        let PlacedPod { namespace, name, .. } = &pod.pod;
        tracing::warn!(
            namespace,
            pod = name,
            of = full.label(),
            MAX_PROMOTED,
            MAX_PROMOTED_OF_NAMESPACE,
            "a busy pod stays in its shared process: the limit of pods with a process of their own \
             is reached"
        );
        counts.held_back(full);
        pod.promotion.has_joined(Instant::now());
        return false;
    }
    pod.promotion = next;
    is_promoted
}

/// Returns when a promoted pod has been quiet for long enough. Cancel safe.
pub(super) async fn until_quiet(served: &SharedPods, (uid, number): (&str, u64)) {
    let at = {
        let served = served.borrow();
        let pod = served.pods.get(uid).filter(|pod| pod.number == number && pod.next.is_none());
        pod.and_then(|pod| pod.promotion.goes_back_at())
    };
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

/// Ends the promotion of a pod, which then shares a process again.
pub(super) fn goes_back(served: &SharedPods, (uid, number): (&str, u64)) {
    {
        let mut served = served.borrow_mut();
        let this = |pod: &&mut ServedPod| pod.number == number && pod.next.is_none();
        let Some(pod) = served.pods.get_mut(uid).filter(this) else { return };
        let now = tokio::time::Instant::now().into_std();
        // The pod may have been busy since then, or its rules may have changed.
        if pod.promotion.goes_back_at().is_none_or(|at| at > now) {
            return;
        }
        pod.promotion.goes_back(now);
    }
    tracing::info!(uid, "a pod uses little CPU: it shares a node proxy again");
    go(served, uid);
}

/// Moves a pod to the group that it should be in now. The present group serves it until the next one does.
pub(super) fn go(served: &SharedPods, uid: &str) {
    stay(served, uid);
    let entered = {
        let mut served = served.borrow_mut();
        let ending = served.ending;
        let Some(pod) = served.pods.get_mut(uid) else { return };
        let name = match pod.promotion.is_promoted() {
            true => pod.own_group(),
            false => pod.pod.group.clone(),
        };
        // The pod is already in the right group, or it is not moved because this supervisor is ending.
        if ending != OwnEnding::No || is_key_of(&pod.group, &name) {
            pod.settle();
            return;
        }
        let broker = match pod.orders.try_clone() {
            Ok(broker) => broker,
            // The pod stays in its group. The move is tried again at the next change.
            Err(error) => {
                tracing::error!(uid, %error, "a pod cannot be moved to another process");
                pod.settle();
                return;
            }
        };
        let key = served.enter(&name);
        served.joined = served.joined.wrapping_add(1);
        let number = served.joined;
        if let Some(pod) = served.pods.get_mut(uid) {
            pod.next = Some(NextGroup { key: key.clone(), number });
        }
        (key, broker, number)
    };
    let (key, broker, number) = entered;
    join(served, uid, (&key, broker), (number, true));
}

/// Cancels the move of a pod to another group.
pub(super) fn stay(served: &SharedPods, uid: &str) {
    let left = {
        let mut served = served.borrow_mut();
        let Some(pod) = served.pods.get_mut(uid) else { return };
        let Some(NextGroup { key, number }) = pod.next.take() else { return };
        (pod.name.clone(), key, number, Rc::clone(&pod.orders))
    };
    let (name, key, number, orders) = left;
    // `succeeded` is true, because the group that serves the pod uses the same listeners.
    leave(served, (uid, name), (key, number), orders, true);
}

/// If this membership is of the group to which the pod is moving, that group becomes the pod's group, and the
/// earlier group finishes its open streams. Otherwise returns false.
pub(super) fn arrives(served: &SharedPods, uid: &str, number: u64) -> bool {
    let before = {
        let mut served = served.borrow_mut();
        let Some(pod) = served.pods.get_mut(uid) else { return false };
        let Some(next) = pod.next.take_if(|next| next.number == number) else { return false };
        let group = std::mem::replace(&mut pod.group, next.key);
        let number = std::mem::replace(&mut pod.number, next.number);
        pod.serving = true;
        pod.promotion.has_joined(Instant::now());
        (pod.name.clone(), group, number, Rc::clone(&pod.orders))
    };
    served.borrow().changed.notify_waiters();
    let (name, group, number, orders) = before;
    leave(served, (uid, name), (group, number), orders, true);
    true
}

impl ServedPodTable {
    /// The limit that prevents more pods of this namespace from being promoted; `None` if no limit is reached.
    fn full(&self, namespace: &str) -> Option<Full> {
        let promoted = || self.pods.values().filter(|pod| pod.promotion.is_promoted());
        if promoted().count() >= MAX_PROMOTED {
            return Some(Full::Node);
        }
        let of_namespace = promoted().filter(|pod| pod.pod.namespace == namespace).count();
        (of_namespace >= MAX_PROMOTED_OF_NAMESPACE).then_some(Full::Namespace)
    }
}

impl ServedPod {
    /// The name of the group with only this pod, in which it is while it is promoted.
    fn own_group(&self) -> String {
        ProcessSharing::Workload.group(&self.name, "")
    }

    /// Sets whether the pod is promoted, according to its present group.
    pub(super) fn settle(&mut self) {
        let own = self.own_group();
        let promoted = own != self.pod.group && is_key_of(&self.group, &own);
        self.promotion.is_in(promoted, Instant::now());
    }
}
