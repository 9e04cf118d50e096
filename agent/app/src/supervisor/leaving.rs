//! Pods that have left a group whose process still finishes their open streams.

use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use leno_handover::Channel;
use leno_supervise::{DepartedMember, Finishing, Group, StopStage};
use leno_types::{InstanceName, MAX_FINISHING};
use tokio::sync::Notify;

use super::{LEAVE_BOUND, SLACK, ServedPodTable, SharedPods};

/// A pod that has left its group.
#[derive(Clone)]
pub(super) struct LeavingPod {
    pub(super) uid: String,
    /// Notified when the pod's streams must end within [`LEAVE_BOUND`].
    pub(super) hurry: Rc<Notify>,
    /// All processes that finish streams of the pod.
    finishing: Rc<Finishing>,
}

/// Makes the process of a group finish the open streams of a pod, within a bound.
pub(super) fn leave(
    served: &SharedPods,
    (uid, name): (&str, InstanceName),
    (group, number): (String, u64),
    orders: Rc<Channel>,
    succeeded: bool,
) {
    let Some(group) = served.borrow_mut().give_back(&group) else { return };
    // The order is sent at once, because a pod of the same name may join next.
    let left = group.leave(&name, (number, succeeded));
    let bound = match succeeded {
        true => served.borrow().handover.saturating_add(SLACK),
        false => LEAVE_BOUND,
    };
    let leaving = served.borrow_mut().begin_to_leave(uid, number);
    let (served, changed) = (Rc::clone(served), Rc::clone(&served.borrow().changed));
    // The task ends within `bound`.
    tokio::task::spawn_local(async move {
        if !leaving.finish(&name, number, (left, bound)).await {
            tracing::warn!(%name, "open streams of a pod were cut");
            served.borrow().counts.cut();
        }
        // Dropping the last handle of its channel ends the broker.
        drop(orders);
        end(group).await;
        served.borrow_mut().leaving.remove(&number);
        changed.notify_waiters();
    });
}

/// Ends the process of a group without members. If another task still waits for a leaving member, that task ends it.
async fn end(group: Rc<Group>) {
    if let Ok(group) = Rc::try_unwrap(group) {
        group.end(StopStage::All).await;
    }
}

impl LeavingPod {
    /// Waits until the membership `number` has no open stream, within a bound, and less if the process is one of too many
    /// or the pod has ended. Returns whether no stream was cut.
    pub(super) async fn finish(
        &self,
        name: &InstanceName,
        number: u64,
        (left, bound): (impl Future<Output = Option<DepartedMember>>, Duration),
    ) -> bool {
        let mut left = pin!(left);
        tokio::select! {
            left = &mut left => return DepartedMember::is_whole(left.as_ref()),
            () = tokio::time::sleep(bound) => return false,
            () = self.hurry.notified() => {}
            () = self.finishing.is_first_of_too_many(number) => tracing::warn!(
                %name,
                MAX_FINISHING,
                "too many processes finish open streams of a pod: those of the oldest process are about to be cut"
            ),
        }
        let left = tokio::time::timeout(LEAVE_BOUND, left).await;
        left.is_ok_and(|left| DepartedMember::is_whole(left.as_ref()))
    }
}

impl ServedPodTable {
    /// Adds a pod that leaves the group in which its membership is `number`.
    pub(super) fn begin_to_leave(&mut self, uid: &str, number: u64) -> LeavingPod {
        let earlier = self.leaving.values().find(|leaving| leaving.uid == uid);
        let finishing = earlier.map(|leaving| Rc::clone(&leaving.finishing)).unwrap_or_default();
        let leaving = LeavingPod { uid: uid.to_owned(), hurry: Rc::default(), finishing };
        self.leaving.insert(number, leaving.clone());
        leaving
    }

    /// Makes the open streams of a pod that has left end within [`LEAVE_BOUND`].
    pub(super) fn hurry(&self, uid: &str) {
        for leaving in self.leaving.values().filter(|leaving| leaving.uid == uid) {
            leaving.hurry.notify_one();
        }
    }
}
