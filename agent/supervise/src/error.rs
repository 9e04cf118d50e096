//! The errors of processes and control groups.

use std::io;

/// Why an operation on a process or a control group failed. `Display` prints what was attempted, and `source()` is
/// the system's reason.
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
    /// Processes have survived SIGKILL.
    #[error("{0}")]
    Survive(String),
}

/// The result of an operation on a process or a control group.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Adds to the system's reason what was attempted, such as "cannot create /sys/fs/cgroup/leno".
    pub(crate) fn os<E: Into<io::Error>>(what: impl FnOnce() -> String) -> impl FnOnce(E) -> Self {
        move |source| Self::Os { what: what(), source: source.into() }
    }
}
