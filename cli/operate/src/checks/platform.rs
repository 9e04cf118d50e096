//! Finds properties of a cluster that require a particular configuration of Leno or of the cluster.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ConfigMap, Node};
use leno_charts::Values;
use leno_checks::{Check, CheckResult};
use leno_kube::api::ListParams;
use leno_kube::{Api, Client};

use crate::Error;
use crate::objects::is_absent;

/// Most nodes that are read. All nodes of a cluster usually run the same distribution.
const NODES: u32 = 20;
/// The namespace and name of the ConfigMap with Cilium's configuration.
const CILIUM: (&str, &str) = ("kube-system", "cilium-config");
/// The API group of OpenShift's rules for what pods may do.
const OPENSHIFT: &str = "security.openshift.io";
/// The page of the documentation with more details.
const PAGE: &str = "docs/guide/platforms.md";

/// A check of one property of the cluster.
pub(super) fn check(subject: &str) -> Check {
    Check::new(subject, "Does something particular about this cluster need a setting?")
}

/// What is known about a cluster.
#[derive(Debug, Default)]
struct Platform {
    /// The names of its API groups.
    groups: Vec<String>,
    /// The data of Cilium's ConfigMap; `None` if there is none.
    cilium: Option<BTreeMap<String, String>>,
    nodes: Vec<Node>,
}

/// What must be done before Leno works in this cluster with these values of the installation. Empty if nothing is
/// necessary.
pub(super) async fn platform(
    client: &Client,
    namespace: &str,
    told: Option<&Values>,
) -> Result<Vec<CheckResult>, Error> {
    let groups = client.list_api_groups().await.map_err(Error::api("list the API groups"))?;
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), CILIUM.0);
    let cilium = match maps.get_opt(CILIUM.1).await {
        Err(error) if is_absent(&error) => None,
        cilium => cilium.map_err(Error::api("get Cilium's configuration"))?,
    };
    let nodes: Api<Node> = Api::all(client.clone());
    let nodes = nodes.list(&ListParams::default().limit(NODES)).await;
    let platform = Platform {
        groups: groups.groups.into_iter().map(|group| group.name).collect(),
        cilium: cilium.map(|map| map.data.unwrap_or_default()),
        nodes: nodes.map_err(Error::api("list nodes"))?.items,
    };
    let defaults = Values::defaults();
    Ok(platform.findings(namespace, told.unwrap_or(&defaults)))
}

impl Platform {
    fn findings(&self, namespace: &str, told: &Values) -> Vec<CheckResult> {
        let all = [
            self.exclusive(),
            self.socket_balancing(),
            self.openshift(namespace),
            self.folders(told),
        ];
        all.into_iter().flatten().collect()
    }

    /// Cilium disables other CNI plugins on nodes unless it is configured not to.
    fn exclusive(&self) -> Option<CheckResult> {
        let cilium = self.cilium.as_ref()?;
        let exclusive = cilium.get("cni-exclusive").is_none_or(|value| value == "true");
        exclusive.then(|| {
            let text = "it removes the plugin leno-cni from each node, so that pods with a proxy wait for their capture";
            let remedy = format!("set cni.exclusive=false in Cilium's Helm values ({PAGE})");
            check("Cilium").bad(text).remedy(remedy)
        })
    }

    /// Cilium may replace a Service's address by a pod's address before netfilter rules see the connection.
    fn socket_balancing(&self) -> Option<CheckResult> {
        let cilium = self.cilium.as_ref()?;
        let is =
            |key: &str| cilium.get(key).is_some_and(|value| value == "true" || value == "strict");
        let everywhere = !is("bpf-lb-sock-hostns-only");
        let balances = is("bpf-lb-sock") || is("kube-proxy-replacement");
        (balances && everywhere).then(|| {
            let text = "it balances Services in the sockets of pods: where pods are captured by nftables or iptables, \
                        routes and policies of Services do not hold";
            let remedy =
                format!("set socketLB.hostNamespaceOnly=true in Cilium's Helm values ({PAGE})");
            check("Cilium").warning(text).remedy(remedy)
        })
    }

    fn openshift(&self, namespace: &str) -> Option<CheckResult> {
        let is_openshift = self.groups.iter().any(|group| group == OPENSHIFT);
        is_openshift.then(|| {
            let text = "its SecurityContextConstraints refuse Leno's pods until they are granted";
            let remedy = format!(
                "oc adm policy add-scc-to-user privileged -z agent -n {namespace}; oc adm policy add-scc-to-user \
                 nonroot-v2 -z controller -n {namespace}; and nonroot-v2 for the service accounts of pods with a \
                 proxy ({PAGE})"
            );
            check("OpenShift").warning(text).remedy(remedy)
        })
    }

    /// Some distributions keep CNI plugins or their configuration in unusual folders.
    fn folders(&self, told: &Values) -> Option<CheckResult> {
        let label = |name: &str| {
            let mut nodes = self.nodes.iter();
            nodes
                .any(|node| node.metadata.labels.as_ref().is_some_and(|all| all.contains_key(name)))
        };
        let version = |part: &str| {
            self.nodes.iter().any(|node| {
                let node = node.status.as_ref().and_then(|status| status.node_info.as_ref());
                node.is_some_and(|node| node.kubelet_version.contains(part))
            })
        };
        let defaults = Values::defaults().agent;
        let is_told = told.agent.cni_plugins != defaults.cni_plugins;
        if is_told {
            return None;
        }
        let (name, settings) = if label("cloud.google.com/gke-nodepool") {
            ("GKE", "--set agent.cniPlugins=/home/kubernetes/bin")
        } else if version("+k3s") {
            (
                "k3s",
                "--set agent.cniConfiguration=/var/lib/rancher/k3s/agent/etc/cni/net.d --set \
                 agent.cniPlugins=/var/lib/rancher/k3s/data/current/bin",
            )
        } else if label("microk8s.io/cluster") {
            (
                "MicroK8s",
                "--set agent.cniConfiguration=/var/snap/microk8s/current/args/cni-network --set \
                 agent.cniPlugins=/var/snap/microk8s/current/opt/cni/bin",
            )
        } else {
            return None;
        };
        let text = "it keeps CNI plugins in a folder of its own";
        Some(check(name).warning(text).remedy(format!("leno install {settings} ({PAGE})")))
    }
}

#[cfg(test)]
mod tests {
    use leno_checks::Level;
    use serde_json::json;

    use super::*;

    fn node(labels: serde_json::Value, version: &str) -> Node {
        serde_json::from_value(json!({"metadata": {"labels": labels}, "status": {"nodeInfo": {
            "architecture": "", "bootID": "", "containerRuntimeVersion": "", "kernelVersion": "",
            "kubeProxyVersion": "", "kubeletVersion": version, "machineID": "", "operatingSystem": "",
            "osImage": "", "systemUUID": ""}}}))
        .unwrap()
    }

    fn said(platform: &Platform, told: &Values) -> Vec<(String, Level)> {
        let all = platform.findings("mesh", told).into_iter();
        all.map(|one| (one.subject, one.level)).collect()
    }

    fn cilium(pairs: &[(&str, &str)]) -> Platform {
        let pairs = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        Platform { cilium: Some(pairs.collect()), ..Platform::default() }
    }

    #[test]
    fn cilium_has_to_leave_other_plugins_and_the_sockets_of_pods_alone() {
        let told = Values::defaults();
        let bad = ("Cilium".to_owned(), Level::Bad);
        let warning = ("Cilium".to_owned(), Level::Warning);
        assert_eq!(said(&Platform::default(), &told), []);
        assert_eq!(
            said(&cilium(&[]), &told),
            std::slice::from_ref(&bad),
            "it is exclusive by default"
        );
        assert_eq!(said(&cilium(&[("cni-exclusive", "false")]), &told), []);
        let all = [("cni-exclusive", "true"), ("kube-proxy-replacement", "true")];
        assert_eq!(said(&cilium(&all), &told), [bad, warning.clone()]);
        let sockets = [("cni-exclusive", "false"), ("bpf-lb-sock", "true")];
        assert_eq!(said(&cilium(&sockets), &told), [warning]);
        let good = [
            ("cni-exclusive", "false"),
            ("bpf-lb-sock", "true"),
            ("bpf-lb-sock-hostns-only", "true"),
        ];
        assert_eq!(said(&cilium(&good), &told), []);
    }

    #[test]
    fn what_is_particular_of_a_distribution_is_said_until_the_installation_was_told() {
        let told = Values::defaults();
        let group = Platform { groups: vec![OPENSHIFT.to_owned()], ..Platform::default() };
        assert_eq!(said(&group, &told), [("OpenShift".to_owned(), Level::Warning)]);
        assert!(
            group.findings("mesh", &told)[0].remedy.as_ref().unwrap().contains("-z agent -n mesh")
        );
        for (name, node) in [
            ("GKE", node(json!({"cloud.google.com/gke-nodepool": "a"}), "v1.34.0-gke.1")),
            ("k3s", node(json!({}), "v1.34.0+k3s1")),
            ("MicroK8s", node(json!({"microk8s.io/cluster": "true"}), "v1.34.0")),
        ] {
            let platform = Platform { nodes: vec![node], ..Platform::default() };
            assert_eq!(said(&platform, &told), [(name.to_owned(), Level::Warning)]);
            let settings = ["agent.cniPlugins=/elsewhere".to_owned()];
            assert_eq!(said(&platform, &Values::load(&[], &settings).unwrap()), []);
        }
        let usual = Platform { nodes: vec![node(json!({}), "v1.34.0")], ..Platform::default() };
        assert_eq!(said(&usual, &told), []);
    }
}
