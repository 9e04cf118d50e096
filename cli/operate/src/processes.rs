//! Asks supervisors which processes run the proxies of pods in node mode. A supervisor is a pod on each node that
//! starts the proxy processes which the node's pods share.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::StreamExt as _;
use futures_util::stream;
use k8s_openapi::api::core::v1::Pod;
use leno_kube::api::ListParams;
use leno_kube::{Api, Client};
use leno_observe::metrics::{self, Sample};
use leno_observe::stat::ProxyProcess;

use crate::objects::paged;
use crate::pod_admin::{PodAdminClient, PodName};
use crate::pods::{self, RunningPod};

/// The label of the pods of the DaemonSet `leno-node`.
pub(crate) const SUPERVISORS: &str = "app.kubernetes.io/name=leno-node";
/// The port of the supervisors' admin servers.
const PORT: u16 = 15025;
/// Most supervisors that are queried. A cluster has at most 5,000 nodes.
const MAX_SUPERVISORS: usize = 5_000;
/// How many supervisors are queried at once.
const AT_ONCE: usize = 16;

/// For each of the `running` pods in node mode, the process of its proxy, as the supervisor of its node reports it. A
/// pod is left out if the user may not query the supervisors, or if its supervisor does not answer.
pub(crate) async fn of(
    client: &Client,
    system: &str,
    running: &[&RunningPod],
) -> BTreeMap<PodName, ProxyProcess> {
    let is_of_node = |one: &&&RunningPod| one.proxy.as_ref().is_some_and(ProxyProcess::is_of_node);
    let nodes: BTreeSet<&str> =
        running.iter().filter(is_of_node).filter_map(|one| one.node.as_deref()).collect();
    if nodes.is_empty() {
        return BTreeMap::new();
    }
    // Only supervisors in the mesh's namespace are asked, where only operators of the mesh can create pods: other pods
    // with this label could report anything.
    let api: Api<Pod> = Api::namespaced(client.clone(), system);
    let parameters = ListParams::default().labels(SUPERVISORS);
    let all = paged(parameters, MAX_SUPERVISORS, async |asked| api.list(asked).await);
    let supervisors: Vec<Pod> = all.await.unwrap_or_default();
    let is_on = |pod: &&Pod| pods::node(pod).is_some_and(|node| nodes.contains(node));
    let names: Vec<PodName> = supervisors.iter().filter(is_on).map(pods::name).collect();
    let reach = PodAdminClient::new(client.clone());
    let asked = names.iter().map(async |pod| reach.get_from(pod, PORT, "/metrics").await);
    let pages: Vec<_> = stream::iter(asked).buffer_unordered(AT_ONCE).collect().await;
    pages.into_iter().flatten().flat_map(|page| read(&metrics::parse(&page.body))).collect()
}

/// The processes in the report of a supervisor, by pod.
fn read(samples: &[Sample]) -> BTreeMap<PodName, ProxyProcess> {
    let of = |metric: &'static str| {
        samples.iter().filter(move |one| one.name == metric).filter_map(|one| {
            let label = |name: &str| one.labels.get(name).cloned();
            let pod = PodName { namespace: label("namespace")?, name: label("pod")? };
            Some((pod, label("group").unwrap_or_default()))
        })
    };
    let promoted: BTreeSet<PodName> =
        of("leno_supervisor_pod_promoted").map(|(pod, _)| pod).collect();
    let process = |(pod, group): (PodName, String)| {
        let is_promoted = promoted.contains(&pod);
        (pod, ProxyProcess::of_group(&group, is_promoted))
    };
    of("leno_supervisor_pod_group").map(process).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_supervisor_names_the_process_of_each_pod_and_those_that_are_promoted() {
        let page = r#"
leno_supervisor_pod_group{namespace="shop",pod="web-0",group="workload.shop.web-0"} 1
leno_supervisor_pod_group{namespace="shop",pod="web-1",group="namespace.shop"} 1
leno_supervisor_pod_promoted{namespace="shop",pod="web-0"} 1
"#;
        let name = |name: &str| PodName { namespace: "shop".to_owned(), name: name.to_owned() };
        let expected = BTreeMap::from([
            (name("web-0"), ProxyProcess::of_group("workload.shop.web-0", true)),
            (name("web-1"), ProxyProcess::of_group("namespace.shop", false)),
        ]);
        assert_eq!(read(&metrics::parse(page)), expected);
    }
}
