//! The source of flow metrics, as documents and flags set it.

use std::fmt;
use std::str::FromStr;

/// The value of `leno.dev/flow-metrics`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum FlowMetricsSource {
    /// The kernel's own counters of sockets. No program runs per packet.
    #[default]
    Sockets,
    /// The frames on its interface. They include UDP, ICMP, and packets that programs send without a socket.
    Packets,
    /// As [`FlowMetricsSource::Packets`], and in addition requests, which are read from samples of unencrypted
    /// payload. For a workload with a proxy there is no difference between the two, because the proxy counts its
    /// requests.
    Requests,
    /// No source: the workload is not accounted for.
    Off,
}

/// The error for a text that is not a [`FlowMetricsSource`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownFlowMetricsSource(String);

impl FlowMetricsSource {
    /// All sources, in the order of their cost.
    pub const ALL: [Self; 4] = [Self::Off, Self::Sockets, Self::Packets, Self::Requests];

    /// Whether frames are counted.
    pub(crate) fn has_frames(self) -> bool {
        matches!(self, Self::Packets | Self::Requests)
    }

    /// The name in documents and flags.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Sockets => "sockets",
            Self::Packets => "packets",
            Self::Requests => "requests",
            Self::Off => "off",
        }
    }
}

impl fmt::Display for FlowMetricsSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for FlowMetricsSource {
    type Err = UnknownFlowMetricsSource;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|source| source.name() == text);
        found.ok_or_else(|| UnknownFlowMetricsSource(text.to_owned()))
    }
}

impl fmt::Display for UnknownFlowMetricsSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} is not a source of flow metrics: use sockets, packets, requests or off",
            self.0
        )
    }
}

impl std::error::Error for UnknownFlowMetricsSource {}
