//! The names in a namespace to which clients may send requests.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Service;
use leno_kube::api::ListParams;
use leno_kube::{Api, Client};
use leno_sources::owner;

use crate::Error;
use crate::objects::paged;
use crate::pods;

/// Most services that are read.
const MAX_SERVICES: usize = 50_000;

/// The names of a namespace's pods, of the workloads that created them, and of its services.
///
/// # Errors
/// Pods or services cannot be listed.
pub async fn destinations(client: &Client, namespace: &str) -> Result<BTreeSet<String>, Error> {
    let pods = pods::all(client, Some(namespace)).await?;
    let api: Api<Service> = Api::namespaced(client.clone(), namespace);
    let services = paged(ListParams::default(), MAX_SERVICES, async |asked| api.list(asked).await);
    let services = services.await.map_err(Error::api(format!("list services of {namespace}")))?;
    let of_pods = pods.iter().flat_map(|pod| [pods::name(pod).name, owner(pod).name]);
    let of_services = services.into_iter().filter_map(|service| service.metadata.name);
    Ok(of_pods.chain(of_services).collect())
}
