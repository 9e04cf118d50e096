//! Implements the command `leno guard`, which `leno up` starts itself.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

/// Ends the processes of a mesh whose `leno up` was killed; `leno up` starts it
#[derive(Debug, Args)]
pub(crate) struct Guard {
    /// Control group of the mesh
    group: PathBuf,

    /// ID of that control group
    number: u64,
}

pub(crate) fn run(guard: &Guard) -> Result<bool> {
    leno_local::guard::guard(&guard.group, guard.number)?;
    Ok(true)
}
