//! `leno edges`.

use anyhow::Result;
use clap::Args;

use super::figures::{Figures, ReportView};

/// Shows which workload calls which, with rates, latency and the identities that both prove
///
/// The figures are those of `leno stat`, of a window of time or with --since of the history. Identities are shown as
/// NAMESPACE/SERVICEACCOUNT, with -o wide and -o json as SPIFFE IDs, where all connections of the window were mTLS: plaintext
/// proves none.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  sudo leno edges --sort success\n  \
                  sudo leno edges --since 1h --filter shop/cart -o wide\n  \
                  leno edges --context prod -n shop -w")]
pub(crate) struct Edges {
    #[command(flatten)]
    figures: Figures,
}

pub(crate) fn run(edges: &Edges) -> Result<bool> {
    edges.figures.run(ReportView::Edges)
}
