//! Which addresses are watched, within bounds, and what of that the control plane has been told.

use std::collections::HashMap;
use std::time::Duration;

use leno_types::mesh::{Resolution, Subject};
use leno_wire::MAX_PREFETCH;
use tokio::sync::watch;
use tokio::time::Instant;

/// Most addresses that the own workload may have watched at once. A workload that dials more
/// distinct addresses within [`IDLE`] scans rather than calls; 100 bytes each bound this at 2 MB.
pub const MAX_WATCHED: usize = 16_384;
/// Most addresses of clients that are looked up at once. Anybody who can connect can make the
/// proxy look one up, so they have a bound of their own and take no room from what is dialled.
/// A workload with more clients than this within [`IDLE`] asks for the rarest of them again.
pub const MAX_LOOKED_UP: usize = 4_096;
/// How long an address that nobody watches stays subscribed.
pub const IDLE: Duration = Duration::from_mins(5);

/// The part of a full set that is dropped at once, so that the search for the oldest is paid once
/// for many new ones.
const DROPPED_PART: usize = 4;
/// How long a full set in which all are in use is not searched again, since a search takes as long
/// as the set is large.
const SEARCH_PAUSE: Duration = Duration::from_secs(1);

/// On whose behalf an address is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asker {
    /// The own workload dials it.
    Outbound,
    /// A client connects from it.
    Inbound,
    /// Workloads of the same identity use it, and the own one has not yet. It is never idle.
    Prefetch,
}

/// The addresses that are watched.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    watched: HashMap<Subject, Watched>,
    /// How many of them are watched for each [`Asker`].
    counts: [usize; 3],
    /// When each was last searched in vain.
    searched: [Option<Instant>; 3],
    /// To subscribe to, not yet sent.
    subscribe: Vec<Subject>,
    /// To subscribe to without a use of it, not yet sent.
    prefetch: Vec<Subject>,
    /// To unsubscribe from, not yet sent: each was subscribed to on this stream.
    unsubscribe: Vec<Subject>,
    /// Counts the uses, for their order.
    uses: u64,
}

#[derive(Debug)]
struct Watched {
    resolution: watch::Sender<Resolution>,
    asker: Asker,
    /// The number of its last use.
    used: u64,
    /// Since when nobody has a receiver, as of the last sweep.
    idle_since: Option<Instant>,
    /// The control plane was told of it.
    sent: bool,
}

impl Asker {
    fn most(self) -> usize {
        match self {
            Self::Outbound => MAX_WATCHED,
            Self::Inbound => MAX_LOOKED_UP,
            Self::Prefetch => MAX_PREFETCH,
        }
    }
}

impl Watches {
    pub(crate) fn len(&self) -> usize {
        self.watched.len()
    }

    pub(crate) fn contains(&self, subject: &Subject) -> bool {
        self.watched.contains_key(subject)
    }

    /// One more receiver of an address that is watched already.
    pub(crate) fn subscribe(
        &mut self,
        subject: &Subject,
        asker: Asker,
    ) -> Option<watch::Receiver<Resolution>> {
        self.uses += 1;
        let watched = self.watched.get_mut(subject)?;
        watched.idle_since = None;
        watched.used = self.uses;
        if asker == Asker::Outbound && watched.asker != asker {
            // What is dialled must not be dropped for what clients do. It was bounded when it came.
            self.counts[watched.asker as usize] -= 1;
            self.counts[Asker::Outbound as usize] += 1;
            if std::mem::replace(&mut watched.asker, asker) == Asker::Prefetch {
                // The control plane learns that the workload uses it.
                self.subscribe.push(subject.clone());
            }
        }
        Some(watched.resolution.subscribe())
    }

    /// Makes room for one more. Returns whether there is, and whether others were dropped for it.
    pub(crate) fn make_room(&mut self, asker: Asker) -> (bool, bool) {
        let most = asker.most();
        if self.counts[asker as usize] < most {
            return (true, false);
        }
        let now = Instant::now();
        if self.searched[asker as usize].is_some_and(|at| now.duration_since(at) < SEARCH_PAUSE) {
            return (false, false);
        }
        let mut idle: Vec<(Instant, u64, Subject)> = self
            .watched
            .iter()
            .filter(|(_, one)| one.asker == asker && one.resolution.receiver_count() == 0)
            .map(|(subject, one)| (one.idle_since.unwrap_or(now), one.used, subject.clone()))
            .collect();
        if idle.is_empty() {
            self.searched[asker as usize] = Some(now);
            return (false, false);
        }
        idle.sort_unstable();
        for (_, _, subject) in idle.into_iter().take(most / DROPPED_PART) {
            self.remove(subject);
        }
        self.forget_unsent();
        (self.counts[asker as usize] < most, true)
    }

    pub(crate) fn insert(
        &mut self,
        subject: Subject,
        asker: Asker,
        now: Resolution,
    ) -> watch::Receiver<Resolution> {
        let (resolution, receiver) = watch::channel(now);
        let watched = Watched { resolution, asker, used: self.uses, idle_since: None, sent: false };
        self.watched.insert(subject.clone(), watched);
        self.counts[asker as usize] += 1;
        match asker {
            Asker::Prefetch => self.prefetch.push(subject),
            Asker::Outbound | Asker::Inbound => self.subscribe.push(subject),
        }
        receiver
    }

    /// Watches a subject before the workload uses it, if there is room. `now` is what is known of it.
    pub(crate) fn prefetch(&mut self, subject: Subject, now: Resolution) {
        if !self.contains(&subject) && self.counts[Asker::Prefetch as usize] < MAX_PREFETCH {
            drop(self.insert(subject, Asker::Prefetch, now));
        }
    }

    /// The subjects that are watched without a use of them.
    pub(crate) fn prefetched(&self) -> impl Iterator<Item = &Subject> {
        let prefetched = self.watched.iter().filter(|(_, one)| one.asker == Asker::Prefetch);
        prefetched.map(|(subject, _)| subject)
    }

    /// The subjects to subscribe to without a use since the last call.
    pub(crate) fn take_prefetch(&mut self) -> Vec<Subject> {
        let add = std::mem::take(&mut self.prefetch);
        for subject in &add {
            if let Some(watched) = self.watched.get_mut(subject) {
                watched.sent = true;
            }
        }
        add
    }

    /// Tells whoever watches the subject, if anybody does and it is news.
    pub(crate) fn publish(&self, subject: &Subject, resolution: Resolution) {
        let Some(watched) = self.watched.get(subject) else { return };
        watched.resolution.send_if_modified(|current| {
            let differs = *current != resolution;
            *current = resolution;
            differs
        });
    }

    /// What to subscribe to and what to unsubscribe from since the last call. A subject may be in
    /// both: it was dropped and is watched again, so the end must be told first.
    pub(crate) fn take_changes(&mut self) -> (Vec<Subject>, Vec<Subject>) {
        let add = std::mem::take(&mut self.subscribe);
        for subject in &add {
            if let Some(watched) = self.watched.get_mut(subject) {
                watched.sent = true;
            }
        }
        (add, std::mem::take(&mut self.unsubscribe))
    }

    /// Ends a subscription and begins it again, so that the control plane sends everything.
    pub(crate) fn refetch(&mut self, subject: Subject) {
        let Some(watched) = self.watched.get(&subject).filter(|watched| watched.sent) else {
            return;
        };
        let begin = match watched.asker {
            Asker::Prefetch => &mut self.prefetch,
            Asker::Outbound | Asker::Inbound => &mut self.subscribe,
        };
        begin.push(subject.clone());
        self.unsubscribe.push(subject);
    }

    /// Everything watched because it is used, for the first request of a stream; what is only
    /// prefetched is in the next [`Watches::take_prefetch`].
    pub(crate) fn resume(&mut self) -> Vec<Subject> {
        self.subscribe.clear();
        self.unsubscribe.clear();
        self.prefetch = self.prefetched().cloned().collect();
        self.watched.values_mut().for_each(|watched| watched.sent = true);
        let used = self.watched.iter().filter(|(_, one)| one.asker != Asker::Prefetch);
        used.map(|(subject, _)| subject.clone()).collect()
    }

    /// Drops addresses that nobody has watched for [`IDLE`]; whether there were any.
    pub(crate) fn sweep(&mut self) -> bool {
        let now = Instant::now();
        let mut over = Vec::new();
        for (subject, watched) in &mut self.watched {
            if watched.asker == Asker::Prefetch || watched.resolution.receiver_count() > 0 {
                watched.idle_since = None;
            } else if now.duration_since(*watched.idle_since.get_or_insert(now)) >= IDLE {
                over.push(subject.clone());
            }
        }
        let any = !over.is_empty();
        for subject in over {
            self.remove(subject);
        }
        self.forget_unsent();
        any
    }

    fn remove(&mut self, subject: Subject) {
        if let Some(watched) = self.watched.remove(&subject) {
            self.counts[watched.asker as usize] -= 1;
            if watched.sent {
                self.unsubscribe.push(subject);
            }
        }
    }

    /// After removals: what the control plane was not told of needs no word at all.
    fn forget_unsent(&mut self) {
        let watched = &self.watched;
        self.subscribe.retain(|subject| watched.contains_key(subject));
    }
}
