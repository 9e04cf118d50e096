//! What the agents of nodes say of captures.

use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, Client};
use leno_sources::{is_meshed, is_ready};
use leno_types::ports;
use serde_json::Value;

use crate::diagnose::{Seen, find, seen};
use crate::pods::{name, phase};
use crate::reach::{PodName, Reach};
use crate::{AGENTS, Error};

/// The capture of one pod.
#[derive(Debug)]
pub struct PodCapture {
    /// What Kubernetes says of the pod.
    pub seen: Seen,
    /// What the agent of its node says: its page `/captures`, of that pod alone.
    pub agent: Result<Value, Error>,
    /// What its proxy says in `/config`: whether it is captured; none where it does not know.
    pub proxy: Result<Option<bool>, Error>,
}

/// Looks at the capture of a pod, which is named as for [`diagnose`](crate::diagnose); `system` is the namespace
/// of the agents.
///
/// # Errors
/// Where there is no such pod, it has no proxy or its node's network, it is on no node, or it may not be seen. That
/// its node's agent does not answer, or its proxy, is part of the answer.
pub async fn pod_capture(
    client: &Client,
    system: &str,
    namespace: Option<&str>,
    wanted: &str,
) -> Result<PodCapture, Error> {
    let namespace = namespace.unwrap_or(client.default_namespace());
    let pod = find(client, namespace, wanted).await?;
    let at = name(&pod);
    if !is_meshed(&pod) {
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
    let reach = Reach::new(client.clone());
    let proxy = async {
        let reply = reach.get(&at, "/config").await?;
        let config: Value = serde_json::from_str(&reply.body).unwrap_or_default();
        Ok(config["captured"].as_bool())
    };
    let (agent, proxy) = tokio::join!(ask(client, system, &seen.node, &path), proxy);
    Ok(PodCapture { seen, agent, proxy })
}

/// What the agent of a node says of all of its pods that have a proxy: its page `/captures`.
///
/// # Errors
/// Where there is no such agent, it may not be asked, or it does not answer.
pub async fn node_captures(client: &Client, system: &str, node: &str) -> Result<Value, Error> {
    ask(client, system, node, "/captures").await
}

async fn ask(client: &Client, system: &str, node: &str, path: &str) -> Result<Value, Error> {
    let agent = agent(client, system, node).await?;
    let reply = Reach::new(client.clone()).get_from(&agent, ports::AGENT_ADMIN, path).await?;
    let what = || format!("ask pod {agent} for {path}");
    match reply.status {
        200 => serde_json::from_str(&reply.body)
            .map_err(|error| Error::Pod(what(), format!("it is no JSON: {error}"))),
        404 => Err(Error::OldAgent(node.to_owned())),
        status => Err(Error::Pod(what(), format!("HTTP {status}: {}", reply.body.trim()))),
    }
}

/// The agent of a node: the one that is ready, where one is being replaced.
async fn agent(client: &Client, system: &str, node: &str) -> Result<PodName, Error> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), system);
    let which = ListParams::default().labels(AGENTS).fields(&format!("spec.nodeName={node}"));
    let found = pods.list(&which).await.map_err(Error::api(format!("list pods of {system}")))?;
    let mut running: Vec<&Pod> = found.items.iter().filter(|pod| phase(pod) == "Running").collect();
    running.sort_by_key(|pod| !is_ready(pod));
    let none = || Error::NoAgent { node: node.to_owned(), system: system.to_owned() };
    running.first().map(|pod| name(pod)).ok_or_else(none)
}
