//! The cluster of a measurement. Records of a cluster and of a lab are never compared without a
//! note.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::machine::{Machine, in_words, unequal};
use crate::real_application::images::Images;

/// The properties of a cluster that affect figures.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cluster {
    /// The context of the kubeconfig.
    pub context: String,
    /// The UID of the cluster's namespace `kube-system`, which is unique.
    pub uid: String,
    /// The API server's version.
    pub server_version: String,
    /// The nodes that accept pods, or the first of them if there are many. The client runs on the first.
    pub nodes: Vec<Node>,
    /// The image of the client and of the suite's services.
    pub image: String,
    /// The images of the real application, if it replaces the suite's own services.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub application: Option<Images>,
    /// Whether the mesh was installed before the run. Then others may use it, too.
    pub found: bool,
    /// The values with which the mesh was installed, `NAME=VALUE`; empty for its defaults.
    pub told: Vec<String>,
    /// Meshes that were installed before the run.
    pub beside: Vec<String>,
    /// The node of each workload.
    pub placement: BTreeMap<String, String>,
}

/// A node, as its kubelet reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Node {
    /// The node's name.
    pub name: String,
    /// The release of the node's kernel.
    pub kernel: String,
    /// The node's operating system.
    pub system: String,
    /// The node's container runtime, with its version.
    pub runtime: String,
    /// The version of the node's kubelet.
    pub kubelet: String,
    /// The architecture of the node's processors.
    pub architecture: String,
    /// The number of the node's processors.
    pub cpus: usize,
    /// The node's memory in MiB.
    pub memory_mib: u64,
}

impl Cluster {
    /// All nodes as one machine: each kernel and architecture once, processors and memory added up.
    pub fn machine(&self) -> Machine {
        let each = |of: fn(&Node) -> &str| {
            let mut all: Vec<&str> = self.nodes.iter().map(of).collect();
            all.sort_unstable();
            all.dedup();
            all.join(", ")
        };
        Machine {
            kernel: each(|node| &node.kernel),
            architecture: each(|node| &node.architecture),
            cpu: String::new(),
            cpus: self.nodes.iter().map(|node| node.cpus).sum(),
            memory_mib: self.nodes.iter().map(|node| node.memory_mib).sum(),
        }
    }

    /// The context and the UID. The latter distinguishes clusters of the same name.
    pub fn called(&self) -> String {
        format!("{} (UID {})", self.context, self.uid)
    }

    /// A description in one line.
    pub fn line(&self) -> String {
        let machine = self.machine();
        format!(
            "cluster {}, Kubernetes {}, {} nodes: {} processors, {} MiB, Linux {}",
            self.context,
            self.server_version,
            self.nodes.len(),
            machine.cpus,
            machine.memory_mib,
            machine.kernel
        )
    }
}

/// The differences between the places of two records in words, without those of their machines; empty if there are
/// none. `None` is the lab of one machine.
pub fn differences(one: Option<&Cluster>, two: Option<&Cluster>) -> Vec<String> {
    let (one, two) = match (one, two) {
        (None, None) => return Vec::new(),
        (Some(one), Some(two)) => (one, two),
        (Some(cluster), None) | (None, Some(cluster)) => {
            let context = &cluster.context;
            return vec![format!(
                "the lab of one machine and cluster {context}: other networks, other meters of CPU and memory"
            )];
        }
    };
    let of = |cluster: &Cluster| {
        let node = |node: &Node| format!("{} ({}, {})", node.name, node.kubelet, node.runtime);
        let beside = cluster.beside.join(", ");
        [
            // Two contexts may be names of the same cluster.
            ("cluster", if one.uid == two.uid { String::new() } else { cluster.called() }),
            ("Kubernetes", cluster.server_version.clone()),
            ("nodes", cluster.nodes.iter().map(node).collect::<Vec<_>>().join(", ")),
            ("image", cluster.image.clone()),
            ("meshes that were there", if beside.is_empty() { "none".to_owned() } else { beside }),
        ]
    };
    in_words(unequal(of(one), of(two)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster() -> Cluster {
        let node = |name: &str| Node {
            name: name.into(),
            kernel: "6.1".into(),
            cpus: 4,
            memory_mib: 1024,
            ..Node::default()
        };
        Cluster { context: "c".into(), nodes: vec![node("a"), node("b")], ..Cluster::default() }
    }

    #[test]
    fn a_lab_and_a_cluster_are_never_the_same_place() {
        let (one, mut two) = (cluster(), cluster());
        assert_eq!(differences(None, None), [""; 0]);
        assert_eq!(differences(Some(&one), Some(&two)), [""; 0]);
        assert!(differences(None, Some(&one))[0].contains("the lab of one machine and cluster c"));
        two.context = "another name of it".into();
        assert_eq!(differences(Some(&one), Some(&two)), [""; 0]);
        two.uid = "u2".into();
        two.server_version = "v1.34.0".into();
        two.nodes.pop();
        two.beside = vec!["linkerd".into()];
        let said = differences(Some(&one), Some(&two)).join("\n");
        for word in [
            "cluster: c (UID ) and another name of it (UID u2)",
            "Kubernetes:  and v1.34.0",
            "nodes: a",
            "meshes that were there: none and linkerd",
        ] {
            assert!(said.contains(word), "{word} is not in {said}");
        }
    }

    #[test]
    fn nodes_add_up_to_one_machine() {
        let machine = cluster().machine();
        assert_eq!((machine.cpus, machine.memory_mib, &*machine.kernel), (8, 2048, "6.1"));
    }
}
