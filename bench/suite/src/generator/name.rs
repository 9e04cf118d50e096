//! The names of the load generators, and the type of the place where they run.

use std::fmt;
use std::path::Path;
use std::process::Command;
use std::str::FromStr;

use anyhow::{Result, anyhow};

/// Makes a command that runs a program in the place from which the load comes, for example in a workload of a lab.
pub type Client<'a> = &'a (dyn Fn(&Path) -> Result<Command> + Sync);

/// A generator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Generator {
    /// Leno's own generator.
    #[default]
    Leno,
    /// Fortio, Istio's load generator: open loop, HTTP/1.1.
    Fortio,
    /// h2load of nghttp2: HTTP/2 and gRPC.
    H2load,
    /// wrk: closed loop, HTTP/1.1.
    Wrk,
}

impl Generator {
    /// All generators, Leno's own first.
    pub const ALL: [Self; 4] = [Self::Leno, Self::Fortio, Self::H2load, Self::Wrk];

    /// The name of the generator.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Leno => "leno",
            Self::Fortio => "fortio",
            Self::H2load => "h2load",
            Self::Wrk => "wrk",
        }
    }
}

impl fmt::Display for Generator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Generator {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|generator| generator.name() == text);
        found.ok_or_else(|| {
            anyhow!(
                "{text:?} is not a load generator: use leno, fortio, h2load or \
                 wrk"
            )
        })
    }
}
