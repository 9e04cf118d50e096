//! Percentiles from the buckets of a histogram of any generator.

use leno_measure::load::Bucket;

use crate::record::{Latency, Quantile};

/// Points of a spectrum per further nine of the quantile.
const PER_NINE: u32 = 12;

/// The percentiles of sorted buckets.
pub fn latency(buckets: &[Bucket]) -> Latency {
    let at = |quantile| value_at(buckets, quantile);
    let (sum, count) = buckets.iter().fold((0.0, 0), |(sum, count), bucket| {
        (sum + bucket.us as f64 * bucket.count as f64, count + bucket.count)
    });
    Latency {
        mean: (sum / f64::max(count as f64, 1.0) * 10.0).round() / 10.0,
        p50: at(0.5),
        p75: at(0.75),
        p90: at(0.9),
        p95: at(0.95),
        p99: at(0.99),
        p99_9: at(0.999),
        p99_99: at(0.9999),
        max: buckets.last().map_or(0, |bucket| bucket.us),
    }
}

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

/// The smallest value that is not exceeded by at least this share of all values.
fn value_at(buckets: &[Bucket], quantile: f64) -> u64 {
    let count: u64 = buckets.iter().map(|bucket| bucket.count).sum();
    let wanted = (count as f64 * quantile).ceil().max(1.0) as u64;
    let mut seen = 0;
    for bucket in buckets {
        seen += bucket.count;
        if seen >= wanted {
            return bucket.us;
        }
    }
    buckets.last().map_or(0, |bucket| bucket.us)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_count_from_below() {
        let buckets: Vec<Bucket> = (1..=1000).map(|us| Bucket { us, count: 1 }).collect();
        let found = latency(&buckets);
        assert_eq!((found.p50, found.p99, found.p99_9, found.max), (500, 990, 999, 1000));
        assert_eq!(found.p99_99, 1000);
        assert_eq!(latency(&[]), Latency::default());
    }

    #[test]
    fn the_spectrum_goes_as_far_as_there_are_requests() {
        let buckets = [Bucket { us: 5, count: 999 }, Bucket { us: 50, count: 1 }];
        let found = spectrum(&buckets);
        assert_eq!((found.first().unwrap().us, found.last().unwrap().us), (5, 5));
        assert!((found.last().unwrap().quantile - 0.999).abs() < 1e-9);
        assert!(spectrum(&[]).is_empty());
    }
}
