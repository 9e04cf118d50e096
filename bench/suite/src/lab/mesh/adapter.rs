//! The trait that every mesh of the lab implements.

use std::path::PathBuf;
use std::sync::Arc;

use leno_capture::Choice;

use super::certificates::Authority;
use super::hop::{Captured, Configuration, Hop};
use super::linkerd::control::Control;
use crate::scenario::Scenario;
use crate::tools::{self, Missing};

/// One mesh, or none.
pub trait Mesh {
    /// Its name in records.
    fn name(&self) -> &str;

    /// Looks for the mesh's programs.
    ///
    /// # Errors
    /// What is missing, and the command that installs it.
    fn find(&self) -> Result<MeshPrograms, Missing>;

    /// Why the mesh cannot carry a scenario; `None` if it can.
    fn unable(&self, scenario: &Scenario) -> Option<&'static str> {
        let _ = scenario;
        None
    }

    /// How Leno's own proxies are captured; `None` if the lab has none of them.
    fn own(&self) -> Option<Choice> {
        None
    }

    /// What Leno's own proxies observe of requests besides counting them.
    fn observed(&self) -> Observed {
        Observed::Counts
    }

    /// How traffic reaches the proxy beside a workload.
    fn captured(&self, hop: &Hop<'_>) -> Captured {
        let _ = hop;
        Captured::Fully
    }

    /// The stand-in for the mesh's control plane on loopback of a workload, if the mesh needs one.
    fn control(&self, hop: &Hop<'_>, authority: &Arc<Authority>) -> Option<Control> {
        let _ = (hop, authority);
        None
    }

    /// The configuration of the proxy beside one workload; `None` if the lab runs Leno's own
    /// proxies or none.
    fn configure(&self, hop: &Hop<'_>) -> Option<Configuration> {
        let _ = hop;
        None
    }
}

/// What Leno's own proxies observe of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Observed {
    /// They count them, as they always do.
    Counts,
    /// A line for each.
    AccessLog,
    /// Spans of this percentage.
    Traces(u8),
    /// What a tap shows at its highest rate.
    Tap,
}

/// The programs of a mesh.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MeshPrograms {
    /// The proxy; `None` without one.
    pub program: Option<PathBuf>,
    /// The version, as the program prints it.
    pub version: String,
}

impl MeshPrograms {
    /// A proxy whose version this flag prints.
    pub(super) fn of(program: PathBuf, flag: &str) -> Self {
        let version = tools::version(&program, flag);
        Self { program: Some(program), version }
    }
}
