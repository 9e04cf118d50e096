//! `leno bench clean`.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use leno_suite::cluster;

use leno_console::block_on;

/// Takes back what a run that was killed left in a cluster
///
/// What a run makes there is written into DIR/cluster.json before it is made, with what was there before. A run
/// that ends, well or not, takes it back by itself, and so does the next one with the same --out. Harmless where
/// nothing is left. Refused while a run works in DIR, and in another cluster than that of the run.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  leno bench clean cluster")]
pub(crate) struct Clean {
    /// The directory of the records of that run
    directory: PathBuf,
}

pub(super) fn run(args: &Clean) -> Result<bool> {
    let found =
        block_on(async { cluster::clean(&args.directory, &mut |line| eprintln!("{line}")).await })?;
    if !found {
        eprintln!("{} says of nothing that is left", args.directory.display());
    }
    Ok(true)
}
