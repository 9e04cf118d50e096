//! Why kernel programs could not be loaded, attached or removed.

use std::io;

/// What failed. The cause is the `source`.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An operation on a file, a directory or a mount failed.
    #[error("cannot {action}")]
    Io {
        /// What was tried, as a verb and its object.
        action: String,
        /// Why it failed.
        source: io::Error,
    },
    /// The kernel or libbpf refused.
    #[error("cannot {action}{}", after_colon(log))]
    Bpf {
        /// What was tried, as a verb and its object.
        action: String,
        /// The end of the output of libbpf and the verifier; empty if there was none.
        log: String,
        /// Why it failed.
        source: libbpf_rs::Error,
    },
    /// The name cannot be a directory of bpffs.
    #[error(
        "{0:?} cannot name a captured workload: use 1 to 200 of a-z, A-Z, 0-9, '-', '_' and '.'"
    )]
    Owner(String),
    /// More prefixes than the kernel map holds.
    #[error("{0} excluded prefixes are too many: the most is {most}", most = leno_bpf_abi::MAX_EXCLUDED)]
    TooManyExcluded(usize),
    /// A table or a buffer that is empty or larger than its bound.
    #[error(
        "{wanted} {what} are too {}: they would take {} MB of kernel memory; the most is {most}, which \
         takes {} MB",
        if *wanted == 0 { "few" } else { "many" },
        would_take.div_ceil(1_000_000),
        takes.div_ceil(1_000_000)
    )]
    Size {
        /// What is kept: `flows` or `events`.
        what: &'static str,
        /// How many were asked for.
        wanted: u32,
        /// The bound.
        most: u32,
        /// The memory that the wanted number would take, in bytes.
        would_take: u64,
        /// The memory at the bound, in bytes.
        takes: u64,
    },
    /// The events of flows have one reader.
    #[error("another process follows these flows already: end it, or list them instead")]
    Followed,
    /// A prefix length that the address family does not have.
    #[error("{0}/{1} is not an address prefix")]
    Prefix(std::net::IpAddr, u8),
}

impl Error {
    /// Wraps an I/O error with what was tried.
    pub(crate) fn io(action: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let action = action.into();
        move |source| Self::Io { action, source }
    }

    /// Wraps an error of libbpf with what was tried.
    pub(crate) fn bpf(action: impl Into<String>) -> impl FnOnce(libbpf_rs::Error) -> Self {
        let action = action.into();
        move |source| Self::Bpf { action, log: String::new(), source }
    }
}

/// An empty string, or a colon and the text on lines of its own.
fn after_colon(log: &str) -> String {
    if log.is_empty() { String::new() } else { format!(":\n{log}") }
}
