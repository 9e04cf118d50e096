//! The capture backends, and the values by which an operator chooses one.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

/// A method of redirecting a workload's traffic to its proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// Kernel programs on the workload's cgroup and namespace.
    Ebpf,
    /// One nftables table in the workload's namespace.
    Nftables,
    /// Chains of iptables and ip6tables in the workload's namespace.
    Iptables,
}

/// The value of `leno.dev/capture`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CaptureChoice {
    /// The first backend that works, in the order of [`Backend::ALL`].
    #[default]
    Auto,
    /// This backend, or an error.
    Only(Backend),
}

/// A text that names neither a backend nor `auto`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a capture backend: use auto, ebpf, nftables or iptables")]
pub struct UnknownBackend(String);

impl Backend {
    /// All backends, the best first.
    pub const ALL: [Self; 3] = [Self::Ebpf, Self::Nftables, Self::Iptables];

    /// The name in documents and flags.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ebpf => "ebpf",
            Self::Nftables => "nftables",
            Self::Iptables => "iptables",
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Backend {
    type Err = UnknownBackend;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|backend| backend.name() == text);
        found.ok_or_else(|| UnknownBackend(text.to_owned()))
    }
}

impl FromStr for CaptureChoice {
    type Err = UnknownBackend;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "auto" { Ok(Self::Auto) } else { text.parse().map(Self::Only) }
    }
}

impl fmt::Display for CaptureChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.pad("auto"),
            Self::Only(backend) => backend.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for text in ["auto", "ebpf", "nftables", "iptables"] {
            assert_eq!(text.parse::<CaptureChoice>().unwrap().to_string(), text);
        }
        assert!("tproxy".parse::<CaptureChoice>().is_err());
    }
}
