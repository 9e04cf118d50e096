//! The connected supervisors of node proxies. There is one, or two while one replaces the other.
//!
//! ```text
//!                     the pod is new, or its broker has ended
//!                              │ Serve
//!          the current one is  ▼      Served        Serving
//!                             Told ──────────► Joined ──────► Serving ──► all others: Release (succeeded)
//! ```
//! One supervisor, the current one, should serve all pods. It is the one that started last among those that were
//! not asked to end or, if all were, among those that still serve. [`Supervisors::settle`] orders the current one
//! to serve each pod, and orders the others to release the pod once the current one accepts its connections. So if
//! the current one ends before that, the earlier supervisor still serves the pod. If it ends later, the earlier
//! one becomes the current one and is ordered to serve the pod again.

use std::collections::BTreeMap;
use std::sync::Arc;

use leno_handover::AsyncChannel;
use tokio::sync::mpsc;

/// All connected supervisors.
#[derive(Debug, Default)]
pub(super) struct Supervisors(Vec<Supervisor>);

/// One connected supervisor.
#[derive(Debug)]
pub(super) struct Supervisor {
    /// Identifies the connection.
    pub(super) number: u64,
    /// When the supervisor was started, according to its own report.
    pub(super) began_ms: u64,
    pub(super) ending: SupervisorEnding,
    pub(super) channel: Arc<AsyncChannel>,
    pub(super) told: mpsc::Sender<SupervisorOrder>,
    /// The pods that it serves or was ordered to serve.
    pub(super) holds: BTreeMap<String, PodProgress>,
    /// The last message to it on whether another supervisor will take over; `None` before the first.
    pub(super) successor: Option<bool>,
}

/// Whether a supervisor was asked to end, and what it does until then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum SupervisorEnding {
    #[default]
    No,
    /// The supervisor still serves its pods until another supervisor does.
    Serves,
    /// The supervisor finishes its open streams, and serves no pods.
    Finishes,
}

/// How far a supervisor has proceeded with serving a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PodProgress {
    /// The broker through which it served the pod has ended.
    Lost,
    /// The supervisor was ordered to serve the pod.
    Told,
    /// The supervisor has passed the order to a proxy process.
    Joined,
    /// That process accepts the pod's connections.
    Serving,
}

/// An order for a supervisor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SupervisorOrder {
    Serve { uid: String, succeeds: bool },
    Change { uid: String },
    Release { uid: String, succeeded: bool },
    Successor { is_there: bool },
}

impl SupervisorEnding {
    /// The state of a supervisor that reports that it was asked to end. `serves` is whether it still serves its
    /// pods.
    pub(super) fn of(serves: bool) -> Self {
        if serves { Self::Serves } else { Self::Finishes }
    }
}

impl Supervisors {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn add(&mut self, supervisor: Supervisor) {
        self.0.push(supervisor);
    }

    /// Removes the supervisor of a connection that has ended. Returns false if there was none.
    pub(super) fn remove(&mut self, number: u64) -> bool {
        let before = self.0.len();
        self.0.retain(|one| one.number != number);
        self.0.len() < before
    }

    /// The supervisor that should serve all pods.
    pub(super) fn current(&self) -> Option<&Supervisor> {
        let may_serve = self.0.iter().filter(|one| one.ending != SupervisorEnding::Finishes);
        may_serve.max_by_key(|one| (one.ending == SupervisorEnding::No, one.began_ms, one.number))
    }

    /// Whether a proxy process serves the pod, or has been ordered to.
    pub(super) fn is_served(&self, uid: &str) -> bool {
        self.has_reached(uid, PodProgress::Joined)
    }

    /// Whether a proxy process accepts the pod's connections.
    pub(super) fn is_serving(&self, uid: &str) -> bool {
        self.has_reached(uid, PodProgress::Serving)
    }

    fn has_reached(&self, uid: &str, wanted: PodProgress) -> bool {
        let mut all = self.0.iter();
        all.any(|one| one.holds.get(uid).is_some_and(|progress| *progress >= wanted))
    }

    /// Records that a supervisor was asked to end.
    pub(super) fn end(&mut self, number: u64, ending: SupervisorEnding) {
        if let Some(one) = self.get_mut(number) {
            one.ending = ending;
            if ending == SupervisorEnding::Finishes {
                one.holds.clear();
            }
        }
    }

    /// Informs supervisors that are ending whether another one will take over their pods, if that has changed.
    pub(super) fn tell_of_successors(&mut self) {
        // A supervisor that is ending cannot take over.
        let is_there = self.0.iter().any(|one| one.ending == SupervisorEnding::No);
        for one in self.0.iter_mut().filter(|one| one.ending != SupervisorEnding::No) {
            if one.successor.replace(is_there) != Some(is_there) {
                one.tell(SupervisorOrder::Successor { is_there });
            }
        }
    }

    /// Records the progress of a supervisor with a pod. The report is ignored if the supervisor was ordered to
    /// release the pod, or if the broker has ended.
    pub(super) fn reach(&mut self, number: u64, uid: &str, progress: PodProgress) {
        if let Some(one) = self.get_mut(number)
            && let Some(before) = one.holds.get_mut(uid)
            && *before != PodProgress::Lost
        {
            *before = progress;
        }
    }

    /// Whether a supervisor serves a pod through a broker that has not ended.
    pub(super) fn holds(&self, number: u64, uid: &str) -> bool {
        let mut all = self.0.iter().filter(|one| one.number == number);
        let held = all.find_map(|one| one.holds.get(uid));
        held.is_some_and(|progress| *progress != PodProgress::Lost)
    }

    /// Tells all supervisors that hold a pod of its changed settings. One that does not, gets them when it is ordered
    /// to serve it.
    pub(super) fn change(&mut self, uid: &str) {
        for one in self.0.iter_mut().filter(|one| one.holds.contains_key(uid)) {
            one.tell(SupervisorOrder::Change { uid: uid.to_owned() });
        }
    }

    /// Orders one supervisor to release a pod.
    pub(super) fn release(&mut self, number: u64, uid: &str, succeeded: bool) {
        if let Some(one) = self.get_mut(number) {
            one.tell(SupervisorOrder::Release { uid: uid.to_owned(), succeeded });
        }
    }

    /// Orders all supervisors to release a pod, even those that do not serve it, because they may still finish its
    /// streams.
    pub(super) fn release_everywhere(&mut self, uid: &str) {
        for one in &mut self.0 {
            one.tell(SupervisorOrder::Release { uid: uid.to_owned(), succeeded: false });
        }
    }

    /// Orders the supervisors that serve a pod to stop, and to finish its open streams.
    pub(super) fn leave(&mut self, uid: &str) {
        for one in self.0.iter_mut().filter(|one| one.holds.contains_key(uid)) {
            one.tell(SupervisorOrder::Release { uid: uid.to_owned(), succeeded: true });
        }
    }

    /// Orders the supervisors that serve a pod to release it, because their broker for it is useless.
    pub(super) fn release_held(&mut self, uid: &str) {
        for one in self.0.iter_mut().filter(|one| one.holds.contains_key(uid)) {
            one.tell(SupervisorOrder::Release { uid: uid.to_owned(), succeeded: false });
        }
    }

    /// Records that the broker of a pod has ended. The current supervisor will get the next broker. The others are
    /// ordered to release the pod.
    pub(super) fn lose(&mut self, uid: &str) {
        let current = self.current().map(|current| current.number);
        for one in &mut self.0 {
            let Some(progress) = one.holds.get_mut(uid) else { continue };
            if Some(one.number) == current {
                *progress = PodProgress::Lost;
            } else {
                one.tell(SupervisorOrder::Release { uid: uid.to_owned(), succeeded: false });
            }
        }
    }

    /// Orders the current supervisor to serve a pod that has a broker, and the others to release it once the current
    /// one serves it.
    pub(super) fn settle(&mut self, uid: &str) {
        let Some(current) = self.current() else { return };
        let (number, progress) = (current.number, current.holds.get(uid).copied());
        let uid = uid.to_owned();
        match progress {
            None | Some(PodProgress::Lost) => {
                let serves = |one: &Supervisor| {
                    one.holds.get(&uid).is_some_and(|progress| *progress > PodProgress::Lost)
                };
                let succeeds = self.0.iter().any(serves);
                if let Some(current) = self.get_mut(number) {
                    current.tell(SupervisorOrder::Serve { uid, succeeds });
                }
            }
            Some(PodProgress::Serving) => {
                let others = self.0.iter_mut().filter(|one| one.number != number);
                for other in others.filter(|other| other.holds.contains_key(&uid)) {
                    other.tell(SupervisorOrder::Release { uid: uid.clone(), succeeded: true });
                }
            }
            // The other supervisors serve the pod until the current one does.
            Some(PodProgress::Told | PodProgress::Joined) => {}
        }
    }

    fn get_mut(&mut self, number: u64) -> Option<&mut Supervisor> {
        self.0.iter_mut().find(|one| one.number == number)
    }
}

impl Supervisor {
    fn tell(&mut self, told: SupervisorOrder) {
        match &told {
            SupervisorOrder::Serve { uid, .. } => {
                self.holds.insert(uid.clone(), PodProgress::Told);
            }
            SupervisorOrder::Release { uid, .. } => {
                self.holds.remove(uid);
            }
            SupervisorOrder::Change { .. } | SupervisorOrder::Successor { .. } => {}
        }
        if self.told.try_send(told).is_err() {
            // The supervisor connects again, and then gets all orders.
            self.channel.shut_down();
        }
    }
}
