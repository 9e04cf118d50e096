//! `leno bench clean`.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use leno_console::{block_on, note};
use leno_suite::cluster;

/// Reverts the changes that a killed run left behind in a cluster
///
/// A run writes each change of the cluster, with the state before it, into DIRECTORY/cluster.json before it makes the
/// change. It reverts its changes when it ends, even after an error, and the next run with the same --out reverts
/// those of a killed run. The command changes nothing if nothing is left. It refuses to run while a run uses the
/// directory, and in a cluster other than that of the run.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  leno bench clean cluster")]
pub(crate) struct Clean {
    /// Directory with the records of that run
    directory: PathBuf,
}

pub(super) fn run(args: &Clean) -> Result<bool> {
    let found = block_on(async { cluster::clean(&args.directory).await })?;
    if !found {
        note!("{} lists nothing to revert in a cluster", args.directory.display());
    }
    Ok(true)
}
