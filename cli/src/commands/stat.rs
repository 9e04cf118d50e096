//! Implements the command `leno stat`.

use anyhow::Result;
use clap::Args;

use super::figures::{Figures, ReportView};

/// Shows workloads and edges: success rate, requests/s, latency, mTLS or not
///
/// The figures are what the proxies of the local mesh, or of a cluster, count during a window of time. With --since
/// they cover the time up to now, from the history that `leno up` keeps.
///
/// Latency is of whole responses, in two digits: it is interpolated in the buckets of a histogram. The P95 of fewer than 20
/// requests and the P99 of fewer than 100 are the slowest request by another name, so the table has `-` instead.
///
/// JSON output has workloads[], edges[] and routes[] with requests, success_rate (0 to 1), requests_per_s and latency_ms, all
/// percentiles as computed: `requests` says how many they are of. A workload's `ready` counts instances that have completed or
/// that run on a schedule.
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
