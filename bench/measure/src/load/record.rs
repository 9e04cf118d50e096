//! Counts of what the load threads did, and the report that is made from them.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::plan::Plan;
use crate::usage::Cpu;

/// The largest latency that the histogram can hold; a longer one counts as this.
pub const MAX_LATENCY_US: u64 = 120_000_000;
/// The generator counts as the bottleneck if the 99th percentile of its own delay is above this:
/// half of the latency that the best proxies add.
pub const MAX_LAG_US: u64 = 500;
/// The generator counts as the bottleneck if one of its threads is on a CPU for more than this
/// share of the time.
pub const MAX_BUSY: f64 = 0.95;
/// The error label of a request that still waited for a free connection at the end.
pub(super) const UNSENT: &str = "unsent";
/// The error label of a request that was due while the backlog was full.
pub(super) const BACKLOG_FULL: &str = "backlog_full";

/// The counts of one load thread.
pub(super) struct LoadTally {
    pub(super) latency: Histogram<u64>,
    /// The generator's own delay, from the moment a request was due until a free connection got it.
    pub(super) lag: Histogram<u64>,
    pub(super) requests: u64,
    pub(super) errors: BTreeMap<&'static str, u64>,
    pub(super) body_bytes: u64,
    pub(super) opened: u64,
    pub(super) backlog_max: usize,
    /// The measured time.
    pub(super) measured: Duration,
    /// The share of the time that the thread was on a CPU.
    pub(super) busy: f64,
}

impl LoadTally {
    pub(super) fn new() -> Self {
        let histogram =
            || Histogram::new_with_bounds(1, MAX_LATENCY_US, 3).expect("the bounds are in order");
        LoadTally {
            latency: histogram(),
            lag: histogram(),
            requests: 0,
            errors: BTreeMap::new(),
            body_bytes: 0,
            opened: 0,
            backlog_max: 0,
            measured: Duration::ZERO,
            busy: 0.0,
        }
    }

    pub(super) fn error(&mut self, label: &'static str) {
        *self.errors.entry(label).or_default() += 1;
    }

    pub(super) fn merge(tallies: Vec<LoadTally>) -> LoadTally {
        let mut sum = LoadTally::new();
        for t in tallies {
            sum.latency.add(&t.latency).expect("the same bounds");
            sum.lag.add(&t.lag).expect("the same bounds");
            sum.requests += t.requests;
            for (label, count) in t.errors {
                *sum.errors.entry(label).or_default() += count;
            }
            sum.body_bytes += t.body_bytes;
            sum.opened += t.opened;
            sum.backlog_max += t.backlog_max;
            sum.busy = sum.busy.max(t.busy);
            sum.measured = sum.measured.max(t.measured);
        }
        sum
    }
}

/// Percentiles in microseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Latency {
    /// The mean latency.
    pub mean: f64,
    /// The median latency.
    pub p50: u64,
    /// 75th percentile.
    pub p75: u64,
    /// 90th percentile.
    pub p90: u64,
    /// 95th percentile.
    pub p95: u64,
    /// 99th percentile.
    pub p99: u64,
    /// 99.9th percentile.
    pub p99_9: u64,
    /// 99.99th percentile.
    pub p99_99: u64,
    /// The longest latency.
    pub max: u64,
}

impl Latency {
    /// The percentiles of sorted buckets.
    #[must_use]
    pub fn of(buckets: &[Bucket]) -> Self {
        let (sum, count) = buckets.iter().fold((0.0, 0), |(sum, count), bucket| {
            (sum + bucket.us as f64 * bucket.count as f64, count + bucket.count)
        });
        let at = |quantile| value_at(buckets, quantile);
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
}

/// The smallest value in the buckets that is at least as large as this share of all values. The buckets must be sorted.
#[must_use]
pub fn value_at(buckets: &[Bucket], quantile: f64) -> u64 {
    let count: u64 = buckets.iter().map(|bucket| bucket.count).sum();
    let wanted = (count as f64 * quantile).ceil().max(1.0) as u64;
    let mut seen = 0;
    let reaches = |bucket: &&Bucket| {
        seen += bucket.count;
        seen >= wanted
    };
    buckets.iter().find(reaches).or(buckets.last()).map_or(0, |bucket| bucket.us)
}

/// The buckets of a histogram that are not empty, shortest latency first.
fn buckets(histogram: &Histogram<u64>) -> Vec<Bucket> {
    let recorded = histogram.iter_recorded();
    recorded.map(|at| Bucket { us: at.value_iterated_to(), count: at.count_at_value() }).collect()
}

/// A bucket of a histogram. Buckets are so narrow that values keep three significant digits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bucket {
    /// The largest value that counts in this bucket, in microseconds.
    pub us: u64,
    /// How many values there were.
    pub count: u64,
}

/// The results of one run of load.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The URL of the load.
    pub url: String,
    /// The requested rate; absent for a closed loop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_per_s: Option<f64>,
    /// Connections of the load.
    pub connections: usize,
    /// Whether each request had its own connection.
    pub new_connection: bool,
    /// Measured seconds, without warm-up.
    pub duration_s: f64,
    /// Completed requests, whether they succeeded or failed.
    pub requests: u64,
    /// Requests that failed.
    pub errors: u64,
    /// Failed requests by kind.
    pub errors_by_kind: BTreeMap<String, u64>,
    /// Completed requests a second.
    pub requests_per_s: f64,
    /// Latency from the moment a request was due to the end of its response; successful requests
    /// only.
    pub latency_us: Latency,
    /// The generator's own delay in sending; large if the generator was the bottleneck.
    pub lag_us: Latency,
    /// Whether the generator was the bottleneck; then the latencies are its own, not the server's.
    pub generator_limited: bool,
    /// The share of its time that the busiest load thread was on a CPU, from 0 to 1.
    pub generator_busy: f64,
    /// The largest number of requests that were due and waited for a free connection at the same time.
    pub backlog_max: usize,
    /// Body bytes received.
    pub body_bytes: u64,
    /// Connections opened.
    pub connections_opened: u64,
    /// User CPU of the whole generator process, warm-up included.
    pub generator_cpu_user_us: u64,
    /// System CPU of the whole generator process, warm-up included.
    pub generator_cpu_system_us: u64,
    /// All buckets that are not empty, shortest latency first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub buckets: Vec<Bucket>,
}

impl Report {
    /// The number of failed requests that never reached the target because no connection was free:
    /// they waited to the end, or the backlog was full.
    #[must_use]
    pub fn unsent(&self) -> u64 {
        [UNSENT, BACKLOG_FULL].iter().filter_map(|kind| self.errors_by_kind.get(*kind)).sum()
    }

    /// The failed requests by kind, with counts, as a text.
    #[must_use]
    pub fn errors_in_words(&self) -> String {
        let kinds = self.errors_by_kind.iter().map(|(kind, count)| format!("{count} {kind}"));
        kinds.collect::<Vec<_>>().join(", ")
    }

    pub(super) fn new(plans: &[Plan], tally: &LoadTally, cpu: Cpu) -> Self {
        let rate_per_s = plans.iter().map(Plan::rate).sum::<Option<f64>>();
        let duration_s = tally.measured.as_secs_f64();
        let buckets = buckets(&tally.latency);
        let lag_us = Latency::of(&self::buckets(&tally.lag));
        Report {
            url: plans.iter().map(|plan| plan.url.as_str()).collect::<Vec<_>>().join(" "),
            rate_per_s,
            connections: plans.iter().map(|plan| plan.connections).sum(),
            new_connection: plans.iter().all(|plan| plan.new_connection),
            duration_s: (duration_s * 1000.0).round() / 1000.0,
            requests: tally.requests,
            errors: tally.errors.values().sum(),
            errors_by_kind: tally.errors.iter().map(|(k, v)| ((*k).to_string(), *v)).collect(),
            requests_per_s: (tally.requests as f64 / duration_s * 10.0).round() / 10.0,
            latency_us: Latency::of(&buckets),
            generator_limited: rate_per_s.is_some()
                && (lag_us.p99 > MAX_LAG_US || tally.busy > MAX_BUSY),
            generator_busy: (tally.busy * 1000.0).round() / 1000.0,
            lag_us,
            backlog_max: tally.backlog_max,
            body_bytes: tally.body_bytes,
            connections_opened: tally.opened,
            generator_cpu_user_us: cpu.user_us,
            generator_cpu_system_us: cpu.system_us,
            buckets,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_count_from_below() {
        let buckets: Vec<Bucket> = (1..=1000).map(|us| Bucket { us, count: 1 }).collect();
        let found = Latency::of(&buckets);
        assert_eq!((found.p50, found.p99, found.p99_9, found.max), (500, 990, 999, 1000));
        assert_eq!(found.p99_99, 1000);
        assert_eq!(Latency::of(&[]), Latency::default());
    }
}
