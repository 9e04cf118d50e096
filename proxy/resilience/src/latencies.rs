//! Records latencies, precisely enough for percentiles.
#![expect(
    clippy::arithmetic_side_effects,
    reason = "counts are halved before they overflow, and steps have bounds"
)]

use std::time::Duration;

/// The number of buckets for each doubling. A percentile is thus at most an eighth too high.
const STEPS: u32 = 8;
/// The number of doublings, starting at a microsecond. The last one covers 9 to 18 minutes, and its last bucket all
/// longer latencies.
const DOUBLINGS: u32 = 30;
const BUCKETS: usize = (STEPS * DOUBLINGS) as usize;

/// How many latencies must be recorded before a percentile is known, because a few say nothing about the slowest.
pub const MIN_SEEN: u32 = 100;

/// When this many latencies are recorded, all counts are halved, so that old latencies count less and less.
const MOST_SEEN: u32 = 2_000;

/// A histogram of latencies whose buckets grow exponentially. Old latencies count less.
#[derive(Clone, Debug)]
pub struct Latencies {
    counts: Box<[u16; BUCKETS]>,
    /// The sum of the counts.
    seen: u32,
}

impl Default for Latencies {
    fn default() -> Self {
        Self { counts: Box::new([0; BUCKETS]), seen: 0 }
    }
}

impl Latencies {
    /// Records one latency.
    pub fn observe(&mut self, latency: Duration) {
        if self.seen >= MOST_SEEN {
            self.counts.iter_mut().for_each(|count| *count /= 2);
            self.seen = self.counts.iter().map(|count| u32::from(*count)).sum();
        }
        if let Some(count) = self.counts.get_mut(bucket(latency)) {
            *count += 1;
        }
        self.seen += 1;
    }

    /// The latency that `tenths` (tenths of a percent) of all requests did not exceed. `None` while
    /// fewer than [`MIN_SEEN`] are recorded.
    #[must_use]
    pub fn percentile(&self, tenths: u16) -> Option<Duration> {
        if self.seen < MIN_SEEN {
            return None;
        }
        let wanted = (u64::from(self.seen) * u64::from(tenths)).div_ceil(1000);
        let mut below = 0;
        let at = self.counts.iter().position(|count| {
            below += u64::from(*count);
            below >= wanted
        });
        at.map(end)
    }
}

fn bucket(latency: Duration) -> usize {
    let micros = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX).max(1);
    let doubling = micros.ilog2();
    let step = (u128::from(micros) * u128::from(STEPS)) >> doubling;
    let step = usize::try_from(step).unwrap_or(0) - STEPS as usize;
    ((doubling * STEPS) as usize + step).min(BUCKETS - 1)
}

/// The upper end of a bucket.
fn end(bucket: usize) -> Duration {
    let (doubling, step) = (bucket as u64 / u64::from(STEPS), bucket as u64 % u64::from(STEPS));
    Duration::from_micros(((u64::from(STEPS) + step + 1) << doubling).div_ceil(u64::from(STEPS)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_percentile_needs_enough_and_follows_what_is_new() {
        let mut latencies = Latencies::default();
        for millis in 1..u64::from(MIN_SEEN) {
            latencies.observe(Duration::from_millis(millis));
        }
        assert_eq!(latencies.percentile(950), None);
        latencies.observe(Duration::from_millis(100));
        let p95 = latencies.percentile(950).unwrap();
        assert!((95..=108).contains(&p95.as_millis()), "{p95:?}");
        for _ in 0..3 * MOST_SEEN {
            latencies.observe(Duration::from_millis(2));
        }
        let p95 = latencies.percentile(950).unwrap();
        assert!(p95 < Duration::from_micros(2_300), "{p95:?}");
    }

    proptest! {
        #[test]
        fn a_percentile_is_never_below_and_an_eighth_above_at_most(
            mut micros in prop::collection::vec(1_u64..100_000_000, 100..400),
            tenths in 500_u16..=999,
        ) {
            let mut latencies = Latencies::default();
            micros.iter().for_each(|micros| latencies.observe(Duration::from_micros(*micros)));
            micros.sort_unstable();
            let at = (micros.len() * usize::from(tenths)).div_ceil(1000) - 1;
            let exact = micros[at] as f64;
            let told = latencies.percentile(tenths).unwrap().as_micros() as f64;
            prop_assert!(told >= exact && told <= exact * 1.125 + 1.0, "{told} of {exact}");
        }
    }
}
