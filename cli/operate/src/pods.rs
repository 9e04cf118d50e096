//! The pods of a cluster, with the properties that concern the mesh.

use k8s_openapi::api::core::v1::{ContainerState, ContainerStateWaiting, ContainerStatus, Pod};
use leno_kube::api::ListParams;
use leno_kube::{Api, Client};
use leno_observe::stat::ProxyProcess;
use leno_sources::{is_ready, owner};
use leno_types::Owner;

use crate::Error;
use crate::namespaces::NamespaceModes;
use crate::objects::paged;
use crate::pod_admin::PodName;

/// Most pods that are read: the largest cluster that Kubernetes supports has 150,000.
const MAX_PODS: usize = 150_000;

/// A running pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningPod {
    /// Its name.
    pub name: PodName,
    /// The object that created it.
    pub owner: Owner,
    /// Whether it has a proxy.
    pub meshed: bool,
    /// Whether it is ready for traffic.
    pub ready: bool,
    /// The node that it runs on.
    pub node: Option<String>,
    /// Where its proxy runs, according to its own settings and those of its namespace; `None` if it has no proxy.
    pub proxy: Option<ProxyProcess>,
}

/// The running pods of a namespace, or of all namespaces.
///
/// # Errors
/// The pods cannot be listed.
pub async fn running(client: &Client, namespace: Option<&str>) -> Result<Vec<RunningPod>, Error> {
    let pods = all(client, namespace).await?;
    let modes = NamespaceModes::permitted(client, namespace).await?;
    let running = pods.iter().filter(|pod| phase(pod) == "Running");
    let of = |pod: &Pod| RunningPod {
        name: name(pod),
        owner: owner(pod),
        meshed: modes.has_proxy(pod),
        ready: is_ready(pod),
        node: node(pod).map(str::to_owned),
        proxy: modes.proxy(pod),
    };
    Ok(running.map(of).collect())
}

pub(crate) async fn all(client: &Client, namespace: Option<&str>) -> Result<Vec<Pod>, Error> {
    let (api, what): (Api<Pod>, String) = match namespace {
        Some(name) => (Api::namespaced(client.clone(), name), format!("list pods of {name}")),
        None => (Api::all(client.clone()), "list pods of all namespaces".to_owned()),
    };
    let pods = paged(ListParams::default(), MAX_PODS, async |asked| api.list(asked).await);
    pods.await.map_err(Error::api(what))
}

/// `Running`, `Pending` and the like; empty if unknown.
pub(crate) fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// The node that a pod runs on, or is to run on.
pub(crate) fn node(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

pub(crate) fn name(pod: &Pod) -> PodName {
    PodName {
        namespace: pod.metadata.namespace.clone().unwrap_or_default(),
        name: pod.metadata.name.clone().unwrap_or_default(),
    }
}

/// The statuses of a pod's containers: first the regular ones, then init containers and native
/// sidecars.
pub fn statuses(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    pod.status.iter().flat_map(|status| {
        let first = status.container_statuses.iter().flatten();
        first.chain(status.init_container_statuses.iter().flatten())
    })
}

/// Reasons for which a container will never start, however long one waits: its image or its configuration is wrong
/// or missing.
const UNSTARTABLE: [&str; 6] = [
    "ErrImageNeverPull",
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "RegistryUnavailable",
    "CreateContainerConfigError",
];

/// The container of a pod that cannot start, and the reason; `None` if all containers can start.
pub fn unstartable(pod: &Pod) -> Option<(&ContainerStatus, &ContainerStateWaiting)> {
    statuses(pod).find_map(|one| {
        let waiting = one.state.as_ref()?.waiting.as_ref()?;
        let reason = waiting.reason.as_deref()?;
        UNSTARTABLE.contains(&reason).then_some((one, waiting))
    })
}

/// Whether a container of a pod runs, or has run before.
pub(crate) fn has_run(pod: &Pod) -> bool {
    let ran = |state: &ContainerState| state.running.is_some() || state.terminated.is_some();
    statuses(pod).any(|one| {
        let states = one.state.iter().chain(&one.last_state);
        one.restart_count > 0 || states.into_iter().any(ran)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(first: serde_json::Value, last: serde_json::Value, restarts: i32) -> Pod {
        let one = json!({"name": "agent", "image": "i", "imageID": "", "ready": false,
            "restartCount": restarts, "state": first, "lastState": last});
        serde_json::from_value(json!({"status": {"containerStatuses": [one]}})).unwrap()
    }

    #[test]
    fn a_container_that_cannot_begin_has_never_run_unless_it_has_before() {
        let waits = json!({"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}});
        let never = pod(waits.clone(), json!({}), 0);
        assert_eq!(unstartable(&never).unwrap().1.message.as_deref(), Some("no such image"));
        assert!(!has_run(&never));
        let ended = json!({"terminated": {"exitCode": 1}});
        assert!(has_run(&pod(waits.clone(), ended, 0)) && has_run(&pod(waits, json!({}), 1)));
        let runs = pod(json!({"running": {}}), json!({}), 0);
        assert!(has_run(&runs) && unstartable(&runs).is_none());
        let soon = pod(json!({"waiting": {"reason": "ContainerCreating"}}), json!({}), 0);
        assert!(unstartable(&soon).is_none(), "it may have begun before this is read");
    }
}
