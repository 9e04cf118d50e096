//! The pods of a cluster, as far as the mesh is concerned.

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::api::ListParams;
use kube::{Api, Client};
use leno_sources::{is_meshed, is_ready, owner};
use leno_types::Owner;

use crate::Error;
use crate::objects::paged;
use crate::reach::PodName;

/// Most pods that are looked at: what Kubernetes itself is made for (150,000 pods in a cluster).
const MAX_PODS: usize = 150_000;

/// A pod that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Running {
    /// Its name.
    pub name: PodName,
    /// What made it.
    pub owner: Owner,
    /// Whether it has a proxy.
    pub meshed: bool,
    /// Whether it takes traffic.
    pub ready: bool,
}

/// The pods that run in a namespace, or in all.
///
/// # Errors
/// Where they cannot be listed.
pub async fn running(client: &Client, namespace: Option<&str>) -> Result<Vec<Running>, Error> {
    let pods = all(client, namespace).await?;
    Ok(pods.iter().filter(|pod| phase(pod) == "Running").map(of).collect())
}

pub(crate) async fn all(client: &Client, namespace: Option<&str>) -> Result<Vec<Pod>, Error> {
    let (api, what): (Api<Pod>, String) = match namespace {
        Some(name) => (Api::namespaced(client.clone(), name), format!("list pods of {name}")),
        None => (Api::all(client.clone()), "list pods of all namespaces".to_owned()),
    };
    let pods = paged(ListParams::default(), MAX_PODS, async |asked| api.list(asked).await);
    pods.await.map_err(Error::api(what))
}

/// `Running`, `Pending` and the like; empty where nobody has said.
pub(crate) fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

pub(crate) fn name(pod: &Pod) -> PodName {
    PodName {
        namespace: pod.metadata.namespace.clone().unwrap_or_default(),
        name: pod.metadata.name.clone().unwrap_or_default(),
    }
}

/// What is said of a pod's containers: those that serve, then those that came before them, with native sidecars.
pub fn statuses(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    pod.status.iter().flat_map(|status| {
        let first = status.container_statuses.iter().flatten();
        first.chain(status.init_container_statuses.iter().flatten())
    })
}

fn of(pod: &Pod) -> Running {
    Running { name: name(pod), owner: owner(pod), meshed: is_meshed(pod), ready: is_ready(pod) }
}
