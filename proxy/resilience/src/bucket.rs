//! A rate limit for one key.

use std::time::{Duration, Instant};

/// How many requests are allowed: `requests` per `per`, and `burst` of them at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    interval: Duration,
    /// How far ahead of the rate a burst may get.
    tolerance: Duration,
}

/// A token bucket, stored as the one point in time at which it will be full again (the generic cell
/// rate algorithm of ATM, ITU-T I.371). It needs no timer, and a full bucket need not be stored.
#[derive(Clone, Copy, Debug, Default)]
pub struct TokenBucket {
    full_at: Option<Instant>,
}

impl Rate {
    /// `None` if nothing is allowed: `requests` is 0.
    #[must_use]
    pub fn new(requests: u32, per: Duration, burst: u32) -> Option<Self> {
        let interval = per.checked_div(requests)?;
        Some(Self { interval, tolerance: interval.saturating_mul(burst.max(1) - 1) })
    }

    /// An equal part of this rate, for one of `among` that share it. The burst takes the same time.
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

    /// Whether it is full, and so equals a new one.
    #[must_use]
    pub fn is_full(&self, now: Instant) -> bool {
        self.full_at.is_none_or(|full_at| full_at <= now)
    }

    pub(crate) fn full_at(&self) -> Option<Instant> {
        self.full_at
    }
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
    fn nothing_is_no_rate() {
        assert_eq!(Rate::new(0, Duration::from_secs(1), 5), None);
    }

    proptest! {
        /// Within any time, no more requests pass than the rate and one burst allow.
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
