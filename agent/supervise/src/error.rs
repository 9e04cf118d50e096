//! What can go wrong with a process and its control group.

use std::io;

/// Why a process or a control group is not as it should be. `Display` has what was attempted, `source()` the
/// system's reason.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call or file operation failed.
    #[error("{what}")]
    Os {
        /// What was attempted.
        what: String,
        /// The system's reason.
        source: io::Error,
    },
    /// Processes do not end.
    #[error("{0}")]
    Survive(String),
}

/// The result of an operation on a process or a control group.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Adds what was attempted, which reads like "cannot create /sys/fs/cgroup/leno", to the system's reason.
    pub(crate) fn os<E: Into<io::Error>>(what: impl FnOnce() -> String) -> impl FnOnce(E) -> Self {
        move |source| Self::Os { what: what(), source: source.into() }
    }
}
