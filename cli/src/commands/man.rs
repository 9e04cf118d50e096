//! Implements the command `leno man`, which `make dist` runs.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::{Args, Command};

/// Writes the manual pages of all commands into a directory
#[derive(Debug, Args)]
pub(crate) struct Man {
    /// Directory to write into, which is created if it does not exist
    folder: PathBuf,
}

pub(crate) fn run(man: &Man, command: Command) -> Result<bool> {
    let folder = &man.folder;
    fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    clap_mangen::generate_to(command, folder)
        .with_context(|| format!("writing manual pages into {}", folder.display()))?;
    Ok(true)
}
