//! Errors of measuring and of reading records.

use std::io;
use std::path::{Path, PathBuf};

/// The result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why something could not be measured, read or printed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call failed.
    #[error("cannot {what}")]
    Io {
        /// What was attempted.
        what: String,
        /// The cause.
        source: io::Error,
    },
    /// A file has invalid contents.
    #[error("{path}: {reason}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong, with the line if it is known.
        reason: String,
    },
    /// The request makes no sense or cannot be fulfilled here; the text names the remedy.
    #[error("{0}")]
    Refused(String),
}

impl Error {
    /// The error for a file with invalid contents.
    pub(crate) fn malformed(path: &Path, reason: impl std::fmt::Display) -> Self {
        Self::Malformed { path: path.to_owned(), reason: reason.to_string() }
    }
}

/// Adds the attempted action to an error of the system.
pub(crate) trait Attempt<T> {
    /// `what` continues "cannot ...".
    fn attempt(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T> Attempt<T> for io::Result<T> {
    fn attempt(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|source| Error::Io { what: what(), source })
    }
}
