//! The environment of one measurement in a cluster: a namespace with the client, the services, and the
//! containers that a mesh adds to their pods.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::Pod;
use leno_kube::api::ListParams;
use leno_kube::{Api, ResourceExt as _};
use leno_operate::{Error, is_ready};
use serde_json::Value;

use super::bench_cluster::BenchCluster;
use super::install;
use super::manifests::{Plan, is_watcher, watchers};
use super::mesh::Mesh;
use super::names::{CONTAINER, MANAGED, MANAGER};
use super::nodes;
use super::pod_failure::{permanent_failure, waits_for};
use super::pod_stream::PodStream;
use super::pods::{containers, image_id, nodes_of};
use super::revisions::{RevisionResults, Revisions};
use super::roles::{Carriers, Roles};
use super::wait::{PollResult, repeated, within};
use super::watchers::Watchers;
use crate::application::PORT;
use crate::measurement::usage::{Component, Role};
use crate::real_application;
use crate::record::{Mark, MarkKind};
use crate::scenario::{CLIENT, NEIGHBOUR, Scenario};

/// How long pods may take to become ready, because their images come from a registry.
const READY: Duration = Duration::from_secs(300);
/// How long listing the containers may take, because the load is running or has just ended.
const LISTED: Duration = Duration::from_secs(10);
/// How long a webhook may not answer after its installation, because API servers load its trust bundle one after the
/// other.
const ADMITTED: Duration = Duration::from_secs(30);
/// How long requests may fail after all pods are ready, because nodes must learn about services, and proxies about each
/// other.
const ANSWERED: Duration = Duration::from_secs(60);

/// Pods under a mesh, ready for load. The caller must always remove it with [`super::namespace::delete`].
pub(super) struct ClusterEnvironment<'a> {
    pub(super) ground: &'a BenchCluster,
    pub(super) mesh: Mesh,
    pub(super) scenario: &'a Scenario,
    pub(super) addresses: Vec<SocketAddr>,
    pub(super) proxies: BTreeSet<String>,
    pub(super) roles: Roles,
    pub(super) watchers: Watchers,
    pub(super) generators: BTreeMap<&'static str, PodStream>,
    /// Nodes that have no watcher although they run a part of the control plane.
    uncounted: BTreeSet<String>,
    real: bool,
    /// The configuration that changes during the load.
    pub(super) revisions: Option<Revisions<'a>>,
}

impl<'a> ClusterEnvironment<'a> {
    /// Creates all objects except the namespace, and waits until requests are answered.
    ///
    /// # Errors
    /// If an object cannot be created or does not become ready in time; the error gives the reason. Some of the objects
    /// may exist then.
    pub(super) async fn set(ground: &'a BenchCluster, plan: &Plan<'a>) -> Result<Self> {
        let Plan { mesh, scenario, .. } = *plan;
        let mut addresses = Vec::new();
        for service in plan.services() {
            let stored = leno_operate::apply(&ground.client, &service, MANAGER).await?;
            addresses.push(address(&stored)?);
        }
        let revisions = Revisions::of(mesh, scenario, &ground.namespace);
        if let Some(revisions) = revisions.as_ref().filter(|_| !scenario.churns()) {
            ground.admit(&revisions.object(0)).await?;
        }
        let (roles, proxies, uncounted) = ground.roles(plan).await?;
        let pods = watchers(&roles.nodes);
        for object in plan.watchers(&pods).iter().chain(&plan.workloads(&addresses)) {
            ground.admit(object).await?;
        }
        let watchers = Watchers::of(&ground.client, &ground.namespace, &pods);
        let generators = [CLIENT, NEIGHBOUR]
            .map(|workload| (workload, PodStream::of(&ground.client, &ground.namespace, workload)));
        let real = plan.real.is_some();
        let mut environment = Self {
            ground,
            mesh,
            scenario,
            addresses,
            proxies,
            roles,
            watchers,
            generators: generators.into(),
            uncounted,
            real,
            revisions,
        };
        let pods = environment.ready().await?;
        environment.look_at(&pods)?;
        if scenario.churns() {
            environment.churn(&plan.churning(), &pods).await?;
        }
        environment.answers().await?;
        Ok(environment)
    }

    /// Creates the service whose endpoints come and go. All load is sent to this service.
    async fn churn(&mut self, service: &Value, pods: &[Pod]) -> Result<()> {
        let client = &self.ground.client;
        let revisions = self.revisions.as_mut().context("endpoints change under every mesh")?;
        revisions.serve(pods)?;
        let stored = leno_operate::apply(client, service, MANAGER).await?;
        leno_operate::apply(client, &revisions.object(0), MANAGER).await?;
        self.addresses = vec![address(&stored)?];
        Ok(())
    }

    async fn ready(&self) -> Result<Vec<Pod>> {
        let wanted = self.scenario.workloads().len() + self.watchers.count();
        repeated(("pods are ready", READY), async || {
            let found = self.ground.pods().await?;
            for pod in &found {
                if let Some(why) = permanent_failure(pod) {
                    bail!("{why}");
                }
            }
            let ready = found.iter().filter(|pod| is_ready(pod)).count();
            if ready == wanted {
                return Ok(PollResult::There(found));
            }
            let why = found.iter().filter(|pod| !is_ready(pod)).find_map(waits_for);
            let why = why.map(|why| format!("; {why}")).unwrap_or_default();
            Ok(PollResult::NotYet(format!("{ready} of {wanted} ready{why}")))
        })
        .await
    }

    /// Checks that the mesh has added its proxy to the pods, and that no other mesh has.
    fn look_at(&mut self, pods: &[Pod]) -> Result<()> {
        for pod in pods {
            let name = pod.name_any();
            let others = containers(pod).filter(|(other, _)| other != CONTAINER);
            let others: Vec<(String, String)> = others.collect();
            if is_watcher(&name) {
                if let Some((other, _)) = others.first() {
                    bail!(
                        "pod {name}, which watches a node and must not be in a mesh, has a \
                         container {other}: a mesh that injects every pod cannot be measured"
                    );
                }
                continue;
            }
            match &self.mesh.facts().proxy {
                None => {
                    if let Some((other, _)) = others.first() {
                        let mesh = self.mesh.name();
                        bail!(
                            "pod {name} has a container {other} of another mesh than {mesh}: a \
                             mesh injects every namespace of the cluster, so nothing can be \
                             measured without it; remove that mesh first"
                        );
                    }
                }
                Some(proxy) => {
                    let Some((_, image)) = others.iter().find(|(other, _)| other == proxy) else {
                        bail!("{} injected no container {proxy} into pod {name}", self.mesh.name());
                    };
                    self.proxies.insert(image.clone());
                }
            }
            if let Some((annotation, value)) = &self.mesh.facts().carried
                && pod.annotations().get(annotation) != Some(value)
            {
                let mesh = self.mesh.name();
                bail!(
                    "{mesh} does not carry the traffic of pod {name}: it has no {annotation}={value}"
                );
            }
        }
        Ok(())
    }

    /// Waits until each service answers the client. If the services are those of a real application, only those under
    /// load are asked, because the others may not speak HTTP, and the limit is longer, because they take longer to find
    /// each other.
    pub(super) async fn answers(&self) -> Result<()> {
        let (asked, what, limit) = match self.real {
            true => {
                let loaded = self.scenario.loaded() as usize;
                (&self.addresses[..loaded], "the application answers", real_application::ANSWERED)
            }
            false => (&self.addresses[..], "every service answers", ANSWERED),
        };
        let plans = real_application::questions(asked, self.scenario);
        repeated((what, limit), async || {
            let report = self.load(&plans).await?;
            let Some(far) = real_application::unanswered(&report) else {
                return Ok(PollResult::There(()));
            };
            // Some containers listen first, and then end because they do not find another service.
            if let Some(why) = self.ground.pods().await?.iter().find_map(permanent_failure) {
                bail!("{why}");
            }
            Ok(PollResult::NotYet(far))
        })
        .await
    }

    /// The image IDs of a real application's services on their nodes. Empty if the services are the suite's own.
    pub(super) async fn images(&self) -> Result<BTreeMap<String, String>> {
        if !self.real {
            return Ok(BTreeMap::new());
        }
        let is_one =
            |name: &str| (0..self.scenario.services).any(|nth| self.scenario.service(nth) == name);
        let pods = self.ground.pods().await?;
        let ours = pods.iter().filter(|pod| is_one(&pod.name_any()));
        Ok(ours.filter_map(|pod| Some((pod.name_any(), image_id(pod)?))).collect())
    }

    /// Writes revisions of the mesh's configuration for the given time.
    pub(super) async fn disturb(&self, time: Duration) -> RevisionResults {
        match &self.revisions {
            Some(revisions) => revisions.give(&self.ground.client, time).await,
            None => RevisionResults::default(),
        }
    }

    /// Reads how many of the revisions took effect, after the load has ended.
    pub(super) async fn arrived(&self, given: &mut RevisionResults) {
        if let Some(revisions) = &self.revisions {
            revisions.look(&self.ground.client, given).await;
        }
    }

    /// Waits until the pods are ready again after one of their containers was killed.
    pub(super) async fn runs_again(&self, killed: &Component) -> Result<()> {
        let what = "the proxy that was killed is there again";
        repeated((what, READY), async || {
            let now = self.watched().await?;
            let is_new = |one: &Component| one.name == killed.name && one.id != killed.id;
            let there = now.iter().any(is_new);
            Ok(if there { PollResult::There(()) } else { PollResult::NotYet(killed.name.clone()) })
        })
        .await?;
        self.ready().await.map(drop)
    }

    /// The running containers whose resources are measured.
    pub(super) async fn watched(&self) -> Result<Vec<Component>> {
        let listed = async {
            let mut pods = self.ground.pods().await?;
            pods.extend(self.ground.pods_of(self.mesh, self.roles.system.as_deref()).await?);
            Ok(pods.iter().flat_map(|pod| self.roles.watched(pod)).collect())
        };
        within(LISTED, listed).await.context("cannot list the running containers")
    }

    /// A namespace of the mesh that this run did not create.
    pub(super) async fn foreign_namespace(&self) -> Result<Option<String>> {
        let BenchCluster { client, namespace, .. } = self.ground;
        let asked = async { Ok(install::foreign_namespace(client, self.mesh, namespace).await?) };
        within(LISTED, asked).await.context("cannot determine who installed the mesh")
    }

    /// The mark for a control plane that partly runs on nodes without a watcher.
    pub(super) fn uncounted(&self) -> Option<Mark> {
        let why = |node| {
            format!("the control plane on {node} is not counted: not Ready, or on its way out")
        };
        Mark::of_all(
            MarkKind::ControlUncounted,
            &self.uncounted.iter().map(why).collect::<Vec<_>>(),
        )
    }
}

impl BenchCluster {
    /// Applies an object. Retries as long as a newly installed webhook does not answer.
    async fn admit(&self, object: &Value) -> Result<()> {
        let begin = Instant::now();
        loop {
            let Err(error) = leno_operate::apply(&self.client, object, MANAGER).await else {
                return Ok(());
            };
            let webhook = error.said().contains("failed calling webhook");
            if !webhook || begin.elapsed() > ADMITTED {
                return Err(error.into());
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    async fn pods(&self) -> Result<Vec<Pod>> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let ours = ListParams::default().labels(&format!("{}={}", MANAGED.0, MANAGED.1));
        let found = pods.list(&ours).await.map_err(Error::api("list the pods of the bench"))?;
        Ok(found.items)
    }

    /// The pods of a mesh: those in its namespace, and those on nodes, which may be in other namespaces.
    async fn pods_of(&self, mesh: Mesh, system: Option<&str>) -> Result<Vec<Pod>> {
        let client = &self.client;
        let mut pods = Vec::new();
        if let Some(system) = system {
            let all: Api<Pod> = Api::namespaced(client.clone(), system);
            let found = all.list(&ListParams::default()).await;
            pods.extend(found.map_err(Error::api(format!("list pods of {system}")))?);
        }
        for label in &mesh.facts().on_nodes {
            let all: Api<Pod> = Api::all(client.clone());
            let found = all.list(&ListParams::default().labels(label)).await;
            let found = found.map_err(Error::api(format!("list pods with the label {label}")))?;
            pods.extend(found.into_iter().filter(|pod| pod.namespace().as_deref() != system));
        }
        Ok(pods)
    }

    /// The roles of the measurement, which include the nodes to watch; the images of proxies on
    /// nodes; and the nodes of the control plane that cannot be watched.
    async fn roles(&self, plan: &Plan<'_>) -> Result<(Roles, BTreeSet<String>, BTreeSet<String>)> {
        let Plan { mesh, scenario, placement, .. } = *plan;
        let system = install::system(&self.client, mesh).await?;
        let flooded = scenario.neighbours.first().map(|one| scenario.service(one.service));
        let carriers = Carriers::of(placement.names(), flooded.as_deref());
        let mut nodes: BTreeSet<String> = carriers.nodes().map(str::to_owned).collect();
        let (mut beside, mut proxies) = (BTreeSet::new(), BTreeSet::new());
        let mut control = Vec::new();
        for pod in self.pods_of(mesh, system.as_deref()).await? {
            if pod.namespace() != system {
                beside.extend(pod.namespace());
            }
            match mesh.role_of(&pod.name_any()) {
                Role::Control => control.push(pod),
                Role::Proxy => proxies.extend(containers(&pod).map(|(_, image)| image)),
                _ => {}
            }
        }
        let (there, mut uncounted) = nodes_of(&control, &nodes::ready(&self.client).await?);
        nodes.extend(there);
        uncounted.retain(|node| !nodes.contains(node));
        let namespace = self.namespace.clone();
        let roles = Roles { namespace, mesh, system, beside, flooded, nodes, carriers };
        Ok((roles, proxies, uncounted))
    }
}

fn address(service: &Value) -> Result<SocketAddr> {
    let ip = service.pointer("/spec/clusterIP").and_then(Value::as_str).unwrap_or_default();
    let ip = ip.parse().with_context(|| format!("a service has the address {ip:?}"))?;
    let port = service.pointer("/spec/ports/0/port").and_then(Value::as_u64);
    let port = port.and_then(|port| port.try_into().ok()).unwrap_or(PORT);
    Ok(SocketAddr::new(ip, port))
}
