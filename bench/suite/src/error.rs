//! What goes wrong while measuring or reading what was measured.

use std::io;
use std::path::{Path, PathBuf};

/// The result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why something could not be measured, read or shown.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The system refused.
    #[error("cannot {what}")]
    Io {
        /// What was attempted.
        what: String,
        /// Its reason.
        source: io::Error,
    },
    /// A file does not hold what it should.
    #[error("{path}: {reason}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong, with the line where that is known.
        reason: String,
    },
    /// What was asked for makes no sense or cannot be done here; says what to do instead.
    #[error("{0}")]
    Refused(String),
}

impl Error {
    /// A file that does not hold what it should.
    pub(crate) fn malformed(path: &Path, reason: impl std::fmt::Display) -> Self {
        Self::Malformed { path: path.to_owned(), reason: reason.to_string() }
    }
}

/// Adds what was attempted to an error of the system.
pub(crate) trait Attempt<T> {
    /// `what` continues "cannot ...".
    fn attempt(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T> Attempt<T> for io::Result<T> {
    fn attempt(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|source| Error::Io { what: what(), source })
    }
}
