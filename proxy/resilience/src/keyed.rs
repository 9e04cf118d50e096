//! Rate limits that all workers (threads) of a proxy share. A limit counts all requests together, or separately for
//! each key, which is a client identity or the value of a header.
//!
//! ```text
//! worker ─► KeyedLimit ─► its buckets by key ──(a key that is not among them)──► WorkloadLimit, locked
//!                              └────────── the same SharedBucket ◄───────────────────┘
//! ```
#![expect(clippy::arithmetic_side_effects, reason = "counts of one table")]

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::bucket::{Rate, SharedBucket, TokenOutcome};

/// How many keys are kept for one limit. They take at most 2 MiB, and 0.6 MiB for each worker that uses all of them.
/// Only clients that invent values reach this number. Keys whose buckets are full again are dropped first, which has no
/// effect on the limit.
pub const MAX_KEYS: usize = 32_768;

/// The time that a client is told to wait if the limit is zero.
const NEVER: Duration = Duration::from_secs(3600);

/// The result for one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The request may pass.
    Pass,
    /// The request must be rejected. The client may retry after this time.
    Limited(Duration),
}

/// The part of one limit that all workers share.
#[derive(Debug)]
pub struct WorkloadLimit {
    rate: Option<Rate>,
    /// When the limit began; buckets count from then on.
    began: Instant,
    /// The bucket of a limit without keys.
    single: SharedBucket,
    /// The buckets of a limit with keys; `None` if it has none.
    keys: Option<Keys>,
}

/// A token bucket for each key. A key is stored as a hash with a secret seed, so that a client cannot cause extra cost
/// by long keys or by keys that collide.
#[derive(Debug)]
struct Keys {
    /// The largest number of keys that are kept.
    most: usize,
    seed: RandomState,
    /// Locked when a worker gets its first request with a key, and to drop keys.
    buckets: Mutex<HashMap<u64, Arc<SharedBucket>>>,
}

/// The part of a limit that belongs to one worker.
#[derive(Debug)]
pub struct KeyedLimit {
    workload: Arc<WorkloadLimit>,
    /// The buckets of keys that this worker has used lately.
    known: HashMap<u64, Arc<SharedBucket>>,
    evicted: u64,
}

impl WorkloadLimit {
    /// A limit of `rate` for all requests together. If there is no rate, no request passes.
    #[must_use]
    pub fn single(rate: Option<Rate>, now: Instant) -> Self {
        Self { rate, began: now, single: SharedBucket::default(), keys: None }
    }

    /// A limit of `rate` for each key. At most `most` keys are kept.
    #[must_use]
    pub fn keyed(rate: Option<Rate>, most: usize, now: Instant) -> Self {
        let most = most.clamp(1, MAX_KEYS);
        let keys = Keys { most, seed: RandomState::new(), buckets: Mutex::default() };
        Self { keys: Some(keys), ..Self::single(rate, now) }
    }

    /// The number of keys that are kept.
    #[must_use]
    pub fn len(&self) -> usize {
        self.keys.as_ref().map_or(0, |keys| keys.lock().len())
    }

    /// Whether no keys are kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn since_began(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.began)
    }
}

impl Keys {
    /// Ignores poisoning: the map is consistent even if a thread panicked while it held the lock.
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Arc<SharedBucket>>> {
        self.buckets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The bucket of a key, and how many keys were dropped to make room for it.
    fn bucket(&self, key: u64, now: Duration) -> (Arc<SharedBucket>, u64) {
        let mut buckets = self.lock();
        let mut evicted = 0;
        if buckets.len() >= self.most && !buckets.contains_key(&key) {
            evicted = make_room(&mut buckets, self.most, now);
        }
        (Arc::clone(buckets.entry(key).or_default()), evicted)
    }
}

/// Drops the keys with full buckets. If there are none, drops the quarter of the keys whose buckets are fullest, so
/// that one search makes room for many keys. Returns how many keys were dropped before their buckets were full.
fn make_room(buckets: &mut HashMap<u64, Arc<SharedBucket>>, most: usize, now: Duration) -> u64 {
    buckets.retain(|_, bucket| !bucket.end_if_full(now));
    if buckets.len() < most {
        return 0;
    }
    let mut full_at: Vec<_> = buckets.values().map(|bucket| bucket.full_at()).collect();
    let quarter = full_at.len() / 4;
    let (_, limit, _) = full_at.select_nth_unstable(quarter);
    let (limit, before) = (*limit, buckets.len());
    buckets.retain(|_, bucket| {
        let stays = bucket.full_at() > limit;
        if !stays {
            bucket.end();
        }
        stays
    });
    (before - buckets.len()) as u64
}

impl KeyedLimit {
    /// The part of `workload` that belongs to one worker.
    #[must_use]
    pub fn new(workload: Arc<WorkloadLimit>) -> Self {
        Self { workload, known: HashMap::new(), evicted: 0 }
    }

    /// Counts a request with this key. A limit without keys ignores the key.
    pub fn check(&mut self, key: &[u8], now: Instant) -> Verdict {
        let workload = &*self.workload;
        let Some(rate) = workload.rate else { return Verdict::Limited(NEVER) };
        let now = workload.since_began(now);
        let taken = match &workload.keys {
            None => workload.single.take(rate, now),
            Some(keys) => {
                let key = keys.seed.hash_one(key);
                let taken = self.known.get(&key).map(|bucket| bucket.take(rate, now));
                match taken.filter(|taken| *taken != TokenOutcome::Ended) {
                    Some(taken) => taken,
                    None => self.take_new(key, rate, now),
                }
            }
        };
        match taken {
            TokenOutcome::Token => Verdict::Pass,
            TokenOutcome::Wait(wait) => Verdict::Limited(wait),
            // Another worker has dropped the key's bucket just after this worker found it. The request passes; the key
            // counts from the next request on.
            TokenOutcome::Ended => Verdict::Pass,
        }
    }

    /// Takes a token for a key that this worker does not have, or whose bucket was dropped.
    fn take_new(&mut self, key: u64, rate: Rate, now: Duration) -> TokenOutcome {
        let Some(keys) = &self.workload.keys else { return TokenOutcome::Ended };
        let (bucket, evicted) = keys.bucket(key, now);
        self.evicted += evicted;
        if self.known.len() >= keys.most {
            // The buckets themselves remain, and are found again.
            self.known.clear();
        }
        let taken = bucket.take(rate, now);
        self.known.insert(key, bucket);
        taken
    }

    /// How many keys this worker has dropped before their buckets were full. Each of them may have passed one more
    /// burst.
    #[must_use]
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Drops keys whose buckets are full. To be called every few seconds.
    pub fn sweep(&mut self, now: Instant) {
        let now = self.workload.since_began(now);
        // If another worker holds the lock, a later sweep drops the keys.
        let shared = self.workload.keys.as_ref().and_then(|keys| keys.buckets.try_lock().ok());
        if let Some(mut buckets) = shared {
            buckets.retain(|_, bucket| !bucket.end_if_full(now));
            if buckets.is_empty() {
                buckets.shrink_to_fit();
            }
        }
        self.known.retain(|_, bucket| !bucket.has_ended());
        if self.known.is_empty() {
            self.known.shrink_to_fit();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn keyed(requests: u32, burst: u32, most: usize, now: Instant) -> KeyedLimit {
        let rate = Rate::new(requests, SECOND, burst);
        KeyedLimit::new(Arc::new(WorkloadLimit::keyed(rate, most, now)))
    }

    fn other_worker(limit: &KeyedLimit) -> KeyedLimit {
        KeyedLimit::new(Arc::clone(&limit.workload))
    }

    #[test]
    fn each_key_has_its_own_bucket() {
        let now = Instant::now();
        let mut limit = keyed(1, 2, 100, now);
        for key in [&b"a"[..], b"b", b""] {
            assert_eq!(limit.check(key, now), Verdict::Pass);
            assert_eq!(limit.check(key, now), Verdict::Pass);
            assert_eq!(limit.check(key, now), Verdict::Limited(SECOND));
        }
        assert_eq!((limit.workload.len(), limit.evicted()), (3, 0));
        limit.sweep(now + 2 * SECOND);
        assert!(limit.workload.is_empty() && limit.known.is_empty());
    }

    #[test]
    fn workers_count_together() {
        let now = Instant::now();
        let mut one = keyed(1, 4, 100, now);
        let mut other = other_worker(&one);
        let both = |one: &mut KeyedLimit, other: &mut KeyedLimit, now| {
            [one.check(b"a", now), other.check(b"a", now)]
        };
        for _ in 0..2 {
            assert_eq!(both(&mut one, &mut other, now), [Verdict::Pass; 2]);
        }
        assert_eq!(both(&mut one, &mut other, now), [Verdict::Limited(SECOND); 2]);
        // One worker drops the key. The other worker then no longer uses the bucket that it knew.
        let later = now + 10 * SECOND;
        one.sweep(later);
        assert!(one.workload.is_empty() && other.known.len() == 1);
        for _ in 0..2 {
            assert_eq!(both(&mut one, &mut other, later), [Verdict::Pass; 2]);
        }
        assert_eq!(both(&mut one, &mut other, later), [Verdict::Limited(SECOND); 2]);
    }

    /// Many threads together take exactly as many tokens as the burst has, with keys and without.
    #[test]
    fn threads_take_no_more_than_the_burst() {
        let (now, rate) = (Instant::now(), Rate::new(1, 3600 * SECOND, 1_000));
        for workload in [WorkloadLimit::single(rate, now), WorkloadLimit::keyed(rate, 10, now)] {
            let workload = Arc::new(workload);
            let passed = thread::scope(|scope| {
                let worker = |_| {
                    let mut limit = KeyedLimit::new(Arc::clone(&workload));
                    let passes = move |_: &u32| limit.check(b"a", now) == Verdict::Pass;
                    scope.spawn(move || (0..1_000).filter(passes).count())
                };
                let workers: Vec<_> = (0..4).map(worker).collect();
                workers.into_iter().map(|worker| worker.join().unwrap()).sum::<usize>()
            });
            assert_eq!(passed, 1_000);
        }
    }

    #[test]
    fn full_buckets_are_forgotten_at_no_loss() {
        let mut now = Instant::now();
        let mut limit = keyed(10, 1, 50, now);
        for key in 0..10_000_u32 {
            assert_eq!(limit.check(&key.to_le_bytes(), now), Verdict::Pass);
            now += Duration::from_millis(4);
        }
        assert!(limit.workload.len() <= 50 && limit.known.len() <= 50);
        assert_eq!(limit.evicted(), 0);
    }

    #[test]
    fn a_flood_of_keys_keeps_the_bound_and_is_counted() {
        let now = Instant::now();
        let mut limit = keyed(1, 5, 64, now);
        // A key that has used up its limit is the last to be dropped.
        while limit.check(b"greedy", now) == Verdict::Pass {}
        for key in 0..1_000_u32 {
            limit.check(&key.to_le_bytes(), now);
            assert!(limit.workload.len() <= 64);
        }
        assert!(limit.evicted() > 0);
        assert!(matches!(limit.check(b"greedy", now), Verdict::Limited(_)));
    }

    #[test]
    fn nothing_passes_a_limit_of_none() {
        let now = Instant::now();
        let mut none = KeyedLimit::new(Arc::new(WorkloadLimit::keyed(None, 10, now)));
        assert!(matches!(none.check(b"a", now), Verdict::Limited(_)));
    }
}
