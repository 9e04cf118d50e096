//! Whether a workload accepts plaintext.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// How a workload's inbound side treats connections without a mesh identity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MtlsMode {
    /// Such connections are refused: only mTLS with an identity that the trust bundle certifies is accepted.
    Strict,
    /// Such connections are accepted, and so is mTLS, which is used if both ends are meshed.
    #[default]
    Permissive,
    /// Such connections are accepted, and mTLS is not used at all, not even between meshed workloads.
    Disabled,
}

/// The text is not an [`MtlsMode`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an mTLS mode: use strict, permissive or disabled")]
pub struct UnknownMtlsMode(String);

impl MtlsMode {
    /// The name in YAML, in messages and in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Strict => "strict",
            Self::Permissive => "permissive",
            Self::Disabled => "disabled",
        }
    }

    /// The stricter of two modes. `Strict` is the strictest, `Disabled` the least strict, because it has no mTLS at
    /// all.
    #[must_use]
    pub fn stricter(self, other: Self) -> Self {
        let rank = |mode| match mode {
            Self::Strict => 0,
            Self::Permissive => 1,
            Self::Disabled => 2,
        };
        if rank(self) <= rank(other) { self } else { other }
    }
}

impl fmt::Display for MtlsMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for MtlsMode {
    type Err = UnknownMtlsMode;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        [Self::Strict, Self::Permissive, Self::Disabled]
            .into_iter()
            .find(|mode| mode.as_str() == text)
            .ok_or_else(|| UnknownMtlsMode(text.to_owned()))
    }
}
