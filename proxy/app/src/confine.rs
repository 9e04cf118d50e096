//! Confines the proxy, and logs what the kernel does not enforce.

use std::path::Path;

use leno_confine::Unenforced;

/// Files beneath the folders of `files` can still be read.
///
/// # Errors
/// The kernel refused a filter it should take.
pub(crate) fn confine(files: &[&Path]) -> anyhow::Result<()> {
    for unenforced in leno_confine::confine(files)? {
        match unenforced {
            Unenforced::PartOfLandlock => tracing::info!("{unenforced}"),
            Unenforced::Landlock | Unenforced::Seccomp => tracing::warn!("{unenforced}"),
        }
    }
    Ok(())
}
