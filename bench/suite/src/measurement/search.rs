//! Searches for the highest rate at which latency stays below a bound.

use std::time::Duration;

use anyhow::{Result, ensure};
use leno_measure::load::Report;

use super::figures::failing;
use crate::record::{Latency, Mark, MarkKind, Record};
use crate::scenario::{self, Scenario};

/// The number of steps of the search. Each step halves the interval, so five of them leave 3 % of the maximum.
const SEARCH_STEPS: u32 = 5;

pub(crate) fn step(duration: Duration) -> Duration {
    (duration / SEARCH_STEPS).max(Duration::from_secs(1))
}

/// The highest rate that keeps the 99th percentile under a bound, found by bisection between 0 and the rate of a closed
/// loop. `measure` generates load at a rate, or in a closed loop.
pub(crate) async fn highest_rate(
    bound: Duration,
    measure: impl AsyncFn(Option<f64>) -> Result<Report>,
) -> Result<f64> {
    let (mut low, mut high) = (0.0, measure(None).await?.requests_per_s);
    for _ in 0..SEARCH_STEPS {
        let rate = f64::midpoint(low, high);
        let report = measure(Some(rate)).await?;
        let p99 = Latency::of(&report.buckets).p99;
        let is_kept = u128::from(p99) < bound.as_micros() && !failing(&report);
        *(if is_kept { &mut low } else { &mut high }) = rate;
    }
    ensure!(low > 0.0, "no rate above {high:.0}/s kept the 99th percentile under {bound:?}");
    Ok(low)
}

/// The mark for a rate that the search found, but at which the longer measurement exceeded the bound.
pub(crate) fn missed(scenario: &Scenario, record: &Record) -> Option<Mark> {
    let scenario::Pace::SearchP99Ms(bound) = scenario.pace else { return None };
    // If the generator cannot keep a rate, there was no search.
    let rate = record.rate_per_s?;
    let p99 = record.latency_us.p99 as f64 / 1000.0;
    (p99 >= bound as f64).then(|| Mark {
        kind: MarkKind::BoundMissed,
        why: format!(
            "at {rate:.0}/s the 99th percentile was {p99:.1} ms, and {bound} ms is the bound: a longer \
             --duration tries each rate for longer"
        ),
    })
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use leno_measure::load::Bucket;

    use super::*;

    /// Runs a search against a server that answers `capacity` requests a second in time.
    fn search(capacity: f64) -> Result<f64> {
        let measure = async |rate: Option<f64>| {
            let us = if rate.is_some_and(|rate| rate <= capacity) { 2000 } else { 20_000 };
            let buckets = vec![Bucket { us, count: 1000 }];
            let requests_per_s = rate.unwrap_or(1000.0);
            Ok(Report { requests: 1000, requests_per_s, buckets, ..Report::default() })
        };
        highest_rate(Duration::from_millis(10), measure).now_or_never().unwrap()
    }

    #[test]
    fn the_highest_rate_that_holds_a_bound_is_found_to_3_percent_of_the_most() {
        for capacity in [40.0, 333.0, 700.0, 1000.0] {
            let found = search(capacity).unwrap();
            assert!(
                found <= capacity && capacity - found <= 1000.0 / 32.0,
                "{found} of {capacity}"
            );
        }
        let none = search(0.0).unwrap_err().to_string();
        assert!(none.contains("no rate above 31/s kept the 99th percentile under 10ms"), "{none}");
    }

    #[test]
    fn a_rate_that_misses_its_bound_gets_a_mark() {
        let saturation = scenario::find("saturation").unwrap();
        let measured = |p99, rate_per_s| {
            let latency_us = Latency { p99, ..Latency::default() };
            let record = Record { latency_us, rate_per_s, ..Record::default() };
            missed(&saturation, &record)
        };
        assert_eq!((measured(19_999, Some(1.0)), measured(90_000, None)), (None, None));
        let mark = measured(57_090, Some(20_801.0)).unwrap();
        assert!(mark.kind == MarkKind::BoundMissed && mark.kind.invalidates(), "{mark:?}");
        assert!(mark.why.starts_with("at 20801/s the 99th percentile was 57.1 ms"), "{mark:?}");
        let other = scenario::find("http-1k").unwrap();
        let slow = Record { rate_per_s: Some(1.0), ..Record::default() };
        assert_eq!(missed(&other, &slow), None);
    }
}
