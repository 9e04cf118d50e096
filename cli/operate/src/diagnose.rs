//! The state of one pod's proxy, from Kubernetes and from the proxy itself.

use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod};
use leno_kube::{Api, Client};
use leno_observe::admin::AdminReply;
use leno_resources::CAPTURE_ANNOTATION;
use leno_sources::{PROXY_CONTAINER, is_ready, owner};
use leno_types::{Owner, nearest};
use serde::Serialize;

use crate::Error;
use crate::namespaces::NamespaceModes;
use crate::pod_admin::{PodAdminClient, PodName};
use crate::pods::{all, name, phase, statuses};

/// The state of a proxy's pod in Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProxyPod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The object that created it, such as `deploy/web`.
    pub owner: String,
    /// Its node; empty if it is not scheduled yet.
    pub node: String,
    /// `Running`, `Pending` and the like.
    pub phase: String,
    /// The image of its proxy's container; empty in node mode.
    pub image: String,
    /// How many times its proxy was restarted.
    pub restarts: i32,
    /// Why the proxy does not run; `None` if it runs.
    pub waiting: Option<String>,
    /// The capture mode that the pod requests.
    pub capture: String,
}

/// A pod's proxy.
#[derive(Debug)]
pub struct Diagnosis {
    /// The state in Kubernetes.
    pub seen: ProxyPod,
    /// The response of the proxy's `/ready`.
    pub ready: Result<AdminReply, Error>,
    /// The response of the proxy's `/config`.
    pub config: Result<AdminReply, Error>,
    /// The response of the proxy's `/metrics`.
    pub metrics: Result<AdminReply, Error>,
}

/// Queries the proxy of a pod. `wanted` is the pod's name, with or without `pod/`, or its owner's
/// name (`deploy/web`: the owner's first pod with a proxy that is ready). The default namespace is
/// the kubeconfig's.
///
/// # Errors
/// The pod does not exist, has no proxy, or the user may not get it. If the proxy does not answer,
/// the result contains that error.
pub async fn diagnose(
    client: &Client,
    namespace: Option<&str>,
    wanted: &str,
) -> Result<Diagnosis, Error> {
    let namespace = namespace.unwrap_or(client.default_namespace());
    let pod = find(client, namespace, wanted).await?;
    let at = name(&pod);
    if !NamespaceModes::permitted(client, Some(namespace)).await?.has_proxy(&pod) {
        return Err(Error::NoProxy(at.to_string()));
    }
    let reach = PodAdminClient::new(client.clone());
    let (ready, config, metrics) = tokio::join!(
        reach.get(&at, "/ready"),
        reach.get(&at, "/config"),
        reach.get(&at, "/metrics")
    );
    Ok(Diagnosis { seen: seen(&pod, at), ready, config, metrics })
}

/// The pod with this name or owner.
pub(crate) async fn find(client: &Client, namespace: &str, wanted: &str) -> Result<Pod, Error> {
    let (kind, called) = wanted.split_once('/').unwrap_or(("pod", wanted));
    if matches!(kind, "pod" | "pods" | "po") {
        let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
        let found = pods.get_opt(called).await;
        if let Some(pod) = found.map_err(Error::api(format!("get pod {namespace}/{called}")))? {
            return Ok(pod);
        }
    }
    let mut pods = all(client, Some(namespace)).await?;
    let modes = NamespaceModes::permitted(client, Some(namespace)).await?;
    // Prefers the pod whose proxy is most likely to answer.
    let ends = |pod: &Pod| pod.metadata.deletion_timestamp.is_some();
    pods.sort_by_key(|pod| {
        (!modes.has_proxy(pod), phase(pod) != "Running", ends(pod), !is_ready(pod))
    });
    let made_by = |pod: &Pod| {
        let Owner { name, .. } = owner(pod);
        let whole = owner(pod).to_string();
        whole == wanted || (name == called && long(kind, &owner(pod).kind))
    };
    let names: Vec<String> = pods.iter().map(|pod| name(pod).name).collect();
    let owners: Vec<String> = pods.iter().map(|pod| owner(pod).to_string()).collect();
    pods.into_iter().find(made_by).ok_or_else(|| {
        let all = names.iter().chain(&owners).map(String::as_str);
        let meant = nearest(wanted, all).map(|meant| format!(": did you mean {meant}?"));
        Error::NoPod(format!("{namespace}/{called}"), meant.unwrap_or_default())
    })
}

/// Whether a word is the name of a kind, or its plural.
fn long(word: &str, kind: &str) -> bool {
    let kind = kind.to_ascii_lowercase();
    word == kind || word.strip_suffix('s') == Some(&kind)
}

pub(crate) fn seen(pod: &Pod, at: PodName) -> ProxyPod {
    let is_proxy = |one: &&Container| one.name == PROXY_CONTAINER;
    let containers = pod
        .spec
        .iter()
        .flat_map(|spec| spec.containers.iter().chain(spec.init_containers.iter().flatten()));
    let image = containers.into_iter().find(is_proxy).and_then(|one| one.image.clone());
    let status = statuses(pod).find(|one| one.name == PROXY_CONTAINER);
    ProxyPod {
        owner: owner(pod).to_string(),
        namespace: at.namespace,
        name: at.name,
        node: pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default(),
        phase: phase(pod).to_owned(),
        image: image.unwrap_or_default(),
        restarts: status.map_or(0, |one| one.restart_count),
        waiting: status.and_then(not_running),
        capture: capture(pod),
    }
}

fn not_running(status: &ContainerStatus) -> Option<String> {
    let state = status.state.as_ref()?;
    if let Some(waiting) = &state.waiting {
        let message = waiting.message.clone().unwrap_or_default();
        return Some(format!("{} {message}", waiting.reason.clone()?).trim_end().to_owned());
    }
    let ended = state.terminated.as_ref()?;
    Some(format!("exited with {}", ended.exit_code))
}

/// The capture mode of a pod; a label wins over an annotation.
fn capture(pod: &Pod) -> String {
    let metadata = &pod.metadata;
    let said = [&metadata.labels, &metadata.annotations];
    let mut said = said.into_iter().filter_map(|map| map.as_ref()?.get(CAPTURE_ANNOTATION));
    said.next().cloned().unwrap_or_else(|| "auto".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_kubernetes_says_of_a_proxy_is_found_among_its_containers() {
        let pod: Pod = serde_json::from_str(
            r#"{"metadata":{"name":"web-0","namespace":"shop","labels":{"leno.dev/capture":"nftables"},
                "annotations":{"leno.dev/capture":"ebpf"}},
                "spec":{"nodeName":"n1","containers":[{"name":"web","image":"web:1"}],
                    "initContainers":[{"name":"leno-proxy","image":"proxy:2"}]},
                "status":{"phase":"Pending","initContainerStatuses":[{"name":"leno-proxy","image":"",
                    "imageID":"","ready":false,"restartCount":3,
                    "state":{"waiting":{"reason":"CrashLoopBackOff","message":"back-off"}}}]}}"#,
        )
        .unwrap();
        let seen = seen(&pod, name(&pod));
        assert_eq!(seen.node, "n1");
        assert_eq!((&*seen.image, seen.restarts), ("proxy:2", 3));
        assert_eq!(seen.waiting.as_deref(), Some("CrashLoopBackOff back-off"));
        assert_eq!(seen.capture, "nftables", "the label counts first");
    }
}
