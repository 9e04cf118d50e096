//! Histograms of durations with fixed buckets.

use std::time::Duration;

/// The upper bounds of the buckets in seconds. There are six per decade from 0.1 ms to 10 s. Each is at most 1.7 times
/// the one before, so the true value of a quantile differs from one that is read from its bucket by at most this
/// factor.
pub const BUCKET_BOUNDS_S: [f64; 31] = [
    0.0001, 0.00015, 0.0002, 0.0003, 0.0005, 0.0007, 0.001, 0.0015, 0.002, 0.003, 0.005, 0.007,
    0.01, 0.015, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0,
    7.0, 10.0,
];

/// The number of buckets, including the one above every bound.
pub const BUCKETS: usize = BUCKET_BOUNDS_S.len() + 1;

/// How many durations each bucket has counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    /// The number of durations in each bucket alone. The last bucket is for durations above every bound.
    pub counts: [u64; BUCKETS],
    /// The sum of all durations, in microseconds.
    pub sum_us: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: [0; BUCKETS], sum_us: 0 }
    }
}

impl Histogram {
    /// Adds one duration.
    pub fn count_one(&mut self, duration: Duration) {
        let (bucket, more) = place_of(duration);
        if let Some(count) = self.counts.get_mut(bucket) {
            *count = count.wrapping_add(1);
        }
        self.sum_us = self.sum_us.saturating_add(more);
    }

    /// Adds the counts of another histogram.
    pub fn add(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count = count.wrapping_add(*more);
        }
        self.sum_us = self.sum_us.saturating_add(other.sum_us);
    }

    /// The upper bound of each bucket, and how many durations are at most as long. The last bound is infinite.
    pub fn cumulated(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        let bounds = BUCKET_BOUNDS_S.into_iter().chain([f64::INFINITY]);
        bounds.zip(self.counts.iter().scan(0_u64, |total, count| {
            *total = total.wrapping_add(*count);
            Some(*total)
        }))
    }

    /// The number of durations that were counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The sum of all durations, in seconds.
    #[must_use]
    pub fn sum_s(&self) -> f64 {
        Duration::from_micros(self.sum_us).as_secs_f64()
    }
}

/// The bucket in which a duration is counted.
#[must_use]
pub fn bucket_of(duration: Duration) -> usize {
    let seconds = duration.as_secs_f64();
    BUCKET_BOUNDS_S.partition_point(|bound| *bound < seconds)
}

/// The bucket of a duration, and its microseconds, which are added to the sum.
pub(crate) fn place_of(duration: Duration) -> (usize, u64) {
    (bucket_of(duration), duration.as_micros().try_into().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_lands_in_the_bucket_that_bounds_it() {
        let mut histogram = Histogram::default();
        for us in [1, 100, 101, 10_000_000, 10_000_001] {
            histogram.count_one(Duration::from_micros(us));
        }
        let cumulated: Vec<(f64, u64)> = histogram.cumulated().collect();
        assert_eq!(cumulated[0], (0.0001, 2));
        assert_eq!(cumulated[1], (0.00015, 3));
        assert_eq!(cumulated[30], (10.0, 4));
        assert_eq!(cumulated[31], (f64::INFINITY, 5));
        assert_eq!(histogram.count(), 5);
        assert!((histogram.sum_s() - 20.000_203).abs() < 1e-9);
    }
}
