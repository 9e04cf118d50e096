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

    /// How the lab runs Leno's own proxies; `None` if it has none of them.
    fn own(&self) -> Option<Own> {
        None
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

/// How the lab runs Leno's own proxies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Own {
    /// How they capture traffic.
    pub capture: Choice,
    /// What they observe of requests.
    pub observed: Observed,
    /// Node mode, and which workloads share a process; `None` for sidecars.
    pub share: Option<Share>,
}

/// Which workloads share the process of their proxies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// All of the machine.
    Node,
    /// Those of a service account.
    ServiceAccount,
}

impl Share {
    /// The value of `leno.dev/share` in a revision. An odd one groups the same workloads under another name, so that other
    /// processes take over from those that run, as an update has them do.
    #[must_use]
    pub fn name(self, revision: u64) -> &'static str {
        match (self, revision % 2) {
            (Self::Node, 0) => "node",
            (Self::Node, _) => "namespace",
            (Self::ServiceAccount, 0) => "service-account",
            (Self::ServiceAccount, _) => "workload",
        }
    }
}

/// What Leno's own proxies observe of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Observed {
    /// They count them, as they always do.
    #[default]
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
