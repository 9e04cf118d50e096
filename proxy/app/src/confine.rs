//! Confines the proxy: Landlock takes away access to files, and seccomp the system calls that it never needs. Logs
//! what the kernel does not enforce.

use std::path::Path;

use leno_confine::Unenforced;

/// Confines this thread and the threads that it starts later. Files below the folders of `files` can still be read.
///
/// # Errors
/// The kernel rejected a filter that it should support. A kernel without such filters is not an error.
pub(crate) fn confine(files: &[&Path]) -> anyhow::Result<()> {
    for unenforced in leno_confine::confine(files)? {
        match unenforced {
            Unenforced::PartOfLandlock => tracing::info!("{unenforced}"),
            Unenforced::Landlock | Unenforced::Seccomp => tracing::warn!("{unenforced}"),
        }
    }
    Ok(())
}
