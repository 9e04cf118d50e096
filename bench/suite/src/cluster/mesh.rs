//! The meshes of a cluster: their labels and annotations, the objects that belong to them, and
//! their installers.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::LazyLock;

use anyhow::{Result, anyhow};
use leno_operate::ObjectReference;
use serde::{Deserialize, Serialize};

use super::names::RUN;
use crate::lab::mesh::peer::Exclusion;
use crate::measurement::usage::Role;
use crate::mesh_names::CLUSTER;
use crate::scenario::Scenario;
use crate::tools::{Missing, Tool};

/// A mesh of a cluster, or no mesh, in the order of [`CLUSTER`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mesh {
    /// No proxy.
    None,
    /// Leno: strict mTLS, a proxy in each pod.
    Leno,
    /// Leno: strict mTLS, a proxy on each node.
    LenoNode,
    /// Leno: strict mTLS, a proxy for each service account of a node.
    LenoShared,
    /// Istio: a sidecar in each pod.
    Istio,
    /// Istio: a proxy on each node.
    IstioAmbient,
    /// Linkerd: a sidecar in each pod.
    Linkerd,
}

/// What the file of the meshes says about a mesh.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct MeshFacts {
    about: String,
    /// Another project's program that installs and removes the mesh; `None` if this program does.
    pub(super) tool: Option<Tool>,
    /// The label of a namespace that is part of the mesh.
    pub(super) label: Option<(String, String)>,
    /// The annotations of a namespace that is part of the mesh.
    pub(super) annotations: BTreeMap<String, String>,
    /// The container that the mesh adds to pods; `None` if its proxies run elsewhere.
    pub(super) proxy: Option<String>,
    /// The annotation of a pod whose traffic the proxies of its node carry.
    pub(super) carried: Option<(String, String)>,
    /// Label selectors of the pods that the mesh runs on nodes, in all namespaces.
    pub(super) on_nodes: Vec<String>,
    /// Whether the mesh has a pod on every node, for which its installation waits.
    pub(super) is_on_every_node: bool,
    /// The namespace into which this suite installs the mesh.
    pub(super) namespace: Option<String>,
    /// The label selector of the control plane's Deployments; the mesh can be used when all of them
    /// are ready.
    pub(super) control: Option<String>,
    /// How the names of the mesh's CustomResourceDefinitions end.
    group: String,
    /// How the names of its other objects begin.
    objects: Vec<String>,
    /// The `ConfigMap`s that it creates in every namespace.
    roots: Vec<String>,
    /// How the names of its proxies on nodes and of its agents begin. All other pods belong to its control plane.
    node_proxies: Vec<String>,
    agents: Vec<String>,
    /// The scenarios that the mesh cannot carry.
    unable: Vec<Exclusion>,
}

/// The file of the meshes, built into this program.
static FACTS: LazyLock<BTreeMap<String, MeshFacts>> = LazyLock::new(|| {
    let all = serde_saphyr::from_str(include_str!("../../data/meshes.yaml"));
    all.expect("a test reads the built-in file")
});

impl Mesh {
    /// All meshes, `None` first.
    pub const ALL: [Self; 7] = [
        Self::None,
        Self::Leno,
        Self::LenoNode,
        Self::LenoShared,
        Self::Istio,
        Self::IstioAmbient,
        Self::Linkerd,
    ];

    /// Looks up a mesh by its name.
    ///
    /// # Errors
    /// If a cluster has no mesh of this name; the error lists the names.
    pub fn named(name: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|mesh| mesh.name() == name);
        found.ok_or_else(|| {
            let known = Self::ALL.map(Self::name).join(", ");
            anyhow!(
                "mesh {name:?} cannot be measured in a cluster: use one of {known}; others are \
                 measured only in the lab of one machine"
            )
        })
    }

    /// The name of the mesh in records.
    pub const fn name(self) -> &'static str {
        CLUSTER[self as usize]
    }

    /// Whether this is Leno, with sidecars or in node mode: these differ in the namespaces of workloads alone, and not
    /// in what is installed.
    pub const fn is_leno(self) -> bool {
        matches!(self, Self::Leno | Self::LenoNode | Self::LenoShared)
    }

    /// A description in one line.
    pub fn about(self) -> &'static str {
        &self.facts().about
    }

    /// Looks for the mesh's installer; `None` if this program installs it.
    ///
    /// # Errors
    /// The missing program, and the command that installs it.
    pub fn find(self) -> Result<Option<PathBuf>, Missing> {
        self.facts().tool.as_ref().map(|tool| tool.find((self.name(), None))).transpose()
    }

    pub(super) fn facts(self) -> &'static MeshFacts {
        FACTS.get(self.name()).expect("a test reads the facts of every mesh")
    }

    /// Why the mesh cannot carry a scenario in a cluster; `None` if it can.
    pub fn unable(self, scenario: &Scenario) -> Option<&'static str> {
        if scenario.is_of_the_lab() {
            return Some("it is measured in the lab of one machine alone");
        }
        self.facts().unable.iter().find_map(|one| one.why(scenario))
    }

    /// Whether an object was created by the mesh's installation. Such objects must not exist
    /// before, and are removed after.
    pub(super) fn owns(self, object: &ObjectReference) -> bool {
        let name = object.name.as_str();
        if name == RUN {
            // The ClusterRole of the suite itself: users of the bench get it as the guide says.
            return false;
        }
        let facts = self.facts();
        match object.kind.as_str() {
            "Namespace" => facts.namespace.as_deref() == Some(name),
            "CustomResourceDefinition" => !facts.group.is_empty() && name.ends_with(&facts.group),
            "ConfigMap" => facts.roots.iter().any(|root| root == name),
            _ => facts.objects.iter().any(|beginning| name.starts_with(beginning)),
        }
    }

    /// Whether a proxy serves several pods of a node.
    pub(super) fn shares_proxies(self) -> bool {
        !self.facts().node_proxies.is_empty()
    }

    pub(super) fn role_of(self, pod: &str) -> Role {
        let begins = |all: &[String]| all.iter().any(|one| pod.starts_with(one));
        match self.facts() {
            facts if begins(&facts.node_proxies) => Role::Proxy,
            facts if begins(&facts.agents) => Role::Agent,
            _ => Role::Control,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(kind: &str, name: &str) -> ObjectReference {
        let (group, version) = (String::new(), "v1".to_owned());
        ObjectReference { group, version, kind: kind.into(), namespace: None, name: name.into() }
    }

    #[test]
    fn every_mesh_is_found_by_its_name() {
        for mesh in Mesh::ALL {
            assert_eq!(Mesh::named(mesh.name()).unwrap(), mesh);
        }
        assert_eq!(Mesh::Leno.facts().namespace.as_deref(), Some(leno_charts::NAMESPACE));
        let lab = Mesh::named("haproxy").unwrap_err().to_string();
        assert!(lab.contains("only in the lab of one machine") && lab.contains("linkerd"), "{lab}");
    }

    #[test]
    fn objects_of_a_mesh_are_told_from_those_of_others() {
        for (mesh, kind, name) in [
            (Mesh::Leno, "ClusterRole", "leno-agent"),
            (Mesh::Leno, "Namespace", "leno-system"),
            (Mesh::LenoNode, "ClusterRole", "leno-agent"),
            (Mesh::Leno, "CustomResourceDefinition", "trafficpolicies.leno.dev"),
            (Mesh::Istio, "MutatingWebhookConfiguration", "istio-sidecar-injector"),
            (Mesh::IstioAmbient, "ClusterRole", "ztunnel"),
            (Mesh::IstioAmbient, "ConfigMap", "istio-ca-root-cert"),
            (Mesh::Linkerd, "ClusterRoleBinding", "linkerd-destination"),
            (Mesh::Linkerd, "CustomResourceDefinition", "servers.policy.linkerd.io"),
        ] {
            assert!(mesh.owns(&object(kind, name)), "{kind} {name}");
            assert!(!Mesh::None.owns(&object(kind, name)));
        }
        for (mesh, kind, name) in [
            (Mesh::Leno, "Namespace", "leno-bench-1"),
            (Mesh::Leno, "ClusterRole", "admin"),
            (Mesh::Leno, "ClusterRole", "leno-bench"),
            (Mesh::Leno, "ClusterRoleBinding", "leno-bench"),
            (Mesh::Linkerd, "CustomResourceDefinition", "httproutes.gateway.networking.k8s.io"),
            (Mesh::Istio, "Namespace", "istio-ingress"),
            (Mesh::Istio, "ConfigMap", "istio"),
        ] {
            assert!(!mesh.owns(&object(kind, name)), "{kind} {name}");
        }
    }

    #[test]
    fn scenarios_that_a_mesh_cannot_carry_are_refused() {
        let unable = |mesh: Mesh| -> Vec<String> {
            let all = crate::scenario::all().unwrap().into_iter();
            all.filter(|one| !one.is_of_the_lab() && mesh.unable(one).is_some())
                .map(|one| one.name)
                .collect()
        };
        for mesh in [Mesh::None, Mesh::Leno, Mesh::LenoNode, Mesh::Istio, Mesh::Linkerd] {
            assert_eq!(unable(mesh), [""; 0], "{mesh:?}");
        }
        assert_eq!(unable(Mesh::IstioAmbient), ["churn", "push"]);
    }
}
