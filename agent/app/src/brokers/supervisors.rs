//! The supervisors of node proxies that are connected: one, or two while one replaces the other.
//!
//! ```text
//!                     no supervisor is told, or its broker has ended
//!                              │ Serve
//!          the current one is  ▼      Served        Serving
//!                             Told ──────────► Joined ──────► Serving ──► all others: Release (succeeded)
//! ```
//! One of them is to serve all pods: the one that began last, of those that were not asked to end if there is one. Each
//! pod is brought to that one ([`Supervisors::settle`]), and released by the others once that one accepts its connections.
//! So should the current one end before, the earlier one still serves the pod; should it end after, the earlier one is the
//! current one and is told to serve the pod again.

use std::collections::BTreeMap;
use std::sync::Arc;

use leno_handover::AsyncChannel;
use tokio::sync::mpsc;

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Supervisors(Vec<Supervisor>);

/// One of them.
#[derive(Debug)]
pub(super) struct Supervisor {
    /// Names the connection.
    pub(super) number: u64,
    /// When it began, as it reports that.
    pub(super) began_ms: u64,
    pub(super) ending: SupervisorEnding,
    pub(super) channel: Arc<AsyncChannel>,
    pub(super) told: mpsc::Sender<SupervisorOrder>,
    /// The pods that it was told to serve, or serves already.
    pub(super) holds: BTreeMap<String, PodProgress>,
    /// What it was told last of another one that is to take over.
    pub(super) successor: Option<bool>,
}

/// Whether a supervisor was asked to end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum SupervisorEnding {
    #[default]
    No,
    /// It serves its pods until another one does.
    Serves,
    /// It finishes what it has, and is to serve no pod any more.
    Finishes,
}

/// How far a supervisor has come with a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PodProgress {
    /// The broker by which it serves it has ended.
    Lost,
    /// It was told to serve it.
    Told,
    /// It has told a process to serve it.
    Joined,
    /// That process accepts its connections.
    Serving,
}

/// What a supervisor is told next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SupervisorOrder {
    Serve { uid: String, succeeds: bool },
    Release { uid: String, succeeded: bool },
    Successor { is_there: bool },
}

impl SupervisorEnding {
    /// Of a supervisor that was asked to end, and serves its pods until another one does or not.
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

    /// Removes one that has ended; whether there was such a one.
    pub(super) fn remove(&mut self, number: u64) -> bool {
        let before = self.0.len();
        self.0.retain(|one| one.number != number);
        self.0.len() < before
    }

    /// The one that is to serve all pods.
    pub(super) fn current(&self) -> Option<&Supervisor> {
        let may_serve = self.0.iter().filter(|one| one.ending != SupervisorEnding::Finishes);
        may_serve.max_by_key(|one| (one.ending == SupervisorEnding::No, one.began_ms, one.number))
    }

    /// Whether a process serves a pod, or was told to.
    pub(super) fn is_served(&self, uid: &str) -> bool {
        let mut all = self.0.iter();
        all.any(|one| one.holds.get(uid).is_some_and(|progress| *progress >= PodProgress::Joined))
    }

    /// One was asked to end.
    pub(super) fn end(&mut self, number: u64, ending: SupervisorEnding) {
        if let Some(one) = self.get_mut(number) {
            one.ending = ending;
            if ending == SupervisorEnding::Finishes {
                one.holds.clear();
            }
        }
    }

    /// Tells those that end whether another one is to take their pods over, if that has changed.
    pub(super) fn tell_of_successors(&mut self) {
        // One that ends is not counted.
        let is_there = self.0.iter().any(|one| one.ending == SupervisorEnding::No);
        for one in self.0.iter_mut().filter(|one| one.ending != SupervisorEnding::No) {
            if one.successor.replace(is_there) != Some(is_there) {
                one.tell(SupervisorOrder::Successor { is_there });
            }
        }
    }

    /// One has come this far with a pod, unless it was told to release that.
    pub(super) fn reach(&mut self, number: u64, uid: &str, progress: PodProgress) {
        if let Some(one) = self.get_mut(number)
            && let Some(before) = one.holds.get_mut(uid)
            && *before != PodProgress::Lost
        {
            *before = progress;
        }
    }

    /// Has one serve a pod no more.
    pub(super) fn release(&mut self, number: u64, uid: &str, succeeded: bool) {
        if let Some(one) = self.get_mut(number) {
            one.tell(SupervisorOrder::Release { uid: uid.to_owned(), succeeded });
        }
    }

    /// Has none serve a pod any more. One may know a pod whose broker has ended, or finish what it has for it.
    pub(super) fn release_everywhere(&mut self, uid: &str) {
        for one in &mut self.0 {
            one.tell(SupervisorOrder::Release { uid: uid.to_owned(), succeeded: false });
        }
    }

    /// Has those that hold a pod release it: they serve it by a broker that is of no use any more.
    pub(super) fn release_held(&mut self, uid: &str) {
        for one in self.0.iter_mut().filter(|one| one.holds.contains_key(uid)) {
            one.tell(SupervisorOrder::Release { uid: uid.to_owned(), succeeded: false });
        }
    }

    /// The broker of a pod has ended: the current supervisor is to go on with the next one, the others have nothing of the
    /// pod.
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

    /// Brings a pod that has a broker to the current supervisor, and has the others release it once that one serves it.
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
            // The others serve on.
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
            SupervisorOrder::Successor { .. } => {}
        }
        if self.told.try_send(told).is_err() {
            // It connects again, and then gets everything.
            self.channel.shut_down();
        }
    }
}
