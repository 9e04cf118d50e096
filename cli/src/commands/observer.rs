//! Implements the command `leno observer`, which `leno up` starts itself.

use anyhow::Result;
use clap::Args;
use leno_local::layout::Layout;

use super::block_on;

/// Keeps the counts of a mesh's proxies for 24 hours; `leno up` starts it
#[derive(Debug, Args)]
pub(crate) struct Observer {
    /// Name of the mesh
    mesh: String,
}

pub(crate) fn run(observer: &Observer) -> Result<bool> {
    let layout = Layout::new(&observer.mesh)?;
    block_on(async { Ok(leno_local::observer::observe(&layout).await?) })?;
    Ok(true)
}
