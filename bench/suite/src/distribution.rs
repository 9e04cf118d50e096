//! Latency over quantiles, from the buckets of a histogram of any generator.

use leno_measure::load::{Bucket, value_at};

use crate::record::Quantile;

/// Points of a spectrum per further nine of the quantile.
const PER_NINE: u32 = 12;

/// Latency over quantiles, as far as the number of requests allows.
pub fn spectrum(buckets: &[Bucket]) -> Vec<Quantile> {
    let count: u64 = buckets.iter().map(|bucket| bucket.count).sum();
    let nines = (count as f64).log10();
    let point = |step: u32| 1.0 - 10_f64.powf(-f64::from(step) / f64::from(PER_NINE));
    (0..)
        .take_while(|step| f64::from(*step) <= nines * f64::from(PER_NINE))
        .map(point)
        .map(|quantile| Quantile { quantile, us: value_at(buckets, quantile) })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spectrum_goes_as_far_as_there_are_requests() {
        let buckets = [Bucket { us: 5, count: 999 }, Bucket { us: 50, count: 1 }];
        let found = spectrum(&buckets);
        assert_eq!((found.first().unwrap().us, found.last().unwrap().us), (5, 5));
        assert!((found.last().unwrap().quantile - 0.999).abs() < 1e-9);
        assert!(spectrum(&[]).is_empty());
    }
}
