//! Leno's own programs, run from where every user can reach them.
//!
//! A build or a home directory is often closed to others, and the proxy and the controller run
//! without the privilege to look into it. So an instance sees the executable laid over an empty
//! file below the mesh's own directory.

use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::record::make_place;

/// The name of the program with all commands.
const OWN: &str = "leno";

/// An executable and where it is laid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    found: PathBuf,
    laid: PathBuf,
}

impl Program {
    /// This program itself, and the place where it is laid. Where its file was replaced meanwhile, it is the
    /// one that has taken its place.
    ///
    /// # Errors
    /// As [`prepare`](Self::prepare).
    pub fn own(layout: &Layout) -> Result<Self> {
        match std::env::current_exe().ok().filter(|own| own.is_file()) {
            None => Self::prepare(layout, OWN),
            Some(found) => {
                let laid = layout.program(OWN);
                make_place(&laid)?;
                Ok(Self { found, laid })
            }
        }
    }

    /// Finds the program `name` and makes the place where it is laid.
    ///
    /// # Errors
    /// When it is not found, or the place cannot be made.
    pub fn prepare(layout: &Layout, name: &str) -> Result<Self> {
        let found = find(name).ok_or_else(|| missing(name))?;
        let laid = layout.program(name);
        make_place(&laid)?;
        Ok(Self { found, laid })
    }

    /// What is laid over what, for an [`Isolation`](crate::isolation::Isolation).
    #[must_use]
    pub fn file(&self) -> (PathBuf, PathBuf) {
        (self.found.clone(), self.laid.clone())
    }

    /// The path to run it by, inside of the isolation.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.laid
    }
}

/// Looks for a program of Leno's: beside the running one, else in PATH.
#[must_use]
pub fn find(name: &str) -> Option<PathBuf> {
    let beside = std::env::current_exe().ok().and_then(|own| Some(own.parent()?.join(name)));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let listed = std::env::split_paths(&path).map(|directory| directory.join(name));
    beside.into_iter().chain(listed).find(|candidate| candidate.is_file())
}

/// The error for a program of Leno's that was not found.
#[must_use]
pub fn missing(name: &str) -> Error {
    Error::Refused(format!(
        "cannot find {name} beside leno or in PATH: put it there, of the version of leno; `make build` makes \
         both"
    ))
}
