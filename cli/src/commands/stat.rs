//! Implements the command `leno stat`.

use anyhow::Result;
use clap::Args;

use super::figures::{Figures, ReportView};

/// Shows success rate, request rate, latency and mTLS of workloads and edges
///
/// The figures are what the proxies count during a window of time. With --since they cover the time up to now, from
/// the history that `leno up` keeps, and in a cluster its observer.
///
/// Latency is the time until the end of the response, in milliseconds with two significant digits, interpolated from
/// histogram buckets. The P95 of fewer than 20 requests and the P99 of fewer than 100 would only be the slowest
/// request, so the table shows `-` instead.
///
/// JSON output has workloads[], edges[] and routes[] with requests (a count), success_rate (0 to 1), requests_per_s
/// and latency_ms. It has all percentiles, however few requests there are. `ready` of a workload includes instances
/// that have completed or run on a schedule.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  sudo leno stat --window 5s -o json\n  \
                  sudo leno stat --since 10m --sort p99\n  \
                  leno stat --context prod -n shop")]
pub(crate) struct Stat {
    #[command(flatten)]
    figures: Figures,
}

pub(crate) fn run(stat: &Stat) -> Result<bool> {
    stat.figures.run(ReportView::Mesh)
}
