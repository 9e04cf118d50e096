//! Makes Leno's own programs executable for all users.
//!
//! The proxy and the controller run as users that often cannot read the directory in which an executable is, for
//! example a home directory. So the executable is mounted over an empty file in the mesh's own directory.

use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::record::make_place;

/// The name of the program that contains all commands.
const OWN: &str = "leno";

/// An executable and its mount point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    found: PathBuf,
    laid: PathBuf,
}

impl Program {
    /// The program of this process. If its file was replaced since the process was started, the new file is used.
    ///
    /// # Errors
    /// The errors of [`prepare`](Self::prepare).
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

    /// Finds the program `name` and creates its mount point.
    ///
    /// # Errors
    /// When it is not found, or when the mount point cannot be created.
    pub fn prepare(layout: &Layout, name: &str) -> Result<Self> {
        let found = find(name).ok_or_else(|| missing(name))?;
        let laid = layout.program(name);
        make_place(&laid)?;
        Ok(Self { found, laid })
    }

    /// The source and the mount point, for an [`Isolation`](crate::isolation::Isolation).
    #[must_use]
    pub fn file(&self) -> (PathBuf, PathBuf) {
        (self.found.clone(), self.laid.clone())
    }

    /// The path of the program inside the isolation.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.laid
    }
}

/// Finds a program of Leno: in the directory of the running program, else in PATH.
#[must_use]
pub fn find(name: &str) -> Option<PathBuf> {
    let beside = std::env::current_exe().ok().and_then(|own| Some(own.parent()?.join(name)));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let listed = std::env::split_paths(&path).map(|directory| directory.join(name));
    beside.into_iter().chain(listed).find(|candidate| candidate.is_file())
}

/// The error for a program of Leno that was not found.
#[must_use]
pub fn missing(name: &str) -> Error {
    Error::Refused(format!(
        "cannot find {name} beside leno or in PATH: install it there, in the same version as leno; \
         `make build` builds both"
    ))
}
