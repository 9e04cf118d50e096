//! Which datagrams of a workload its proxy carries.

use std::fmt;
use std::str::FromStr;

/// The value of `leno.dev/udp`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Datagrams {
    /// None: UDP bypasses the proxy.
    #[default]
    Off,
    /// All except DNS.
    Enabled,
    /// All datagrams.
    All,
}

/// The text is not a value of `leno.dev/udp`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a setting for datagrams: use off, enabled or all")]
pub struct UnknownDatagrams(String);

impl Datagrams {
    /// The name in documents.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Enabled => "enabled",
            Self::All => "all",
        }
    }

    /// Whether the proxy carries any datagrams.
    #[must_use]
    pub const fn is_on(self) -> bool {
        !matches!(self, Self::Off)
    }
}

impl fmt::Display for Datagrams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Datagrams {
    type Err = UnknownDatagrams;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let all = [Self::Off, Self::Enabled, Self::All];
        let found = all.into_iter().find(|one| one.as_str() == text);
        found.ok_or_else(|| UnknownDatagrams(text.to_owned()))
    }
}
