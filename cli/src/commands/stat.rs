//! `leno stat`.

use anyhow::Result;
use clap::Args;

use super::figures::{Figures, ReportView};

/// Shows workloads and edges: success rate, requests/s, latency, mTLS or not
///
/// The figures are what the proxies of the local mesh, or of a cluster, count during a window of time. With --since
/// they cover the time up to now, from the history that `leno up` keeps. JSON output has workloads[], edges[] and
/// routes[] with success_rate (0 to 1), requests_per_s and latency_ms.
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
