//! Addresses of the SPIFFE Workload API.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The longest path of a Unix socket in bytes (unix(7)).
const MAX_PATH: usize = 107;

/// Where a SPIFFE Workload API listens: a Unix socket, `unix:///run/spire/agent.sock` (SPIFFE Workload Endpoint,
/// section 4). Its server learns from the kernel which process calls, which is not possible with TCP.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WorkloadApiAddress(PathBuf);

/// Why a text is not such an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not the address of a Workload API: use unix:///PATH of a socket, for example unix:///run/spire/agent.sock"
)]
pub struct NoWorkloadApiAddress(String);

impl WorkloadApiAddress {
    /// The path of the socket.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl FromStr for WorkloadApiAddress {
    type Err = NoWorkloadApiAddress;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let no = || NoWorkloadApiAddress(text.to_owned());
        // `unix:/path` has no authority, and `unix:///path` has an empty one.
        let path = text.strip_prefix("unix:").ok_or_else(no)?;
        let path = path.strip_prefix("//").unwrap_or(path);
        let is_whole = path.starts_with('/') && !path.starts_with("//") && !path.ends_with('/');
        // Queries and fragments are not allowed, and neither are control characters, because they would be written to
        // logs.
        let is_plain = !path.contains(['?', '#']) && !path.contains(char::is_control);
        if !is_whole || !is_plain || path.len() > MAX_PATH {
            return Err(no());
        }
        Ok(Self(path.into()))
    }
}

impl fmt::Display for WorkloadApiAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unix://{}", self.0.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_the_absolute_path_of_a_unix_socket() {
        for text in ["unix:///run/a.sock", "unix:/run/a.sock"] {
            let address: WorkloadApiAddress = text.parse().unwrap();
            assert_eq!(address.path(), Path::new("/run/a.sock"));
            assert_eq!(address.to_string(), "unix:///run/a.sock");
        }
        let long = format!("unix:///{}", "a".repeat(MAX_PATH));
        for text in [
            "",
            "/run/a.sock",
            "unix:a",
            "unix://host/a",
            "unix:////a",
            "unix:///",
            "unix:///a?b",
            "unix:///a#b",
            "unix:///a\n",
            "tcp://127.0.0.1:80",
            &long,
        ] {
            assert!(text.parse::<WorkloadApiAddress>().is_err(), "{text:?}");
        }
    }
}
