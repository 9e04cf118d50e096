//! Why kernel programs could not be loaded, attached or removed.

use std::error::Error as _;
use std::io;

/// Why an operation on kernel programs failed. The cause is the `source`.
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
    /// The name of a workload cannot be the name of a directory in bpffs.
    #[error(
        "{0:?} is not a valid name of a captured workload: use 1 to 200 of a-z, A-Z, 0-9, '-', '_' \
         and '.'"
    )]
    Owner(String),
    /// More excluded prefixes than the kernel map holds.
    #[error("{0} excluded prefixes are too many: the most is {most}", most = leno_bpf_abi::MAX_EXCLUDED)]
    TooManyExcluded(usize),
    /// The size that was requested for a table or a buffer is 0 or above its bound.
    #[error(
        "{wanted} {what} are too {}: they would take {} MB of kernel memory; the most is {most}, which \
         takes {} MB",
        if *wanted == 0 { "few" } else { "many" },
        would_take.div_ceil(1_000_000),
        takes.div_ceil(1_000_000)
    )]
    Size {
        /// Which size: `flows` or `events`.
        what: &'static str,
        /// The requested size.
        wanted: u32,
        /// The bound.
        most: u32,
        /// The memory that the wanted number would take, in bytes.
        would_take: u64,
        /// The memory at the bound, in bytes.
        takes: u64,
    },
    /// The events of flows have one reader.
    #[error(
        "another process already follows these flows: end it, or list the flows without \
         --follow"
    )]
    Followed,
    /// A prefix length that the address family does not have.
    #[error("{0}/{1} is not an address prefix")]
    Prefix(std::net::IpAddr, u8),
}

impl Error {
    /// The reason in one line: the verifier's last words if the kernel's log has any, otherwise the error with its
    /// causes.
    #[must_use]
    pub fn reason(&self) -> String {
        let log = if let Self::Bpf { log, .. } = self { log } else { "" };
        if let Some(line) = last_words(log) {
            return format!("the kernel refuses it: {line}");
        }
        let mut text = self.to_string();
        let mut next = self.source();
        while let Some(cause) = next {
            text += &format!(": {cause}");
            next = cause.source();
        }
        text.replace('\n', " ")
    }

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

/// The last line of a verifier's log that is not a statistic: it says why a program was refused.
fn last_words(log: &str) -> Option<&str> {
    let noise = ["processed ", "libbpf:", "--", "verification time", "stack depth"];
    let says = |line: &&str| !line.is_empty() && !noise.iter().any(|noise| line.starts_with(noise));
    log.lines().map(str::trim).rev().find(says)
}

/// An empty string, or a colon and the text on lines of its own.
fn after_colon(log: &str) -> String {
    if log.is_empty() { String::new() } else { format!(":\n{log}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_is_the_verifiers_last_line() {
        let log = "libbpf: prog 'x': -- BEGIN PROG LOAD LOG --\n0: R1=ctx()\nunknown func \
                   bpf_get_netns_cookie#122\nprocessed 9 insns (limit 1000000) max_states 0\n-- END PROG \
                   LOAD LOG --\nlibbpf: failed to load object";
        assert_eq!(last_words(log), Some("unknown func bpf_get_netns_cookie#122"));
        assert_eq!(last_words("libbpf: failed to load object"), None);
        let error = Error::io("open a map")(io::Error::other("it is gone"));
        assert_eq!(error.reason(), "cannot open a map: it is gone");
    }
}
