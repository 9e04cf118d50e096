//! Whether a workload may connect to destinations that the mesh does not know.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// What happens to a workload's connections to addresses that belong to no service and no workload
/// of the mesh.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Egress {
    /// Such connections are relayed unchanged.
    #[default]
    Allow,
    /// Such connections are refused.
    Deny,
}

/// The text is not an [`Egress`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an egress setting: use allow or deny")]
pub struct UnknownEgress(String);

impl Egress {
    /// The name in YAML and in output.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
        }
    }
}

impl fmt::Display for Egress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Egress {
    type Err = UnknownEgress;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = [Self::Allow, Self::Deny].into_iter().find(|one| one.as_str() == text);
        known.ok_or_else(|| UnknownEgress(text.to_owned()))
    }
}
