//! The meshes of the lab, which a file describes. For Leno's mesh, the lab uses its own proxies. For another mesh, it
//! runs a proxy of that mesh beside each workload. Leno's capture then leads the workload's traffic to this proxy.

pub mod certificates;
pub(crate) mod hop;
pub(crate) mod linkerd;
pub(crate) mod peer;

use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

use anyhow::{Result, anyhow};
use leno_capture::CaptureChoice;
use serde::Deserialize;

use crate::mesh_names::{CLUSTER, NONE};
use crate::scenario::Scenario;
use crate::tools::{self, Missing};

use certificates::Authority;
use hop::{Configuration, Hop};
use linkerd::Control;
use peer::{Exclusion, Peer, parsed};

pub use peer::MeshPrograms;

/// The file of the meshes, built into this program.
static FACTS: LazyLock<Vec<LabMeshFacts>> = LazyLock::new(|| {
    let all = serde_saphyr::from_str(include_str!("../../data/lab.yaml"));
    all.expect("a test reads the built-in file")
});

/// What the file of the meshes says about a mesh.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LabMeshFacts {
    name: String,
    about: String,
    /// How the lab runs Leno's own proxies.
    own: Option<LenoProxies>,
    /// The proxy that runs beside each workload; `None` if `leno up` runs the proxies.
    peer: Option<Peer>,
    /// The scenarios that the mesh cannot carry.
    #[serde(default)]
    unable: Vec<Exclusion>,
}

/// How the lab runs Leno's own proxies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LenoProxies {
    /// How the proxies capture traffic.
    #[serde(deserialize_with = "parsed")]
    pub capture: CaptureChoice,
    /// What the proxies observe of requests.
    pub observed: Observed,
    /// Which workloads share a process in node mode; `None` for sidecars.
    pub share: Option<Share>,
}

/// Which workloads share the process of their proxies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Share {
    /// All workloads of the machine.
    Node,
    /// The workloads of a service account.
    ServiceAccount,
}

impl Share {
    /// Returns the value of `leno.dev/share` for a revision of the configuration. Odd revisions have another value than
    /// even ones, but both values group the same workloads. So each revision makes new processes take over from the
    /// running ones, as in an update.
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Observed {
    /// Only metrics, which proxies always record.
    #[default]
    Counts,
    /// A line of the access log for each request.
    AccessLog,
    /// Spans for this percentage of the requests.
    Traces(u8),
    /// The requests themselves, as a tap shows them. It shows as many requests as possible.
    Tap,
}

/// The user's choices about meshes.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct Choices {
    /// Binary of Envoy [default: the installed one]
    #[arg(long, value_name = "PATH")]
    pub envoy: Option<PathBuf>,

    /// Binary of ztunnel, built with its feature `testing`
    #[arg(long, value_name = "PATH")]
    pub ztunnel: Option<PathBuf>,

    /// Binary of linkerd2-proxy
    #[arg(long, value_name = "PATH")]
    pub linkerd2_proxy: Option<PathBuf>,

    /// An earlier build of leno-proxy, for the mesh "before"
    #[arg(long, value_name = "PATH")]
    pub before: Option<PathBuf>,
}

/// A mesh, or no mesh.
#[derive(Debug)]
pub struct Mesh {
    facts: &'static LabMeshFacts,
    given: Option<PathBuf>,
}

/// The names of all meshes of the lab.
pub fn names() -> impl Iterator<Item = &'static str> {
    FACTS.iter().map(|one| &*one.name)
}

/// Looks up a mesh by its name.
///
/// # Errors
/// If no mesh has this name; the error lists the names.
pub fn named(name: &str, choices: &Choices) -> Result<Mesh> {
    let given = match name {
        "before" => &choices.before,
        "envoy" => &choices.envoy,
        "linkerd2-proxy" => &choices.linkerd2_proxy,
        "ztunnel" => &choices.ztunnel,
        _ => &None,
    };
    let facts = FACTS.iter().find(|one| one.name == name).ok_or_else(|| {
        let is_clustered = CLUSTER.contains(&name);
        let why = if is_clustered { "is measured in a cluster (--context)" } else { "is unknown" };
        let known = names().collect::<Vec<_>>().join(", ");
        anyhow!("mesh {name:?} {why}: in the lab of one machine, use one of {known}")
    })?;
    Ok(Mesh { facts, given: given.clone() })
}

impl Mesh {
    /// The name of the mesh in records.
    pub fn name(&self) -> &'static str {
        &self.facts.name
    }

    /// A description in one line.
    pub fn about(&self) -> &'static str {
        &self.facts.about
    }

    /// How the lab runs Leno's own proxies; `None` if the mesh has none of them.
    pub fn own(&self) -> Option<LenoProxies> {
        self.facts.own
    }

    /// Looks for the mesh's programs.
    ///
    /// # Errors
    /// What is missing, and the command that installs it.
    pub fn find(&self) -> Result<MeshPrograms, Missing> {
        if let Some(peer) = &self.facts.peer {
            return peer.find((self.name(), self.given.as_deref()));
        }
        if self.own().is_none() {
            return Ok(MeshPrograms::default());
        }
        let find = |name: &str| {
            let found = leno_local::program::find(name);
            found.ok_or_else(|| Missing::new(name, "make build"))
        };
        find("leno-controller")?;
        find("leno-broker")?;
        let program = find("leno-proxy")?;
        let version = tools::version(&program, "--version");
        Ok(MeshPrograms { program: Some(program), version })
    }

    /// Why the mesh cannot carry a scenario; `None` if it can.
    pub fn unable(&self, scenario: &Scenario) -> Option<&'static str> {
        let is_handed_over = self.name() == NONE || self.own().is_some();
        if scenario.upgrades() && !is_handed_over {
            return Some("its proxies cannot hand over to others while they serve");
        }
        self.facts.unable.iter().find_map(|one| one.why(scenario))
    }

    /// Returns the port on which other proxies connect to the proxy beside an application; `None` if that proxy
    /// captures all connections.
    pub(crate) fn dialled_port(&self, hop: &Hop) -> Option<u16> {
        hop.application.and(self.facts.peer.as_ref()?.port)
    }

    /// Returns the stand-in for the control plane of the mesh, on the loopback of a workload, if the mesh needs one.
    pub(crate) fn control(&self, hop: &Hop, authority: &Arc<Authority>) -> Option<Control> {
        let is_needed = self.facts.peer.as_ref().is_some_and(|peer| peer.control);
        is_needed.then(|| Control::new(hop, authority.clone()))
    }

    /// Returns the configuration of the proxy of a hop; `None` if the lab runs Leno's own proxies or none.
    pub(crate) fn configure(&self, hop: &Hop) -> Option<Configuration> {
        // If there is only one proxy between client and server, there is no mesh. Leno's proxy then reads its
        // configuration from a file, like the proxies of other meshes.
        let is_alone = hop.listen.is_some() && self.own().is_some();
        let alone = || FACTS.iter().find(|one| is_alone && one.name == "leno-proxy");
        let peer = self.facts.peer.as_ref().or_else(|| alone()?.peer.as_ref())?;
        Some(peer.configure(hop))
    }
}

#[cfg(test)]
mod tests;
