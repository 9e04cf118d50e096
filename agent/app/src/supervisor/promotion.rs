//! A busy pod gets a process of its own, and goes back when it is quiet (`leno_supervise::Promotion`).
//!
//! The pod joins the next group, and leaves the one before once it is served there: the agent, which decides between
//! supervisors, notices nothing of that.

use std::time::Instant;

use leno_handover::CpuUse;
use leno_supervise::Share;

use super::{Ending, Served, Shared, join, leave};

/// The group that a pod goes to.
pub(super) struct NextGroup {
    key: String,
    number: u64,
}

/// What the process that serves a pod has used for it. A pod that has its process for itself is not promoted, however busy.
pub(super) fn has_used(served: &Shared, (uid, number): (&str, u64), used: CpuUse) {
    let promoted = {
        let mut served = served.borrow_mut();
        let Served { pods, groups, .. } = &mut *served;
        let Some(pod) = pods.get_mut(uid).filter(|pod| pod.number == number) else { return };
        let is_shared = groups.get(&pod.group).is_some_and(|(_, members)| *members > 1);
        (pod.promotion.is_promoted() || is_shared) && pod.promotion.used(Instant::now(), used)
    };
    if promoted {
        let percent = used.percent();
        tracing::warn!(uid, percent, "a pod keeps its node proxy busy: it gets one of its own");
        go(served, uid);
    }
}

/// Comes back when a pod that is promoted has been quiet for long. Cancel safe.
pub(super) async fn until_quiet(served: &Shared, (uid, number): (&str, u64)) {
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
pub(super) fn goes_back(served: &Shared, uid: &str) {
    if let Some(pod) = served.borrow_mut().pods.get_mut(uid) {
        pod.promotion.goes_back();
    }
    tracing::info!(uid, "a pod is quiet: it shares a node proxy again");
    go(served, uid);
}

/// Has the process of the group that a pod is to be in serve it, after the one that does.
fn go(served: &Shared, uid: &str) {
    stay(served, uid);
    let entered = {
        let mut served = served.borrow_mut();
        let Some(pod) = served.pods.get(uid).filter(|_| served.ending == Ending::No) else {
            return;
        };
        let name = match pod.promotion.is_promoted() {
            true => Share::Workload.group(&pod.name, ""),
            false => pod.pod.group.clone(),
        };
        let broker = match pod.orders.try_clone() {
            Ok(broker) => broker,
            // It is served where it is, and tried with the next change.
            Err(error) => {
                tracing::error!(uid, %error, "a pod stays where it is");
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
pub(super) fn stay(served: &Shared, uid: &str) {
    let left = {
        let mut served = served.borrow_mut();
        let Some(pod) = served.pods.get_mut(uid) else { return };
        let Some(NextGroup { key, number }) = pod.next.take() else { return };
        pod.orders.try_clone().map(|orders| (pod.name.clone(), key, number, orders))
    };
    match left {
        // The listeners are those of the group that serves it, too.
        Ok((name, key, number, orders)) => leave(served, (uid, name), (key, number), orders, true),
        Err(error) => tracing::error!(uid, %error, "a pod is served twice"),
    }
}

/// Whether the pod is served by the group that it goes to, which is its group from now on. The one before finishes what it has.
pub(super) fn arrives(served: &Shared, uid: &str, number: u64) -> bool {
    let before = {
        let mut served = served.borrow_mut();
        let Some(pod) = served.pods.get_mut(uid) else { return false };
        let Some(next) = pod.next.take_if(|next| next.number == number) else { return false };
        let group = std::mem::replace(&mut pod.group, next.key);
        let number = std::mem::replace(&mut pod.number, next.number);
        pod.serving = true;
        pod.promotion.has_joined(Instant::now());
        pod.orders.try_clone().map(|orders| (pod.name.clone(), group, number, orders))
    };
    served.borrow().changed.notify_waiters();
    match before {
        Ok((name, group, number, orders)) => {
            leave(served, (uid, name), (group, number), orders, true);
        }
        Err(error) => tracing::error!(uid, %error, "a pod is served twice"),
    }
    true
}
