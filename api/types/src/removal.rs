//! The stages of the removal of a mesh.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The stages in which a mesh is removed from running workloads, so that none of their requests fail. Each stage
/// includes those before it, and begins when all proxies have applied the one before.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Removal {
    /// The mesh is not being removed.
    #[default]
    None,
    /// Servers accept plaintext, too, whatever their mTLS mode is.
    Permissive,
    /// Clients connect in plaintext, because a server may no longer be captured.
    Plaintext,
    /// Workloads are no longer captured. Proxies close their clients' connections after the next
    /// response, so that new connections do not pass a proxy.
    Released,
}

/// The text is not a [`Removal`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a step of a removal: use none, permissive, plaintext or released")]
pub struct UnknownRemoval(String);

impl Removal {
    /// All stages, in order.
    pub const ALL: [Self; 4] = [Self::None, Self::Permissive, Self::Plaintext, Self::Released];

    /// The name in YAML and in output.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Permissive => "permissive",
            Self::Plaintext => "plaintext",
            Self::Released => "released",
        }
    }

    /// The position of the stage in the order, for metrics: 0 for none, 3 for the last stage.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }
}

impl fmt::Display for Removal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Removal {
    type Err = UnknownRemoval;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = Self::ALL.into_iter().find(|one| one.as_str() == text);
        known.ok_or_else(|| UnknownRemoval(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_named_and_come_in_an_order() {
        for removal in Removal::ALL {
            assert_eq!(removal.to_string().parse(), Ok(removal));
        }
        assert!(Removal::ALL.is_sorted());
        assert_eq!(Removal::ALL.map(Removal::number), [0, 1, 2, 3]);
        assert!("half".parse::<Removal>().is_err());
    }
}
