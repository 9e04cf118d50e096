//! Implements the command `leno edges`.

use anyhow::Result;
use clap::Args;

use super::figures::{Figures, ReportView};

/// Shows which workload calls which, with rates, latency and the identities that both ends prove
///
/// The figures are those of `leno stat`. Identities are shown as NAMESPACE/SERVICEACCOUNT, and with -o wide and -o
/// json as SPIFFE IDs. They are shown only if all connections of the window used mTLS, because plaintext proves no
/// identity.
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
