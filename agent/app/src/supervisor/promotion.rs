//! A busy pod gets a process of its own, and goes back when it is quiet (`leno_supervise::Promotion`).
//!
//! The pod joins the next group, and leaves the one before once it is served there: the agent, which decides between
//! supervisors, notices nothing of that.

use std::rc::Rc;
use std::time::{Duration, Instant};

use leno_handover::{CpuUse, PlacedPod};
use leno_supervise::{ProcessSharing, Promotion, PromotionRules};

use super::{OwnEnding, ServedPod, ServedPodTable, SharedPods, join, leave};

/// Most pods of a node that have a process of their own because they are busy: each takes memory of the node's limit.
pub(super) const MAX_PROMOTED: usize = 8;
/// Most of them of one namespace: half, so that no tenant takes the places of all others.
pub(super) const MAX_PROMOTED_OF_NAMESPACE: usize = MAX_PROMOTED / 2;

/// Why a busy pod shares its process although it is due for one of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Full {
    /// As many pods of the node have one as may.
    Node,
    /// As many pods of its namespace have one as may.
    Namespace,
}

impl Full {
    /// Its label in metrics.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Namespace => "namespace",
        }
    }
}

/// The group that a pod goes to.
pub(super) struct NextGroup {
    key: String,
    number: u64,
}

/// The rules of a pod: those of its namespace, or else of the supervisor, or sooner as the pod itself sets it. A pod that keeps the
/// process of others busy does not decide that it stays, and has no process for this where neither its namespace nor the supervisor
/// is to give it one.
pub(super) fn rules(all: PromotionRules, pod: &PlacedPod) -> PromotionRules {
    let after = |ms: u64| (ms > 0).then(|| Duration::from_millis(ms));
    let own = pod.promote_after_ms.and_then(after);
    let sooner = |all: Duration| own.map_or(all, |own| own.min(all));
    let of_all = pod.namespace_promote_after_ms.map_or(all.after, after);
    PromotionRules { after: of_all.map(sooner), ..all }
}

/// What the process that serves a pod has used for it. A pod that has its process for itself is not promoted, however busy.
pub(super) fn has_used(served: &SharedPods, of: (&str, u64), used: CpuUse) {
    if judge(served, of, |promotion| promotion.used(Instant::now(), used)) {
        let (uid, percent) = (of.0, used.percent());
        tracing::warn!(uid, percent, "a pod keeps its node proxy busy: it gets one of its own");
        go(served, uid);
    }
}

/// The thread of a pod's connections does not come round. A pod that makes that happen again is not left beside others.
pub(super) fn has_stalled(served: &SharedPods, of: (&str, u64)) {
    if judge(served, of, |promotion| promotion.has_stalled(Instant::now())) {
        let uid = of.0;
        tracing::warn!(uid, "the thread of a pod stalls again: it gets a node proxy of its own");
        go(served, uid);
    }
}

/// Whether a pod that this membership is of is promoted now, since `is_due` says so, it shares its process, and there is room for
/// one more. One for which there is no room begins again.
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
        // What was before does not count once it can be promoted.
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
            "a busy pod stays: as many have a process of their own as may"
        );
        counts.held_back(full);
        pod.promotion.has_joined(Instant::now());
        return false;
    }
    pod.promotion = next;
    is_promoted
}

/// Comes back when a pod that is promoted has been quiet for long. Cancel safe.
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

/// Has a pod share a process again.
pub(super) fn goes_back(served: &SharedPods, (uid, number): (&str, u64)) {
    {
        let mut served = served.borrow_mut();
        let this = |pod: &&mut ServedPod| pod.number == number && pod.next.is_none();
        let Some(pod) = served.pods.get_mut(uid).filter(this) else { return };
        let now = tokio::time::Instant::now().into_std();
        // It may have been busy since, or be served in another way.
        if pod.promotion.goes_back_at().is_none_or(|at| at > now) {
            return;
        }
        pod.promotion.goes_back(now);
    }
    tracing::info!(uid, "a pod is quiet: it shares a node proxy again");
    go(served, uid);
}

/// Has the process of the group that a pod is to be in serve it, after the one that does.
fn go(served: &SharedPods, uid: &str) {
    stay(served, uid);
    let entered = {
        let mut served = served.borrow_mut();
        let ending = served.ending;
        let Some(pod) = served.pods.get_mut(uid) else { return };
        let name = match pod.promotion.is_promoted() {
            true => pod.own_group(),
            false => pod.pod.group.clone(),
        };
        // Its group serves it, and is not to be left for itself.
        if ending != OwnEnding::No || is_of(&pod.group, &name) {
            pod.settle();
            return;
        }
        let broker = match pod.orders.try_clone() {
            Ok(broker) => broker,
            // It is served where it is, and tried with the next change.
            Err(error) => {
                tracing::error!(uid, %error, "a pod stays where it is");
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

/// A pod does not go to the group that it was to go to.
pub(super) fn stay(served: &SharedPods, uid: &str) {
    let left = {
        let mut served = served.borrow_mut();
        let Some(pod) = served.pods.get_mut(uid) else { return };
        let Some(NextGroup { key, number }) = pod.next.take() else { return };
        (pod.name.clone(), key, number, Rc::clone(&pod.orders))
    };
    let (name, key, number, orders) = left;
    // The listeners are those of the group that serves it, too.
    leave(served, (uid, name), (key, number), orders, true);
}

/// Whether the pod is served by the group that it goes to, which is its group from now on. The one before finishes what it has.
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
    /// Why no more pods of this namespace may be promoted, if so.
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
    /// The group that it has for itself while it is busy.
    fn own_group(&self) -> String {
        ProcessSharing::Workload.group(&self.name, "")
    }

    /// Whether it is promoted is what its group is, from now on.
    pub(super) fn settle(&mut self) {
        let own = self.own_group();
        let promoted = own != self.pod.group && is_of(&self.group, &own);
        self.promotion.is_in(promoted, Instant::now());
    }
}

/// Whether the group of this key is one of this name (`ServedPodTable::enter`).
fn is_of(key: &str, name: &str) -> bool {
    let Some(rest) = key.strip_prefix(name) else { return false };
    let number = rest.strip_prefix('.').and_then(|number| number.parse::<u32>().ok());
    rest.is_empty() || number.is_some()
}
