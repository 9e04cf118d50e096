//! Taps: an operator watches live requests, sampled and filtered.
//!
//! ```text
//! worker: begin ─► wanted: first look ─► decide: filter, rate ─► end ─► queue of the tap ─► POST /tap of the admin server
//!           │        └─ beyond the rate, or another method or path: nothing is read or copied of the request
//!           └─ no tap is open: one relaxed load, and nothing is allocated
//! ```
//! A worker never waits for a tap. If a lock is held or a queue is full, the worker drops the event and counts it.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, TryLockError};
use std::time::{Duration, Instant};

use leno_tap::TappedRequest;

mod filter;
mod follow;
mod open;
mod secrets;

pub use filter::{Filter, FilterError, Party};
pub use follow::Mark;
pub(crate) use follow::{Carried, are_alike};
pub(crate) use open::{Arriving, Beyond, OpenTaps, Wanted};
pub(crate) use secrets::masked_target;
pub use secrets::{MASK, is_secret};

/// How many taps a proxy may have: enough for a few operators at once.
pub const MAX_TAPS: usize = 4;
/// How many events wait for the next poll of a tap: those of half a second at the highest rate.
pub const MAX_QUEUED: usize = 256;
/// The highest rate of a tap, in requests per second and proxy.
pub const MAX_RATE: u32 = 500;
/// For how many requests of a proxy bodies are copied at a time. They occupy up to 512 KiB.
pub const MAX_COPIED: usize = 64;
/// The lowest bit of [`Shared::version`], which is set while a tap is open.
const IS_ON: u64 = 1;
/// A tap whose client no longer polls it is closed after this time.
pub const LAPSE: Duration = Duration::from_secs(5);

/// The taps of a proxy. All workers and the admin server share them.
#[derive(Clone, Debug, Default)]
pub struct Taps(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// Changes whenever the open taps change. Its lowest bit ([`IS_ON`]) is set while a tap is open, so that a request
    /// needs to read nothing else if none is.
    version: AtomicU64,
    open: RwLock<Vec<Arc<Tap>>>,
    /// How many taps were opened so far.
    opened: AtomicU32,
    /// Whether a task closes taps that are no longer polled.
    is_watched: AtomicBool,
    /// The counts of all taps together, including closed ones.
    counts: Counts,
    /// The number of requests whose bodies are being copied.
    copied: AtomicUsize,
    /// Requests whose bodies were not copied, because those of [`MAX_COPIED`] others were being copied.
    not_copied: AtomicU64,
}

/// Permits copying the bodies of one request, until this is dropped.
#[derive(Debug)]
pub(crate) struct RoomForBodies(Arc<Shared>);

impl Drop for RoomForBodies {
    fn drop(&mut self) {
        self.0.copied.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What became of the requests that matched the tap's filter; see [`Counted`].
#[derive(Debug, Default)]
struct Counts {
    queued: AtomicU64,
    sampled_out: AtomicU64,
    dropped: AtomicU64,
}

/// The values of the counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Events that were queued for the client.
    pub queued: u64,
    /// Requests that were not shown because the tap's rate or its number of requests was used up.
    pub sampled_out: u64,
    /// Events that were dropped because the queue was full or locked.
    pub dropped: u64,
}

/// One tap, which an operator has opened under a name.
#[derive(Debug)]
pub struct Tap {
    name: Box<str>,
    /// The tap's number. Taps are numbered from 1 in the order in which they were opened.
    number: u32,
    pub(crate) filter: Filter,
    /// Requests that the tap has taken, if its filter limits their number.
    taken: AtomicU32,
    /// The upper half is a second since `opened`, the lower half the number of requests taken in it.
    spent: AtomicU64,
    opened: Instant,
    /// When the tap's client last polled it.
    polled: Mutex<Instant>,
    queue: Mutex<VecDeque<TappedRequest>>,
    counts: Counts,
}

/// No tap can be opened, because [`MAX_TAPS`] are open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyTaps;

impl fmt::Display for TooManyTaps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{MAX_TAPS} taps are open at this proxy, which is the limit: close one of them")
    }
}

impl std::error::Error for TooManyTaps {}

impl Taps {
    /// Whether a tap is open.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.version() & IS_ON != 0
    }

    fn version(&self) -> u64 {
        self.0.version.load(Ordering::Relaxed)
    }

    /// Whether a tap with this name is open.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.read().iter().any(|tap| &*tap.name == name)
    }

    /// How many taps are open.
    #[must_use]
    pub fn len(&self) -> usize {
        self.read().len()
    }

    /// Whether no tap is open.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Opens a tap, or replaces the one of this name.
    ///
    /// # Errors
    /// [`MAX_TAPS`] other taps are open.
    pub fn open(&self, name: &str, filter: Filter) -> Result<(), TooManyTaps> {
        let mut open = self.0.open.write().unwrap_or_else(PoisonError::into_inner);
        open.retain(|tap| &*tap.name != name);
        if open.len() >= MAX_TAPS {
            return Err(TooManyTaps);
        }
        let number = self.0.opened.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        open.push(Arc::new(Tap::new(name, number, filter)));
        self.changed(&open);
        Ok(())
    }

    /// Whether the caller must start the task that closes taps that are no longer polled. Only one task does; it calls
    /// [`Self::end_watch`] when it ends.
    #[must_use]
    pub fn begin_watch(&self) -> bool {
        !self.0.is_watched.swap(true, Ordering::Relaxed)
    }

    /// Must be called when the task ends because no tap is open.
    pub fn end_watch(&self) {
        self.0.is_watched.store(false, Ordering::Relaxed);
    }

    /// The requests that a tap has recorded since the last call, and its counts since it was opened. `None`: no tap has
    /// this name.
    #[must_use]
    pub fn poll(&self, name: &str) -> Option<(Vec<TappedRequest>, Counted)> {
        let tap = self.read().iter().find(|tap| &*tap.name == name).cloned()?;
        *lock(&tap.polled) = Instant::now();
        let events = lock(&tap.queue).drain(..).collect();
        Some((events, tap.counts.read()))
    }

    /// Closes a tap. `None`: no tap has this name.
    pub fn close(&self, name: &str) -> Option<Counted> {
        self.close_where(|tap| &*tap.name == name).pop().map(|(_, counted)| counted)
    }

    /// Closes the taps that were not polled for [`LAPSE`] before `now`.
    pub fn close_lapsed(&self, now: Instant) -> Vec<(Box<str>, Counted)> {
        self.close_where(|tap| now.saturating_duration_since(*lock(&tap.polled)) >= LAPSE)
    }

    /// The counts of all taps since the proxy started.
    #[must_use]
    pub fn counted(&self) -> Counted {
        self.0.counts.read()
    }

    fn close_where(&self, is_over: impl Fn(&Tap) -> bool) -> Vec<(Box<str>, Counted)> {
        let mut open = self.0.open.write().unwrap_or_else(PoisonError::into_inner);
        let (over, left) = open.drain(..).partition(|tap| is_over(tap));
        *open = left;
        let over: Vec<Arc<Tap>> = over;
        // The version only changes if a tap was closed, so that workers do not read the list in vain.
        if !over.is_empty() {
            self.changed(&open);
        }
        // Workers keep a reference to a closed tap until their next request, so its queue is emptied here.
        over.iter().for_each(|tap| *lock(&tap.queue) = VecDeque::new());
        over.iter().map(|tap| (tap.name.clone(), tap.counts.read())).collect()
    }

    /// Changes the version, so that workers read the list of open taps again. The caller holds the lock, so that no two
    /// threads change the version at the same time.
    fn changed(&self, open: &[Arc<Tap>]) {
        let next = (self.version() | IS_ON).wrapping_add(1);
        self.0.version.store(next | u64::from(!open.is_empty()), Ordering::Relaxed);
    }

    /// The open taps with their version, for a worker. `None` while the list is being changed.
    fn try_read(&self) -> Option<(u64, Vec<Arc<Tap>>)> {
        let open = match self.0.open.try_read() {
            Ok(open) => open,
            Err(TryLockError::Poisoned(open)) => open.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some((self.version(), open.clone()))
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, Vec<Arc<Tap>>> {
        self.0.open.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a request of a worker.
    pub(crate) fn queue(&self, tap: &Tap, request: TappedRequest) {
        let is_queued = match tap.queue.try_lock() {
            Ok(mut queue) if queue.len() < MAX_QUEUED => {
                queue.push_back(request);
                true
            }
            _ => false,
        };
        let of = |counts: &Counts| match is_queued {
            true => counts.queued.fetch_add(1, Ordering::Relaxed),
            false => counts.dropped.fetch_add(1, Ordering::Relaxed),
        };
        of(&tap.counts);
        of(&self.0.counts);
    }

    /// Permits copying the bodies of a request. `None`, which is counted, if [`MAX_COPIED`] requests are being copied.
    pub(crate) fn room_for_bodies(&self) -> Option<RoomForBodies> {
        let next = |copied: usize| (copied < MAX_COPIED).then_some(copied.saturating_add(1));
        match self.0.copied.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next) {
            Ok(_) => Some(RoomForBodies(Arc::clone(&self.0))),
            Err(_) => {
                self.0.not_copied.fetch_add(1, Ordering::Relaxed);
                None
            }
        }
    }

    /// Requests whose bodies were not copied, because too many others were being copied.
    #[must_use]
    pub fn not_copied(&self) -> u64 {
        self.0.not_copied.load(Ordering::Relaxed)
    }

    /// Counts a request against the tap's rate and number. `false`, which is counted, if either is used up.
    pub(crate) fn afford(&self, tap: &Tap, now: Instant) -> bool {
        let is_within = tap.spend(now) && tap.has_room();
        if !is_within {
            self.sampled_out(tap);
        }
        is_within
    }

    /// Counts a request beyond the tap's rate or number.
    fn sampled_out(&self, tap: &Tap) {
        tap.counts.sampled_out.fetch_add(1, Ordering::Relaxed);
        self.0.counts.sampled_out.fetch_add(1, Ordering::Relaxed);
    }
}

impl Tap {
    fn new(name: &str, number: u32, filter: Filter) -> Self {
        let now = Instant::now();
        Self {
            name: name.into(),
            number,
            filter,
            taken: AtomicU32::new(0),
            spent: AtomicU64::new(0),
            opened: now,
            polled: Mutex::new(now),
            queue: Mutex::default(),
            counts: Counts::default(),
        }
    }

    /// Whether the filter's limit on the number of requests, if it has one, is not reached.
    pub(crate) fn may_take(&self) -> bool {
        self.filter.most.is_none_or(|most| self.taken.load(Ordering::Relaxed) < most)
    }

    /// Counts a request against the filter's limit on their number, if it has one. `false` if the limit is reached.
    fn has_room(&self) -> bool {
        let Some(most) = self.filter.most else { return true };
        let next = |taken: u32| (taken < most).then_some(taken.saturating_add(1));
        self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok()
    }

    /// The second since `opened` in which `now` is, for `spent`.
    fn second(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.opened).as_secs() & u64::from(u32::MAX)
    }

    /// Whether the rate of the current second is used up.
    fn is_spent(&self, now: Instant) -> bool {
        let spent = self.spent.load(Ordering::Relaxed);
        spent & u64::from(u32::MAX) >= u64::from(self.filter.rate)
            && spent >> 32 == self.second(now)
    }

    /// Counts a request against the rate. `false` if the rate of the current second is used up.
    fn spend(&self, now: Instant) -> bool {
        let second = self.second(now);
        let rate = u64::from(self.filter.rate);
        let next = |spent: u64| {
            let count = if spent >> 32 == second { spent & u64::from(u32::MAX) } else { 0 };
            (count < rate).then_some(second << 32 | count.saturating_add(1))
        };
        self.spent.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok()
    }
}

impl Counts {
    fn read(&self) -> Counted {
        Counted {
            queued: self.queued.load(Ordering::Relaxed),
            sampled_out: self.sampled_out.load(Ordering::Relaxed),
            dropped: self.dropped.load(Ordering::Relaxed),
        }
    }
}

/// Ignores poisoning: no code panics while it holds the lock.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
