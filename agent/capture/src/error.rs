//! Why a workload could not be captured or released.

use std::io;
use std::time::Duration;

/// What failed. The cause is the `source`.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel programs.
    #[error(transparent)]
    Bpf(#[from] leno_bpf::Error),
    /// A file, a namespace or a process.
    #[error("cannot {action}")]
    Io {
        /// What was tried, as a verb and its object.
        action: String,
        /// Why it failed.
        source: io::Error,
    },
    /// A command of the system ended with an error.
    #[error("{command} failed: {stderr}")]
    Command {
        /// The command line.
        command: String,
        /// What it said.
        stderr: String,
    },
    /// A command of the system did not end in time, and was killed.
    #[error(
        "{command} did not end within {limit:?} and was killed; is another program changing the \
         same rules?"
    )]
    CommandTimeout {
        /// The command line.
        command: String,
        /// How long it was given.
        limit: Duration,
    },
    /// A prefix length that its address family does not have.
    #[error("{0}/{1} is not an address prefix")]
    Prefix(std::net::IpAddr, u8),
    /// No backend works here, or not the one asked for.
    #[error("cannot capture traffic on this machine: {0}")]
    Unusable(String),
}

impl Error {
    /// Wraps an I/O error with what was tried.
    pub(crate) fn io(action: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let action = action.into();
        move |source| Self::Io { action, source }
    }

    /// The error and its causes on one line, for reports.
    pub(crate) fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            text.push_str(": ");
            text.push_str(&error.to_string());
            cause = error.source();
        }
        text
    }
}
