//! Token buckets: rate limits for one key, for one thread or for several.
#![expect(
    clippy::arithmetic_side_effects,
    reason = "nanoseconds are kept below half of their range"
)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How many requests are allowed: `requests` in each period `per`, and `burst` of them at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// The time between two requests at this rate.
    interval: Duration,
    /// How much earlier than the rate allows a request in a burst may pass.
    tolerance: Duration,
}

/// A token bucket, stored as the time at which it will be full again (the generic cell rate algorithm of ATM, ITU-T
/// I.371). It needs no timer, and a full bucket need not be stored.
#[derive(Clone, Copy, Debug, Default)]
pub struct TokenBucket {
    /// `None` if no token was taken yet.
    full_at: Option<Instant>,
}

/// A [`TokenBucket`] from which several threads take tokens. A refused request only reads it, so that the threads write
/// to it no more often than the rate allows.
///
/// ```text
/// 0 ─► full at this time ─► ... ─► ENDED: its owner drops it, and threads that still have it take from a new one
/// ```
#[derive(Debug, Default)]
pub(crate) struct SharedBucket {
    /// Nanoseconds since the limit began, or [`ENDED`].
    full_at: AtomicU64,
}

/// The state of a bucket that its owner has dropped. There may be a new bucket for the same key.
const ENDED: u64 = u64::MAX;

/// The result of taking a token from a [`SharedBucket`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenOutcome {
    Token,
    /// There is no token until this time has passed.
    Wait(Duration),
    /// The owner has dropped the bucket.
    Ended,
}

impl Rate {
    /// `None` if nothing is allowed: `requests` is 0.
    #[must_use]
    pub fn new(requests: u32, per: Duration, burst: u32) -> Option<Self> {
        let interval = per.checked_div(requests)?;
        Some(Self { interval, tolerance: interval.saturating_mul(burst.max(1) - 1) })
    }

    /// The part of this rate that one of `among` gets if they share it equally. The burst is divided, too, but not
    /// below one request.
    #[must_use]
    pub fn divided(self, among: u32) -> Self {
        let interval = self.interval.saturating_mul(among.max(1));
        Self { interval, tolerance: self.tolerance }
    }
}

impl TokenBucket {
    /// Takes a token.
    ///
    /// # Errors
    /// The time until there is a token.
    pub fn take(&mut self, rate: Rate, now: Instant) -> Result<(), Duration> {
        let full_at = self.full_at.map_or(now, |full_at| full_at.max(now));
        let ahead = full_at.saturating_duration_since(now);
        if ahead > rate.tolerance {
            return Err(ahead - rate.tolerance);
        }
        self.full_at = Some(full_at + rate.interval);
        Ok(())
    }

    /// Whether the bucket is full, and so equals a new one.
    #[must_use]
    pub fn is_full(&self, now: Instant) -> bool {
        self.full_at.is_none_or(|full_at| full_at <= now)
    }
}

// Threads share only this one value, and it does not announce changes of other memory. So relaxed ordering is enough
// everywhere.
impl SharedBucket {
    /// Takes a token. `now` is the time since the limit began.
    pub(crate) fn take(&self, rate: Rate, now: Duration) -> TokenOutcome {
        let (now, tolerance) = (nanoseconds(now), nanoseconds(rate.tolerance));
        let mut full_at = self.full_at.load(Ordering::Relaxed);
        loop {
            if full_at == ENDED {
                return TokenOutcome::Ended;
            }
            let from = full_at.max(now);
            let ahead = from - now;
            if ahead > tolerance {
                return TokenOutcome::Wait(Duration::from_nanos(ahead - tolerance));
            }
            let next = from.saturating_add(nanoseconds(rate.interval)).min(ENDED - 1);
            match self.full_at.compare_exchange_weak(
                full_at,
                next,
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) => return TokenOutcome::Token,
                Err(other) => full_at = other,
            }
        }
    }

    /// When the bucket will be full again, in nanoseconds since the limit began.
    pub(crate) fn full_at(&self) -> u64 {
        self.full_at.load(Ordering::Relaxed)
    }

    /// Ends the bucket if it is full, and so equals a new one. Returns whether it has ended.
    pub(crate) fn end_if_full(&self, now: Duration) -> bool {
        let full_at = self.full_at();
        let is_full = full_at <= nanoseconds(now);
        let (from, to) = (Ordering::Relaxed, Ordering::Relaxed);
        // The exchange fails if another thread has taken a token meanwhile.
        full_at == ENDED
            || is_full && self.full_at.compare_exchange(full_at, ENDED, from, to).is_ok()
    }

    pub(crate) fn end(&self) {
        self.full_at.store(ENDED, Ordering::Relaxed);
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.full_at() == ENDED
    }
}

/// Converts a time to nanoseconds. The result is at most 292 years, so that the sum of two results does not overflow.
fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).min(u64::MAX / 2)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_burst_then_the_rate() {
        let rate = Rate::new(10, Duration::from_secs(1), 5).unwrap();
        let (mut bucket, start) = (TokenBucket::default(), Instant::now());
        let at_once = (0..20).filter(|_| bucket.take(rate, start).is_ok()).count();
        assert_eq!(at_once, 5);
        assert_eq!(bucket.take(rate, start), Err(Duration::from_millis(100)));
        assert!(bucket.take(rate, start + Duration::from_millis(99)).is_err());
        assert!(bucket.take(rate, start + Duration::from_millis(100)).is_ok());
        assert!(!bucket.is_full(start + Duration::from_millis(599)));
        assert!(bucket.is_full(start + Duration::from_millis(600)));
    }

    #[test]
    fn a_rate_of_no_requests_is_none() {
        assert_eq!(Rate::new(0, Duration::from_secs(1), 5), None);
    }

    proptest! {
        /// In any period, no more requests pass than the rate and one burst allow.
        #[test]
        fn no_window_lets_more_through(
            requests in 1_u32..50, burst in 1_u32..20,
            gaps in proptest::collection::vec(0_u64..300, 1..300),
        ) {
            let per = Duration::from_secs(1);
            let rate = Rate::new(requests, per, burst).unwrap();
            let (mut bucket, mut now) = (TokenBucket::default(), Instant::now());
            let mut passed: Vec<Instant> = Vec::new();
            for gap in gaps {
                now += Duration::from_millis(gap);
                if bucket.take(rate, now).is_ok() {
                    passed.push(now);
                }
            }
            for (first, from) in passed.iter().enumerate() {
                for (last, to) in passed.iter().enumerate().skip(first) {
                    let most = to.duration_since(*from).as_secs_f64() * f64::from(requests)
                        + f64::from(burst);
                    prop_assert!((last - first + 1) as f64 <= most + 1e-3);
                }
            }
        }
    }
}
