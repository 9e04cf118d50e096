//! `leno bench clean`.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use leno_console::{block_on, note};
use leno_suite::cluster;

/// Reverts what a killed run left behind in a cluster
///
/// A run writes every change to the cluster into DIR/cluster.json before it makes it, with the
/// state before. A run reverts its changes when it ends, even after an error, and so does the next
/// run with the same --out. Harmless if nothing is left. Refused while a run works in DIR, and in a
/// cluster other than that of the run.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  leno bench clean cluster")]
pub(crate) struct Clean {
    /// The directory of the records of that run
    directory: PathBuf,
}

pub(super) fn run(args: &Clean) -> Result<bool> {
    let found = block_on(async { cluster::clean(&args.directory).await })?;
    if !found {
        note!("{} has nothing that is left in a cluster", args.directory.display());
    }
    Ok(true)
}
