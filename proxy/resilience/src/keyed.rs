//! Rate limits for many keys: client identities, values of a header.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use crate::bucket::{Rate, TokenBucket};

/// Keys that a worker keeps for one limit: 1.5 MiB at most. Clients that invent values reach it.
/// Keys whose buckets are full again are dropped first, without any effect.
pub const MAX_KEYS: usize = 32_768;

/// A token bucket for each key. A key is stored as a hash with a secret seed, so that a client can
/// cause no extra cost by long keys or by keys that collide.
#[derive(Debug)]
pub struct KeyedLimit {
    rate: Option<Rate>,
    most: usize,
    buckets: HashMap<u64, TokenBucket>,
    seed: RandomState,
    evicted: u64,
}

/// The result for one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The request may pass.
    Pass,
    /// The request must be rejected. The client may retry after this time.
    Limited(Duration),
}

/// The time to wait that a client is told if the limit is zero.
const NEVER: Duration = Duration::from_secs(3600);

impl KeyedLimit {
    /// A limit of `rate` for each key. Without a rate nothing passes. At most `most` keys are kept.
    #[must_use]
    pub fn new(rate: Option<Rate>, most: usize) -> Self {
        let most = most.clamp(1, MAX_KEYS);
        Self { rate, most, buckets: HashMap::new(), seed: RandomState::new(), evicted: 0 }
    }

    /// Counts a request with this key.
    pub fn check(&mut self, key: &[u8], now: Instant) -> Verdict {
        let Some(rate) = self.rate else { return Verdict::Limited(NEVER) };
        let key = self.seed.hash_one(key);
        if self.buckets.len() >= self.most && !self.buckets.contains_key(&key) {
            self.make_room(now);
        }
        match self.buckets.entry(key).or_default().take(rate, now) {
            Ok(()) => Verdict::Pass,
            Err(wait) => Verdict::Limited(wait),
        }
    }

    /// Keys that were dropped before their buckets were full. Each of them may have passed one more
    /// burst.
    #[must_use]
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Number of keys kept.
    #[must_use]
    pub fn len(&self) -> usize {
        self.buckets.len()
    }

    /// Whether no keys are kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.buckets.is_empty()
    }

    /// Drops keys whose buckets are full. Call it every few seconds.
    pub fn sweep(&mut self, now: Instant) {
        self.buckets.retain(|_, bucket| !bucket.is_full(now));
        if self.buckets.is_empty() {
            self.buckets.shrink_to_fit();
        }
    }

    /// Drops the keys with full buckets. If there are none, drops the quarter with the fullest
    /// buckets, so that one search makes room for many keys.
    fn make_room(&mut self, now: Instant) {
        self.buckets.retain(|_, bucket| !bucket.is_full(now));
        if self.buckets.len() < self.most {
            return;
        }
        let mut ends: Vec<_> = self.buckets.values().filter_map(TokenBucket::full_at).collect();
        let quarter = ends.len() / 4;
        let (_, limit, _) = ends.select_nth_unstable(quarter);
        let (limit, before) = (*limit, self.buckets.len());
        self.buckets.retain(|_, bucket| bucket.full_at().is_some_and(|end| end > limit));
        self.evicted += (before - self.buckets.len()) as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(requests: u32, burst: u32, most: usize) -> KeyedLimit {
        KeyedLimit::new(Rate::new(requests, Duration::from_secs(1), burst), most)
    }

    #[test]
    fn each_key_has_its_own_bucket() {
        let (mut limit, now) = (limit(1, 2, 100), Instant::now());
        for key in [&b"a"[..], b"b", b""] {
            assert_eq!(limit.check(key, now), Verdict::Pass);
            assert_eq!(limit.check(key, now), Verdict::Pass);
            assert_eq!(limit.check(key, now), Verdict::Limited(Duration::from_secs(1)));
        }
        assert_eq!((limit.len(), limit.evicted()), (3, 0));
        limit.sweep(now + Duration::from_secs(2));
        assert!(limit.is_empty());
    }

    #[test]
    fn full_buckets_are_forgotten_at_no_loss() {
        let (mut limit, mut now) = (limit(10, 1, 50), Instant::now());
        for key in 0..10_000_u32 {
            assert_eq!(limit.check(&key.to_le_bytes(), now), Verdict::Pass);
            now += Duration::from_millis(4);
        }
        assert!(limit.len() <= 50);
        assert_eq!(limit.evicted(), 0);
    }

    #[test]
    fn a_flood_of_keys_keeps_the_bound_and_is_counted() {
        let (mut limit, now) = (limit(1, 5, 64), Instant::now());
        // The key that uses up its limit is the last one to be dropped.
        while limit.check(b"greedy", now) == Verdict::Pass {}
        for key in 0..1_000_u32 {
            limit.check(&key.to_le_bytes(), now);
            assert!(limit.len() <= 64);
        }
        assert!(limit.evicted() > 0);
        assert!(matches!(limit.check(b"greedy", now), Verdict::Limited(_)));
    }

    #[test]
    fn nothing_passes_a_limit_of_none() {
        let mut none = KeyedLimit::new(None, 10);
        assert!(matches!(none.check(b"a", Instant::now()), Verdict::Limited(_)));
    }
}
