//! The watcher pods, one on each node.
//!
//! They can see, inspect and kill the processes of their node, and are not part of any mesh.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::plan::Plan;
use crate::cluster::mesh::Mesh;
use crate::cluster::names::CONTAINER;
use crate::node_watcher;

/// The label by which a pod declines Leno's proxy.
const DECLINES: (&str, &str) = ("leno.dev/inject", "disabled");
/// The prefix of their names, which no workload has.
const BEGINNING: &str = "watch-";

/// Whether a pod of the bench is a watcher.
pub(in crate::cluster) fn is_watcher(pod: &str) -> bool {
    pod.starts_with(BEGINNING)
}

/// The names of the watcher pods, by node.
pub(in crate::cluster) fn watchers<'a>(
    nodes: impl IntoIterator<Item = &'a String>,
) -> BTreeMap<String, String> {
    let nodes = nodes.into_iter().enumerate();
    nodes.map(|(nth, node)| (node.clone(), format!("{BEGINNING}{nth}"))).collect()
}

impl Plan<'_> {
    /// The watchers, each with its account, after what lets them decline a proxy.
    pub(in crate::cluster) fn watchers(&self, watchers: &BTreeMap<String, String>) -> Vec<Value> {
        let both =
            |(node, name): (&String, &String)| [self.account(name), self.watcher(name, node)];
        let exemption = (self.mesh == Mesh::Leno).then(|| self.exemption());
        exemption.into_iter().chain(watchers.iter().flat_map(both)).collect()
    }

    /// Leno's namespaces decide whether their pods may decline.
    fn exemption(&self) -> Value {
        let selector = json!({"matchLabels": {DECLINES.0: DECLINES.1}});
        json!({"apiVersion": "leno.dev/v1alpha1", "kind": "PodExemption",
            "metadata": {"name": "watchers", "namespace": self.namespace},
            "spec": {"selector": selector, "settings": ["inject"]}})
    }

    fn watcher(&self, name: &str, node: &str) -> Value {
        let mut metadata = self.metadata(name);
        // Labels and annotations by which each mesh leaves a pod alone.
        for label in
            [DECLINES, ("sidecar.istio.io/inject", "false"), ("istio.io/dataplane-mode", "none")]
        {
            metadata["labels"][label.0] = json!(label.1);
        }
        metadata["annotations"] = json!({"linkerd.io/inject": "disabled"});
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata,
        "spec": {
            "serviceAccountName": name,
            "automountServiceAccountToken": false,
            // Nodes of a control plane accept no pods without a toleration.
            "nodeName": node,
            "tolerations": [{"operator": "Exists"}],
            "hostPID": true,
            "enableServiceLinks": false,
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": CONTAINER,
                "image": self.image,
                "imagePullPolicy": "IfNotPresent",
                "args": ["watch", "--listen", format!("127.0.0.1:{}", node_watcher::PORT)],
                "env": [{"name": node_watcher::TOKEN, "value": self.token}],
                // The watcher needs the programs and namespaces of other processes, the right to
                // signal them, and the kernel's eBPF programs.
                "securityContext": {
                    "privileged": true,
                    "runAsNonRoot": false,
                    "runAsUser": 0,
                    "runAsGroup": 0,
                    "readOnlyRootFilesystem": true,
                },
            }],
        }})
    }
}
