//! Queries what the agents of nodes report about the capture of pods' traffic.

use k8s_openapi::api::core::v1::Pod;
use leno_kube::api::ListParams;
use leno_kube::{Api, Client};
use leno_sources::is_ready;
use leno_types::ports;
use serde_json::Value;

use crate::diagnose::{ProxyPod, find, seen};
use crate::namespaces::NamespaceModes;
use crate::pod_admin::{PodAdminClient, PodName};
use crate::pods::{name, phase};
use crate::{AGENTS, Error};

/// The capture of one pod.
#[derive(Debug)]
pub struct PodCapture {
    /// The pod's state in Kubernetes.
    pub seen: ProxyPod,
    /// The entry for this pod on the page `/captures` of its node's agent.
    pub agent: Result<Value, Error>,
    /// What its proxy reports on its page `/config`.
    pub proxy: Result<ProxyReport, Error>,
}

/// What a proxy reports about the capture of its pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProxyReport {
    /// Whether the pod is captured; `None` if the proxy cannot tell.
    pub captured: Option<bool>,
    /// The mTLS mode of its policy, such as `strict`, which says what the proxy does with plaintext; `None` if the
    /// proxy has no policy yet.
    pub mtls: Option<String>,
}

/// Queries the state of the capture of a pod, which is named as for [`diagnose`](crate::diagnose). `system` is the
/// namespace of the agents.
///
/// # Errors
/// The pod does not exist, has no proxy, uses its node's network, is on no node, or the user may not get it. If
/// its agent or its proxy does not answer, the result contains that error.
pub async fn pod_capture(
    client: &Client,
    system: &str,
    namespace: Option<&str>,
    wanted: &str,
) -> Result<PodCapture, Error> {
    let namespace = namespace.unwrap_or(client.default_namespace());
    let pod = find(client, namespace, wanted).await?;
    let at = name(&pod);
    if !NamespaceModes::permitted(client, Some(namespace)).await?.has_proxy(&pod) {
        return Err(Error::NoProxy(at.to_string()));
    }
    if pod.spec.as_ref().is_some_and(|spec| spec.host_network == Some(true)) {
        return Err(Error::HostNetwork(at.to_string()));
    }
    let seen = seen(&pod, at.clone());
    if seen.node.is_empty() {
        return Err(Error::Nowhere(at.to_string()));
    }
    let path = format!("/captures?pod={at}");
    let reach = PodAdminClient::new(client.clone());
    let proxy = async {
        let reply = reach.get(&at, "/config").await?;
        let config: Value = serde_json::from_str(&reply.body).unwrap_or_default();
        Ok(ProxyReport {
            captured: config["captured"].as_bool(),
            mtls: config["policy"]["mtls"].as_str().map(ToOwned::to_owned),
        })
    };
    let (agent, proxy) = tokio::join!(node_page(client, system, &seen.node, &path), proxy);
    Ok(PodCapture { seen, agent, proxy })
}

/// The report of a node's agent on all pods of the node that have a proxy: its page `/captures`.
///
/// # Errors
/// The node has no agent, the user may not query the agent, or the agent does not answer.
pub async fn node_captures(client: &Client, system: &str, node: &str) -> Result<Value, Error> {
    node_page(client, system, node, "/captures").await
}

/// Fetches a page of a node's agent. The agent answers only its own node, so this goes through the API server like
/// `kubectl port-forward`, and needs the same right.
///
/// # Errors
/// The node has no agent, the user may not query the agent, or the agent does not answer.
pub async fn node_page(
    client: &Client,
    system: &str,
    node: &str,
    path: &str,
) -> Result<Value, Error> {
    let agent = agent(client, system, node).await?;
    let reply =
        PodAdminClient::new(client.clone()).get_from(&agent, ports::AGENT_ADMIN, path).await?;
    let what = || format!("query {path} of pod {agent}");
    match reply.status {
        200 => serde_json::from_str(&reply.body)
            .map_err(|error| Error::Pod(what(), format!("the response is not JSON: {error}"))),
        404 => Err(Error::OldAgent(node.to_owned())),
        status => Err(Error::Pod(what(), format!("HTTP {status}: {}", reply.body.trim()))),
    }
}

/// The agent's pod on a node. While the pod is being replaced, the one that is ready.
async fn agent(client: &Client, system: &str, node: &str) -> Result<PodName, Error> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), system);
    let which = ListParams::default().labels(AGENTS).fields(&format!("spec.nodeName={node}"));
    let found = pods.list(&which).await.map_err(Error::api(format!("list pods of {system}")))?;
    let mut running: Vec<&Pod> = found.items.iter().filter(|pod| phase(pod) == "Running").collect();
    running.sort_by_key(|pod| !is_ready(pod));
    let none = || Error::NoAgent { node: node.to_owned(), system: system.to_owned() };
    running.first().map(|pod| name(pod)).ok_or_else(none)
}
