//! `leno cleanup`: removes what a killed run left behind.

use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::record;

/// The result for one mesh.
#[derive(Debug)]
pub struct CleanupOutcome {
    /// The name of the mesh.
    pub mesh: String,
    /// Whether all resources of the mesh were removed; [`Error::Running`] if the mesh
    /// still runs and was therefore skipped.
    pub result: Result<()>,
}

/// Removes all resources of the named mesh, or of every mesh whose `leno up` has ended.
///
/// # Errors
/// When the name is not valid.
pub fn cleanup(mesh: Option<&str>) -> Result<Vec<CleanupOutcome>> {
    if !nix::unistd::geteuid().is_root() {
        return Err(Error::NeedsRoot);
    }
    let meshes = match mesh {
        Some(name) => vec![Layout::new(name)?],
        None => Layout::all(),
    };
    let clean = |layout: &Layout| CleanupOutcome {
        mesh: layout.mesh().to_owned(),
        result: record::clean_up(layout),
    };
    Ok(meshes.iter().map(clean).collect())
}
