//! How long to wait before the next attempt.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// A wait that doubles from the first to the longest. Each wait is drawn at random from its upper half, so that proxies
/// that lost their control plane at the same time do not reconnect at the same time.
#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    first: Duration,
    longest: Duration,
    next: Duration,
}

impl Backoff {
    pub(crate) fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, next: first }
    }

    /// Starts over, because the last attempt succeeded.
    pub(crate) fn reset(&mut self) {
        self.next = self.first;
    }

    /// The wait before the next attempt.
    pub(crate) fn wait(&mut self) -> Duration {
        let wait = self.next.min(self.longest);
        self.next = (self.next * 2).min(self.longest);
        wait.mul_f64(0.5 + 0.5 * random_fraction())
    }
}

/// A random number from 0 to below 1, which differs at every call. The system seeds the generator once per thread.
pub(crate) fn random_fraction() -> f64 {
    let random = RandomState::new().hash_one(0_u8);
    // A double can represent 53 bits exactly.
    (random >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_the_longest_and_start_over() {
        let (first, longest) = (Duration::from_millis(100), Duration::from_millis(350));
        let mut backoff = Backoff::new(first, longest);
        for expected in [100, 200, 350, 350] {
            let wait = backoff.wait();
            let expected = Duration::from_millis(expected);
            assert!(wait <= expected && wait >= expected / 2, "{wait:?} of {expected:?}");
        }
        backoff.reset();
        assert!(backoff.wait() <= first);
    }
}
