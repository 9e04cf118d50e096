//! Implements the command `leno cleanup`.

use anyhow::{Result, bail};
use clap::Args;
use leno_console::note;

use super::print;

/// Removes what a killed `leno up` has left behind: network namespaces, control groups, pins, mounts and processes
///
/// Does not change meshes that still run. Exits 2 if something could not be removed. Needs root.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  sudo leno cleanup")]
pub(crate) struct Cleanup {
    /// Cleans up only after the mesh of this name [default: after every mesh whose `leno up` has ended]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
}

pub(crate) fn run(cleanup: &Cleanup) -> Result<bool> {
    let outcomes = leno_local::cleanup::cleanup(cleanup.name.as_deref())?;
    if outcomes.is_empty() {
        print("nothing to remove\n")?;
    }
    let mut failed = 0;
    for outcome in outcomes {
        match outcome.result {
            Ok(()) => print(&format!("mesh {:?}: nothing is left\n", outcome.mesh))?,
            Err(leno_local::Error::Running { owner, .. }) if cleanup.name.is_none() => {
                let mesh = outcome.mesh;
                print(&format!(
                    "mesh {mesh:?}: not cleaned up, because it runs (process {owner})\n"
                ))?;
            }
            Err(error) => {
                note!("leno: {}", error.chain());
                failed += 1;
            }
        }
    }
    match failed {
        0 => Ok(true),
        _ => bail!(
            "{failed} of the meshes could not be cleaned up, for the reasons above: run leno \
             cleanup again once these are gone"
        ),
    }
}
