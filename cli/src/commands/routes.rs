//! Implements the command `leno routes`.

use anyhow::Result;
use clap::Args;

use super::figures::{Figures, ReportView};

/// Shows the requests to services by the HTTPRoute or GRPCRoute, and the rule, that they match
///
/// The proxies of the clients count them, over a window of time or with --since from the history. A rule is shown by
/// its name, or by its index in the route, from 0. Requests that match no rule have a row of their own. Services
/// without a route are not shown.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  sudo leno routes --sort p99\n  \
                  sudo leno routes --since 1h --filter shop/cart -o wide\n  \
                  leno routes --context prod -n shop -o json")]
pub(crate) struct Routes {
    #[command(flatten)]
    figures: Figures,
}

pub(crate) fn run(routes: &Routes) -> Result<bool> {
    routes.figures.run(ReportView::Routes)
}
