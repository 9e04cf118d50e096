//! Why a workload could not be captured or released.

use std::io;
use std::time::Duration;

use crate::backend::Backend;

/// What failed. The cause is the `source`.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel programs could not be loaded, attached or removed.
    #[error(transparent)]
    Bpf(#[from] leno_bpf::Error),
    /// A system call on a file, a namespace or a process failed.
    #[error("cannot {action}")]
    Io {
        /// What was tried, as a verb and its object.
        action: String,
        /// The reason for the failure.
        source: io::Error,
    },
    /// A system command ended with an error.
    #[error("{command} failed: {stderr}")]
    Command {
        /// The command line.
        command: String,
        /// Its standard error.
        stderr: String,
    },
    /// A system command did not end in time, and was killed.
    #[error(
        "{command} did not end within {limit:?} and was killed: check whether another program \
         changes the same rules at the same time"
    )]
    CommandTimeout {
        /// The command line.
        command: String,
        /// The time that it had.
        limit: Duration,
    },
    /// The address family does not have this prefix length.
    #[error("{0}/{1} is not an address prefix")]
    Prefix(std::net::IpAddr, u8),
    /// The workload's proxy is configured to carry datagrams, which this backend cannot capture.
    #[error(
        "{0} cannot capture datagrams, which leno.dev/udp requires: set leno.dev/capture: ebpf, or \
         set leno.dev/udp: off and declare no port with appProtocol leno.dev/udp"
    )]
    Datagrams(Backend),
    /// No backend works here, or the requested one does not.
    #[error("cannot capture traffic on this machine: {0}")]
    Unusable(String),
}

impl Error {
    /// Adds a description of the failed operation to an I/O error.
    pub(crate) fn io(action: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let action = action.into();
        move |source| Self::Io { action, source }
    }

    /// The error and its causes on one line, for reports.
    pub(crate) fn chain(&self) -> String {
        chain(self)
    }
}

/// An error and its causes on one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
