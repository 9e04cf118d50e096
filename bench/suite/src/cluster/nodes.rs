//! Places pods on nodes, always in the same way, so that differences between meshes are not due to
//! pods that share a node.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Node as Object;
use leno_kube::api::ListParams;
use leno_kube::{Api, Client, ResourceExt as _};
use leno_operate::Error;

use crate::record::cluster::Node;
use crate::scenario::{CLIENT, Scenario};

/// The largest number of nodes in use, which is enough for one service per node in most scenarios. Each has a watcher.
const MAX_NODES: usize = 11;
/// The label by which pods select a node.
const HOSTNAME: &str = "kubernetes.io/hostname";
/// The label with a node's operating system.
const SYSTEM: &str = "kubernetes.io/os";

/// A node that accepts pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Usable {
    pub(super) node: Node,
    /// The node's label `kubernetes.io/hostname`.
    host: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Nodes {
    /// The nodes that accept any pod, by name.
    pub(super) usable: Vec<Usable>,
    /// The nodes that should be Ready but are not.
    pub(super) unready: Vec<String>,
}

/// Lists the nodes of a cluster.
///
/// # Errors
/// If no node accepts pods, or the nodes cannot be listed.
pub(super) async fn nodes(client: &Client) -> Result<Nodes> {
    let nodes: Api<Object> = Api::all(client.clone());
    let nodes = nodes.list(&ListParams::default()).await.map_err(Error::api("list nodes"))?;
    let count = nodes.items.len();
    let mut found: Vec<Usable> = nodes.iter().filter(|node| takes_pods(node)).map(of).collect();
    ensure!(
        !found.is_empty(),
        "none of the {count} nodes accepts pods: at least one must be Ready, without a taint, and \
         not cordoned"
    );
    found.sort_by(|one, two| one.node.name.cmp(&two.node.name));
    found.truncate(MAX_NODES);
    let linux = |node: &&Object| node.labels().get(SYSTEM).is_none_or(|system| system == "linux");
    let unready = nodes.iter().filter(linux).filter(|node| !is_ready(node));
    Ok(Nodes { unready: unready.map(|node| node.name_any()).collect(), usable: found })
}

/// The names of the Ready nodes, including those that do not accept pods.
pub(super) async fn ready(client: &Client) -> Result<BTreeSet<String>, Error> {
    let nodes: Api<Object> = Api::all(client.clone());
    let nodes = nodes.list(&ListParams::default()).await.map_err(Error::api("list nodes"))?;
    Ok(nodes.iter().filter(|node| is_ready(node)).map(|node| node.name_any()).collect())
}

fn takes_pods(node: &Object) -> bool {
    let spec = node.spec.as_ref();
    let cordoned = spec.and_then(|spec| spec.unschedulable) == Some(true);
    let taints = spec.and_then(|spec| spec.taints.as_ref());
    let tainted = taints.is_some_and(|all| all.iter().any(|one| one.effect != "PreferNoSchedule"));
    is_ready(node) && !tainted && !cordoned
}

fn is_ready(node: &Object) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.is_some_and(|all| all.iter().any(|one| one.type_ == "Ready" && one.status == "True"))
}

fn of(node: &Object) -> Usable {
    let status = node.status.as_ref();
    let words = status.and_then(|status| status.node_info.as_ref());
    let word = |of: fn(&k8s_openapi::api::core::v1::NodeSystemInfo) -> &String| {
        words.map(of).cloned().unwrap_or_default()
    };
    let capacity = |what: &str| {
        let capacity = status.and_then(|status| status.capacity.as_ref());
        capacity.and_then(|all| all.get(what)).map(|one| one.0.as_str()).unwrap_or_default()
    };
    let name = node.name_any();
    Usable {
        host: node.labels().get(HOSTNAME).cloned().unwrap_or_else(|| name.clone()),
        node: Node {
            name,
            kernel: word(|words| &words.kernel_version),
            system: word(|words| &words.os_image),
            runtime: word(|words| &words.container_runtime_version),
            kubelet: word(|words| &words.kubelet_version),
            architecture: word(|words| &words.architecture),
            cpus: cpus(capacity("cpu")),
            memory_mib: mebibytes(capacity("memory")),
        },
    }
}

/// Parses a quantity of processors, such as `4` or `3920m`; 0 if it is invalid.
fn cpus(text: &str) -> usize {
    match text.strip_suffix('m') {
        Some(milli) => milli.parse::<usize>().map_or(0, |milli| milli.div_ceil(1000)),
        None => text.parse().unwrap_or(0),
    }
}

/// Parses a quantity of memory, such as `16384Ki`, and returns MiB; 0 if it is invalid.
fn mebibytes(text: &str) -> u64 {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let count: u64 = digits.parse().unwrap_or(0);
    match &text[digits.len()..] {
        "Ki" => count / 1024,
        "Mi" => count,
        "Gi" => count * 1024,
        "" => count / (1024 * 1024),
        _ => 0,
    }
}

/// The node of each workload: the client is on the first node, the other workloads on the other
/// nodes in turn.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Placement {
    places: BTreeMap<String, Usable>,
}

impl Placement {
    /// Places a scenario's workloads; `nodes` must not be empty.
    pub(super) fn of(nodes: &[Usable], scenario: &Scenario) -> Self {
        let others = if nodes.len() > 1 { &nodes[1..] } else { nodes };
        let places = scenario.workloads().into_iter().filter(|name| name != CLIENT);
        let mut places: BTreeMap<String, Usable> =
            places.zip(others.iter().cycle()).map(|(name, node)| (name, node.clone())).collect();
        places.insert(CLIENT.to_owned(), nodes[0].clone());
        Self { places }
    }

    /// The host name of a workload's node.
    pub(super) fn host_of(&self, workload: &str) -> &str {
        self.places.get(workload).map(|node| node.host.as_str()).unwrap_or_default()
    }

    /// The name of each workload's node.
    pub(super) fn names(&self) -> BTreeMap<String, String> {
        let name =
            |(workload, node): (&String, &Usable)| (workload.clone(), node.node.name.clone());
        self.places.iter().map(name).collect()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::cluster) fn two_nodes() -> Vec<Usable> {
        let node = |name: &str| Usable {
            host: format!("{name}.example"),
            node: Node { name: name.into(), cpus: 2, ..Node::default() },
        };
        vec![node("n1"), node("n2")]
    }

    #[test]
    fn the_client_has_a_node_of_its_own_if_there_are_several() {
        let scenario = crate::scenario::find("faces").unwrap();
        let mut nodes = two_nodes();
        let hosts = |nodes: &[Usable]| {
            let placement = Placement::of(nodes, &scenario);
            ["client", "face", "smiley", "color"].map(|name| placement.host_of(name).to_owned())
        };
        assert_eq!(hosts(&nodes[..1]), ["n1.example"; 4]);
        assert_eq!(hosts(&nodes), ["n1.example", "n2.example", "n2.example", "n2.example"]);
        nodes.push(Usable {
            host: "n3".into(),
            node: Node { name: "n3".into(), ..Node::default() },
        });
        assert_eq!(hosts(&nodes), ["n1.example", "n2.example", "n3", "n2.example"]);
        let names = Placement::of(&nodes, &scenario).names();
        assert_eq!((&*names["client"], &*names["smiley"]), ("n1", "n3"));
    }

    #[test]
    fn a_node_is_usable_if_it_accepts_any_pod() {
        let node = |more: &str| -> Object {
            let text = format!(
                r#"{{"metadata": {{"name": "n"}}, "status": {{
                    "capacity": {{"cpu": "3920m", "memory": "16384000Ki"}},
                    "conditions": [{{"type": "Ready", "status": "True"}}]}}{more}}}"#
            );
            serde_json::from_str(&text).unwrap()
        };
        let good = node("");
        assert!(takes_pods(&good));
        let found = of(&good);
        assert_eq!((found.node.cpus, found.node.memory_mib, &*found.host), (4, 16_000, "n"));
        for more in [
            r#", "spec": {"unschedulable": true}"#,
            r#", "spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}"#,
        ] {
            assert!(!takes_pods(&node(more)), "{more}");
        }
        assert!(takes_pods(&node(
            r#", "spec": {"taints": [{"key": "a", "effect": "PreferNoSchedule"}]}"#
        )));
        assert_eq!((cpus("8"), mebibytes("2Gi"), mebibytes("x")), (8, 2048, 0));
    }
}
