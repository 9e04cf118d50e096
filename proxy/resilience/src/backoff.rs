//! How long to wait before a retry.
#![expect(
    clippy::arithmetic_side_effects,
    reason = "the wait has the policy's bound, and the divisor is above zero"
)]

use std::time::Duration;

use leno_balance::Rng;
use leno_types::traffic::RetryBackoff;

/// How many times the wait is doubled at most. The longest wait is reached long before.
const MAX_DOUBLINGS: u32 = 16;

/// The wait before retry `number`, counted from 0. It doubles each time up to the maximum, minus a
/// random part of up to half of it, so that clients that failed at the same time do not retry at
/// the same time.
#[must_use]
pub fn delay(backoff: RetryBackoff, number: u32, rng: &mut Rng) -> Duration {
    let full = backoff.base.saturating_mul(1 << number.min(MAX_DOUBLINGS)).min(backoff.max);
    let half = u64::try_from((full / 2).as_nanos()).unwrap_or(u64::MAX - 1);
    full - Duration::from_nanos(rng.bits() % (half + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_to_their_bound_and_are_spread() {
        let backoff = RetryBackoff::default();
        let mut rng = Rng::seeded(1);
        for (number, full) in [(0, 25), (1, 50), (2, 100), (3, 200), (4, 250), (99, 250)] {
            let full = Duration::from_millis(full);
            let waits: Vec<_> = (0..1_000).map(|_| delay(backoff, number, &mut rng)).collect();
            assert!(waits.iter().all(|wait| (full / 2..=full).contains(wait)));
            let (least, most) = (waits.iter().min().unwrap(), waits.iter().max().unwrap());
            assert!(*most - *least > full * 2 / 5, "{least:?} to {most:?}");
        }
    }

    #[test]
    fn no_wait_stays_none() {
        let none = RetryBackoff { base: Duration::ZERO, max: Duration::ZERO };
        assert_eq!(delay(none, 3, &mut Rng::seeded(1)), Duration::ZERO);
    }
}
