//! Finds and reaches the proxies of a mesh that can be tapped.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use anyhow::Result;
use leno_kube::Client;
use leno_local::admin::Admin;
use leno_local::layout::Layout;
use leno_local::netns::Netns;
use leno_local::status::MeshStatus;
use leno_observe::admin::AdminReply;
use leno_operate::{PodAdminClient, PodName};
use leno_tap::TapPage;

use super::destinations::Destinations;
use super::parties::{WorkloadInstances, split};
use super::{RequestFilter, namespace_of, user};
use crate::commands::ChosenMesh;

/// The header with the name of the user, for the proxy's log.
const USER_HEADER: &str = "leno-tap-by";

/// An instance or a pod with a proxy.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::commands) struct TappedProxy {
    pub(super) namespace: String,
    pub(super) name: String,
}

impl fmt::Display for TappedProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Why a poll of a proxy failed.
#[derive(Clone, Debug)]
pub(in crate::commands) struct PollFailure {
    reason: String,
    /// The HTTP status with which the proxy or the API server refused the tap; `None` if another attempt may
    /// succeed.
    pub(in crate::commands) refusal: Option<u16>,
}

impl PollFailure {
    pub(in crate::commands) fn new(reason: impl fmt::Display, refusal: Option<u16>) -> Self {
        Self { reason: reason.to_string(), refusal }
    }
}

impl fmt::Display for PollFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for PollFailure {}

/// All proxies of a mesh that can be tapped.
pub(in crate::commands) struct TappedProxies {
    access: ProxyAccess,
    names: WorkloadInstances,
    /// The servers to which requests may go, if the filter names one; `None` also if the user may not list them.
    destinations: Option<Destinations>,
    user: String,
}

enum ProxyAccess {
    Machine(Layout),
    Cluster(PodAdminClient),
}

impl TappedProxies {
    pub(in crate::commands) async fn of(wanted: &RequestFilter) -> Result<Self> {
        let user = user();
        match wanted.mesh.choose()? {
            ChosenMesh::Machine(name) => {
                let layout = Layout::new(&name)?;
                let status = MeshStatus::read(&layout)?;
                let destinations =
                    wanted.to.as_ref().map(|_| of_machine(&layout, &status)).transpose()?;
                let meshed = status.instances.into_iter().filter(|one| one.meshed);
                let named = meshed.map(|one| {
                    (one.workload, TappedProxy { namespace: one.namespace, name: one.name })
                });
                Ok(Self {
                    names: WorkloadInstances(named.collect()),
                    access: ProxyAccess::Machine(layout),
                    destinations,
                    user,
                })
            }
            ChosenMesh::Cluster(target) => {
                let client = leno_operate::connect(&target).await?;
                let namespace = match &wanted.namespace {
                    Some(namespace) => namespace.clone(),
                    None => client.default_namespace().to_owned(),
                };
                let running = leno_operate::running(&client, Some(&namespace)).await?;
                let meshed = running.into_iter().filter(|one| one.meshed);
                let named = meshed.map(|one| {
                    let PodName { namespace, name } = one.name;
                    (one.owner.name, TappedProxy { namespace, name })
                });
                let names = WorkloadInstances(named.collect());
                let destinations = match &wanted.to {
                    Some(to) => of_cluster(&client, split(to).0.unwrap_or(&namespace)).await?,
                    None => None,
                };
                let access = ProxyAccess::Cluster(PodAdminClient::new(client));
                Ok(Self { names, access, destinations, user })
            }
        }
    }

    pub(super) fn names(&self) -> &WorkloadInstances {
        &self.names
    }

    pub(super) fn destinations(&self) -> Option<&Destinations> {
        self.destinations.as_ref()
    }

    /// The proxies of the workloads that the filter names.
    pub(in crate::commands) fn of_workloads(
        &self,
        filter: &RequestFilter,
    ) -> Result<BTreeSet<TappedProxy>> {
        let mut all = BTreeSet::new();
        for workload in &filter.workloads {
            let (namespace, name) = split(workload);
            let namespace = namespace.or(filter.namespace.as_deref());
            let namespace = namespace_of(&self.names, namespace, name)?;
            all.extend(self.names.instances(Some(&namespace), name));
        }
        Ok(all)
    }

    /// All proxies, or those of a namespace.
    pub(in crate::commands) fn all(&self, namespace: Option<&str>) -> BTreeSet<TappedProxy> {
        let is = |proxy: &&TappedProxy| namespace.is_none_or(|wanted| wanted == proxy.namespace);
        self.names.0.iter().map(|(_, proxy)| proxy).filter(is).cloned().collect()
    }

    /// The pause between two polls. Through an API server, each poll needs a new connection.
    pub(in crate::commands) fn pause(&self) -> Duration {
        match &self.access {
            ProxyAccess::Machine(_) => Duration::from_millis(200),
            ProxyAccess::Cluster(_) => Duration::from_millis(500),
        }
    }

    /// Opens or polls a tap.
    pub(in crate::commands) async fn poll(
        &self,
        proxy: &TappedProxy,
        query: &str,
    ) -> Result<TapPage, PollFailure> {
        let reply = self.post(proxy, &format!("/tap?{query}")).await?;
        // Status 429 means too many taps. It is no refusal, because the proxy accepts another tap once one has
        // ended.
        let refusal = (400..=404).contains(&reply.status).then_some(reply.status);
        let page = reply.page().map_err(|said| PollFailure::new(said, refusal))?;
        serde_json::from_str(&page).map_err(|error| PollFailure::new(error, None))
    }

    async fn post(&self, proxy: &TappedProxy, path: &str) -> Result<AdminReply, PollFailure> {
        let header = (USER_HEADER, &*self.user);
        let TappedProxy { namespace, name } = proxy.clone();
        match &self.access {
            ProxyAccess::Machine(layout) => {
                // The instance may have been restarted, in another network namespace.
                let status =
                    MeshStatus::read(layout).map_err(|error| PollFailure::new(error, None))?;
                let is = |one: &&_| is_instance(one, proxy);
                let instance = status.instances.iter().find(is);
                let instance =
                    instance.ok_or_else(|| PollFailure::new("its process has ended", None))?;
                let asked = async {
                    let netns = Netns::open(&instance.surroundings.netns)?;
                    Admin::within(&netns).send(Some(header), ("POST", path)).await
                };
                asked.await.map_err(|error| PollFailure::new(error.chain(), None))
            }
            ProxyAccess::Cluster(client) => {
                let pod = PodName { namespace, name };
                let sent = client.send_with(&pod, header, ("POST", path)).await;
                sent.map_err(|error| {
                    PollFailure::new(error.said(), error.is_forbidden().then_some(403))
                })
            }
        }
    }
}

/// The servers of a mesh of `leno up`, including those without a proxy.
fn of_machine(layout: &Layout, status: &MeshStatus) -> Result<Destinations> {
    let instances = status.instances.iter().flat_map(|one| {
        [&one.workload, &one.name].map(|name| (one.namespace.clone(), name.clone()))
    });
    Ok(Destinations::new(instances.chain(leno_local::analysis::services(layout)?)))
}

/// The servers in a namespace of a cluster; `None` if the user may not list them.
async fn of_cluster(client: &Client, namespace: &str) -> Result<Option<Destinations>> {
    match leno_operate::destinations(client, namespace).await {
        Ok(names) => {
            Ok(Some(Destinations::new(names.into_iter().map(|name| (namespace.to_owned(), name)))))
        }
        Err(error) if error.is_forbidden() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn is_instance(one: &leno_local::status::InstanceStatus, proxy: &TappedProxy) -> bool {
    one.meshed && one.namespace == proxy.namespace && one.name == proxy.name
}
