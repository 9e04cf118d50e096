//! Where flows are read, as documents and flags choose it.

use std::fmt;
use std::str::FromStr;

/// The value of `leno.dev/flow-metrics`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Source {
    /// From the kernel's own counters of sockets: nothing runs per packet.
    #[default]
    Sockets,
    /// From the frames of its interface: also UDP, ICMP, and what programs without a socket send.
    Packets,
    /// Nowhere: the workload is not accounted for.
    Off,
}

/// A text that is no [`Source`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownSource(String);

impl Source {
    /// The name in documents and flags.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Sockets => "sockets",
            Self::Packets => "packets",
            Self::Off => "off",
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Source {
    type Err = UnknownSource;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = [Self::Sockets, Self::Packets, Self::Off]
            .into_iter()
            .find(|source| source.name() == text);
        found.ok_or_else(|| UnknownSource(text.to_owned()))
    }
}

impl fmt::Display for UnknownSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is no source of flow metrics: use sockets, packets or off", self.0)
    }
}

impl std::error::Error for UnknownSource {}
