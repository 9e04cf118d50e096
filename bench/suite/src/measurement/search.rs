//! The search for the highest rate that keeps a bound.

use std::time::Duration;

use anyhow::{Result, bail};
use leno_measure::load::Report;

use super::figures::failing;
use crate::record::{Latency, Mark, MarkKind, Record};
use crate::scenario::{self, Scenario};

/// Steps of the search for the highest rate. Each halves the interval; five of them leave 3 % of
/// the maximum.
const SEARCH_STEPS: u32 = 5;

/// The search for the highest rate that keeps the 99th percentile under a bound, by bisection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RateSearch {
    bound: Duration,
    low: f64,
    high: f64,
    left: u32,
}

impl RateSearch {
    /// How long each step is measured.
    pub(crate) fn step(duration: Duration) -> Duration {
        (duration / SEARCH_STEPS).max(Duration::from_secs(1))
    }

    /// Starts between 0 and `most`, the rate of a closed loop.
    pub(crate) fn below(most: f64, bound: Duration) -> Self {
        Self { bound, low: 0.0, high: most, left: SEARCH_STEPS }
    }

    /// The rate to try next; `None` if the result is precise enough.
    pub(crate) fn next(&self) -> Option<f64> {
        (self.left > 0).then(|| f64::midpoint(self.low, self.high))
    }

    /// Records the result of a rate.
    pub(crate) fn tried(&mut self, rate: f64, report: &Report) {
        let p99 = Latency::of(&report.buckets).p99;
        let good = u128::from(p99) < self.bound.as_micros() && !failing(report);
        if good {
            self.low = rate
        } else {
            self.high = rate
        }
        self.left -= 1;
    }

    /// The mark for a rate that the search found but that did not keep the bound in the longer
    /// measurement.
    pub(crate) fn missed(scenario: &Scenario, record: &Record) -> Option<Mark> {
        let scenario::Pace::SearchP99Ms(bound) = scenario.pace else { return None };
        // A generator that cannot keep a rate has not searched for one.
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

    /// The highest rate that kept the bound.
    pub(crate) fn found(&self) -> Result<f64> {
        if self.low == 0.0 {
            let (high, bound) = (self.high, self.bound);
            bail!("no rate above {high:.0}/s kept the 99th percentile under {bound:?}");
        }
        Ok(self.low)
    }
}

#[cfg(test)]
mod tests {
    use leno_measure::load::Bucket;

    use super::*;

    /// Runs a search in which `capacity` requests a second are answered in time.
    fn search(capacity: f64) -> Result<f64> {
        let mut search = RateSearch::below(1000.0, Duration::from_millis(10));
        while let Some(rate) = search.next() {
            let us = if rate <= capacity { 2000 } else { 20_000 };
            let buckets = vec![Bucket { us, count: 1000 }];
            search.tried(rate, &Report { requests: 1000, buckets, ..Report::default() });
        }
        search.found()
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
    fn a_rate_that_has_not_kept_its_bound_says_so() {
        let saturation = scenario::find("saturation").unwrap();
        let measured = |p99, rate_per_s| {
            let latency_us = Latency { p99, ..Latency::default() };
            let record = Record { latency_us, rate_per_s, ..Record::default() };
            RateSearch::missed(&saturation, &record)
        };
        assert_eq!((measured(19_999, Some(1.0)), measured(90_000, None)), (None, None));
        let mark = measured(57_090, Some(20_801.0)).unwrap();
        assert!(mark.kind == MarkKind::BoundMissed && mark.kind.invalidates(), "{mark:?}");
        assert!(mark.why.starts_with("at 20801/s the 99th percentile was 57.1 ms"), "{mark:?}");
        let other = scenario::find("http-1k").unwrap();
        let slow = Record { rate_per_s: Some(1.0), ..Record::default() };
        assert_eq!(RateSearch::missed(&other, &slow), None);
    }
}
