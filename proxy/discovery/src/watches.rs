//! The watched addresses, their limits, and for which of them the control plane has been asked.

use std::collections::HashMap;
use std::time::Duration;

use leno_types::mesh::{Resolution, Subject};
use leno_wire::MAX_PREFETCH;
use tokio::sync::watch;
use tokio::time::Instant;

/// How many addresses may be watched at once for the proxy's own workload. A workload that dials more distinct
/// addresses within [`IDLE`] is scanning. With 100 bytes for each address, the set takes at most 2 MB.
pub const MAX_WATCHED: usize = 16_384;
/// How many addresses of clients are looked up at once. Any host that can connect can cause a look-up, so these
/// addresses have a limit of their own and take no place from addresses that the workload dials. If a workload has more
/// clients than this within [`IDLE`], the proxy asks again for those that come most rarely.
pub const MAX_LOOKED_UP: usize = 4_096;
/// The largest number of addresses of clients that are looked up for the access log at once. A connection holds its
/// look-up until it ends; these look-ups must not use up the room of those by which clients are authorized.
pub const MAX_LOGGED: usize = 1_024;
/// How long an address without receivers stays subscribed.
pub const IDLE: Duration = Duration::from_mins(5);

/// When a set is full, one part in this many is dropped, so that one search for the oldest addresses makes room for
/// many new ones.
const DROPPED_PART: usize = 4;
/// How long to wait before the next search if a set is full and all its addresses have receivers. The time for a search
/// is proportional to the set's size.
const SEARCH_PAUSE: Duration = Duration::from_secs(1);

/// The reason why an address is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asker {
    /// The proxy's own workload connects to the address.
    Outbound,
    /// A client connects from the address, and the client's permissions depend on the address.
    Inbound,
    /// A client connects from the address, and the access log shows the client's name.
    Log,
    /// Other workloads of the same identity use the address, but the proxy's own workload does not use it yet. The
    /// address never becomes idle.
    Prefetch,
}

/// The watched addresses.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    watched: HashMap<Subject, Watched>,
    /// The number of addresses for each [`Asker`].
    counts: [usize; 4],
    /// For each [`Asker`], when a search last found no address to drop.
    searched: [Option<Instant>; 4],
    /// Subscriptions that must still be sent.
    subscribe: Vec<Subject>,
    /// Subscriptions of prefetched subjects that must still be sent.
    prefetch: Vec<Subject>,
    /// Unsubscriptions that must still be sent. Each subject was subscribed to on this stream.
    unsubscribe: Vec<Subject>,
    /// The number of uses so far, which is the order of the uses.
    uses: u64,
}

#[derive(Debug)]
struct Watched {
    resolution: watch::Sender<Resolution>,
    asker: Asker,
    /// The number of the address's last use.
    used: u64,
    /// Since when the address has had no receiver, according to the last sweep.
    idle_since: Option<Instant>,
    /// Whether the subscription was sent on this stream.
    sent: bool,
}

impl Asker {
    fn most(self) -> usize {
        match self {
            Self::Outbound => MAX_WATCHED,
            Self::Inbound => MAX_LOOKED_UP,
            Self::Log => MAX_LOGGED,
            Self::Prefetch => MAX_PREFETCH,
        }
    }

    /// Whether an address that is watched for `other` counts as this asker's from the moment this asker watches it,
    /// too.
    fn outranks(self, other: Self) -> bool {
        match self {
            Self::Outbound => other != Self::Outbound,
            Self::Inbound => other == Self::Log,
            Self::Log | Self::Prefetch => false,
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

    /// Adds a receiver to a watched address. `None` if the address is not watched yet.
    pub(crate) fn subscribe(
        &mut self,
        subject: &Subject,
        asker: Asker,
    ) -> Option<watch::Receiver<Resolution>> {
        self.uses += 1;
        let watched = self.watched.get_mut(subject)?;
        watched.idle_since = None;
        watched.used = self.uses;
        if asker.outranks(watched.asker) {
            // An address that the workload dials must not be dropped because there are many clients, and one that is
            // needed for authorization must not be dropped because of the log. The address was counted against the
            // limit of the earlier asker.
            self.counts[watched.asker as usize] -= 1;
            self.counts[asker as usize] += 1;
            if std::mem::replace(&mut watched.asker, asker) == Asker::Prefetch {
                // This tells the control plane that the workload uses the address.
                self.subscribe.push(subject.clone());
            }
        }
        Some(watched.resolution.subscribe())
    }

    /// Makes room for one more address. Returns whether there is room, and whether other addresses were dropped for it.
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
            Asker::Outbound | Asker::Inbound | Asker::Log => self.subscribe.push(subject),
        }
        receiver
    }

    /// Watches a subject before the workload uses it, if there is room. `now` is its current
    /// resolution.
    pub(crate) fn prefetch(&mut self, subject: Subject, now: Resolution) {
        if !self.contains(&subject) && self.counts[Asker::Prefetch as usize] < MAX_PREFETCH {
            drop(self.insert(subject, Asker::Prefetch, now));
        }
    }

    /// The subjects that are watched before the workload uses them.
    pub(crate) fn prefetched(&self) -> impl Iterator<Item = &Subject> {
        let prefetched = self.watched.iter().filter(|(_, one)| one.asker == Asker::Prefetch);
        prefetched.map(|(subject, _)| subject)
    }

    /// The subjects that were added since the last call and must be prefetched.
    pub(crate) fn take_prefetch(&mut self) -> Vec<Subject> {
        let add = std::mem::take(&mut self.prefetch);
        for subject in &add {
            if let Some(watched) = self.watched.get_mut(subject) {
                watched.sent = true;
            }
        }
        add
    }

    /// Sends a changed resolution to the receivers of a subject. Does nothing if the resolution is the same, or if the
    /// subject is not watched.
    pub(crate) fn publish(&self, subject: &Subject, resolution: Resolution) {
        let Some(watched) = self.watched.get(subject) else { return };
        watched.resolution.send_if_modified(|current| {
            let differs = *current != resolution;
            *current = resolution;
            differs
        });
    }

    /// The subjects to subscribe to, and those to unsubscribe from, since the last call. If a subject is in both lists,
    /// it was dropped and is watched again, so the unsubscription must take effect first.
    pub(crate) fn take_changes(&mut self) -> (Vec<Subject>, Vec<Subject>) {
        let add = std::mem::take(&mut self.subscribe);
        for subject in &add {
            if let Some(watched) = self.watched.get_mut(subject) {
                watched.sent = true;
            }
        }
        (add, std::mem::take(&mut self.unsubscribe))
    }

    /// Ends a subscription and begins it again, so that the control plane sends the whole resource.
    pub(crate) fn refetch(&mut self, subject: Subject) {
        let Some(watched) = self.watched.get(&subject).filter(|watched| watched.sent) else {
            return;
        };
        let begin = match watched.asker {
            Asker::Prefetch => &mut self.prefetch,
            Asker::Outbound | Asker::Inbound | Asker::Log => &mut self.subscribe,
        };
        begin.push(subject.clone());
        self.unsubscribe.push(subject);
    }

    /// All subjects in use, for the first request of a stream. The next [`Watches::take_prefetch`] returns the
    /// prefetched subjects.
    pub(crate) fn resume(&mut self) -> Vec<Subject> {
        self.subscribe.clear();
        self.unsubscribe.clear();
        self.prefetch = self.prefetched().cloned().collect();
        self.watched.values_mut().for_each(|watched| watched.sent = true);
        let used = self.watched.iter().filter(|(_, one)| one.asker != Asker::Prefetch);
        used.map(|(subject, _)| subject.clone()).collect()
    }

    /// Drops addresses that have had no receiver for [`IDLE`]. Returns whether there were any.
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

    /// Called after removals. Drops subscriptions that were not sent yet, so that nothing is sent for these subjects.
    fn forget_unsent(&mut self) {
        let watched = &self.watched;
        self.subscribe.retain(|subject| watched.contains_key(subject));
    }
}
