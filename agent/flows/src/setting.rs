//! Where flows are read, as documents and flags choose it.

use std::fmt;
use std::str::FromStr;

/// The value of `leno.dev/flow-metrics`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum FlowMetricsSource {
    /// From the kernel's own counters of sockets: nothing runs per packet.
    #[default]
    Sockets,
    /// From the frames of its interface: also UDP, ICMP, and what programs without a socket send.
    Packets,
    /// From frames as well, and payload is sampled, from which requests of plain traffic are read. Of a workload with a proxy
    /// the same as [`FlowMetricsSource::Packets`]: its requests come from that.
    Requests,
    /// Nowhere: the workload is not accounted for.
    Off,
}

/// A text that is no [`FlowMetricsSource`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownFlowMetricsSource(String);

impl FlowMetricsSource {
    /// All, in the order of what they cost.
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
            "{:?} is no source of flow metrics: use sockets, packets, requests or off",
            self.0
        )
    }
}

impl std::error::Error for UnknownFlowMetricsSource {}
