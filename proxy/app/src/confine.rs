//! Confines the proxy, and logs which restrictions the kernel does not enforce.

use std::path::Path;

use leno_confine::Unenforced;

/// Confines the process. Files below the folders of `files` can still be read.
///
/// # Errors
/// The kernel rejected a filter that it should support.
pub(crate) fn confine(files: &[&Path]) -> anyhow::Result<()> {
    for unenforced in leno_confine::confine(files)? {
        match unenforced {
            Unenforced::PartOfLandlock => tracing::info!("{unenforced}"),
            Unenforced::Landlock | Unenforced::Seccomp => tracing::warn!("{unenforced}"),
        }
    }
    Ok(())
}
