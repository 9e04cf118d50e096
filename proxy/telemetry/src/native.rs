//! Durations in the exponential buckets of Prometheus' native histograms.
//!
//! Each bound is 2^(1/4) times the one before (19 %), so a quantile is off by 9 % at most. The bounds of classic
//! histograms ([`BUCKET_BOUNDS_S`](crate::BUCKET_BOUNDS_S)) are farther apart. To save memory, the counts are allocated
//! with the first duration.

use std::cell::{Cell, OnceCell};
use std::time::Duration;

/// The bound between two buckets is `2^(index / 2^SCHEMA)` seconds.
pub const SCHEMA: i32 = 2;
/// Durations up to this one, in seconds, all count in one bucket: 2^-15, 31 microseconds.
pub const ZERO_THRESHOLD_S: f64 = 1.0 / 32_768.0;
/// The index of the upper bound of the first bucket above the threshold.
pub const FIRST_INDEX: i32 = -15 * 4 + 1;
/// The number of buckets above the threshold, up to 2^7 seconds. Longer durations count in the last one.
const BUCKETS: usize = 22 * 4;
/// The number of all buckets, including the one for durations up to the threshold.
const CELLS: usize = BUCKETS + 1;

/// The durations of requests between one client and one server (an [`Edge`](crate::Edge)), or of those that followed
/// one rule of a route, on one worker. Allocated with the first duration.
#[derive(Debug, Default)]
pub(crate) struct NativeHistogram(OnceCell<Box<[Cell<u64>; CELLS]>>);

/// A copy of a [`NativeHistogram`], or the sum of several. Empty if nothing was counted; else one number for each cell:
/// the first for durations up to the threshold, the others for the buckets above it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NativeCounts(Vec<u64>);

impl NativeHistogram {
    /// Adds one duration.
    pub(crate) fn count(&self, duration: Duration) {
        let cells = self.0.get_or_init(|| Box::new([const { Cell::new(0) }; CELLS]));
        if let Some(cell) = cells.get(cell_of(duration)) {
            cell.set(cell.get().wrapping_add(1));
        }
    }

    pub(crate) fn counts(&self) -> NativeCounts {
        NativeCounts(
            self.0.get().map_or_else(Vec::new, |cells| cells.iter().map(Cell::get).collect()),
        )
    }
}

impl NativeCounts {
    /// The number of durations up to [`ZERO_THRESHOLD_S`].
    #[must_use]
    pub fn zero(&self) -> u64 {
        self.0.first().copied().unwrap_or_default()
    }

    /// The number of durations in each bucket above the threshold, from [`FIRST_INDEX`] on.
    #[must_use]
    pub fn buckets(&self) -> &[u64] {
        self.0.get(1..).unwrap_or_default()
    }

    pub(crate) fn add(&mut self, other: &Self) {
        if self.0.is_empty() {
            self.0.clone_from(&other.0);
            return;
        }
        for (count, more) in self.0.iter_mut().zip(&other.0) {
            *count = count.wrapping_add(*more);
        }
    }
}

/// The index of the cell in which a duration counts: the first one whose upper bound is at least the duration. 0 up to
/// the threshold; the last one if all bounds are lower. There are four buckets from each power of two to the next.
fn cell_of(duration: Duration) -> usize {
    /// The number of bits in a float's mantissa.
    const MANTISSA: u32 = f64::MANTISSA_DIGITS - 1;
    /// The exponent in the representation of numbers from 1 to 2.
    const BIAS: u64 = 1023;
    /// The bounds from a power of two to the next, relative to the power.
    const BOUNDS: [f64; 4] =
        [1.0, 1.189_207_115_002_721, std::f64::consts::SQRT_2, 1.681_792_830_507_429];
    let seconds = duration.as_secs_f64();
    if seconds <= ZERO_THRESHOLD_S {
        return 0;
    }
    let bits = seconds.to_bits();
    let mantissa = f64::from_bits(bits & ((1 << MANTISSA) - 1) | BIAS << MANTISSA);
    let below = BOUNDS.iter().filter(|bound| mantissa > **bound).count();
    // The number is above the threshold, so its exponent is at least that of the threshold, -15.
    let octave = (bits >> MANTISSA).saturating_sub(BIAS - 15);
    let octave = usize::try_from(octave).unwrap_or(usize::MAX);
    octave.saturating_mul(4).saturating_add(below).min(BUCKETS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_in_the_bucket_whose_bounds_are_around_it() {
        let mut last = 0;
        for nanos in (1..36).flat_map(|power| {
            let power = 1_u64 << power;
            [power, power + 1, power * 5 / 4, power * 3 / 2, power * 7 / 4]
        }) {
            let duration = Duration::from_nanos(nanos);
            let cell = cell_of(duration);
            assert!(cell >= last, "{nanos}");
            last = cell;
            let seconds = duration.as_secs_f64();
            if cell == 0 {
                assert!(seconds <= ZERO_THRESHOLD_S, "{nanos}");
                continue;
            }
            let index = FIRST_INDEX + i32::try_from(cell).unwrap() - 1;
            let bound = |index: i32| 2.0_f64.powf(f64::from(index) / 4.0);
            assert!(bound(index - 1) < seconds && seconds <= bound(index), "{nanos}: {cell}");
        }
        assert_eq!(cell_of(Duration::from_secs(1)), 15 * 4, "a bound is in the bucket below it");
        assert_eq!(cell_of(Duration::from_secs(100_000)), BUCKETS);
        assert_eq!(cell_of(Duration::MAX), BUCKETS);
        assert_eq!(cell_of(Duration::ZERO), 0);
    }

    #[test]
    fn counts_are_added_up_by_bucket() {
        let (one, none) = (NativeHistogram::default(), NativeHistogram::default());
        one.count(Duration::ZERO);
        one.count(Duration::from_secs(1));
        let mut sum = none.counts();
        sum.add(&one.counts());
        sum.add(&none.counts());
        sum.add(&one.counts());
        assert_eq!((sum.zero(), sum.buckets().iter().sum::<u64>()), (2, 2));
        assert_eq!(sum.buckets()[15 * 4 - 1], 2);
    }
}
