//! Implements the command `leno observer`, which `leno up` starts itself.

use anyhow::Result;
use clap::Args;
use leno_local::layout::Layout;

use super::block_on;

/// Remembers a day of what the proxies of a mesh count; `leno up` starts it
#[derive(Debug, Args)]
pub(crate) struct Observer {
    /// The name of the mesh
    mesh: String,
}

pub(crate) fn run(observer: &Observer) -> Result<bool> {
    let layout = Layout::new(&observer.mesh)?;
    block_on(async { Ok(leno_local::observer::observe(&layout).await?) })?;
    Ok(true)
}
