//! From documents to a plan: instances with addresses, services with VIPs and endpoints.
//!
//! Planning does not start or create anything. The same documents with the same earlier plan give the same result,
//! except that planning checks whether the users that documents name exist on this machine. After an edit, every
//! instance and service that remains keeps its addresses.

mod aliases;
mod datagrams;
mod depends;
mod launch;
mod render;
mod services;
mod settings;
#[cfg(test)]
mod tests;
mod workloads;
mod zone;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::discovery::v1::EndpointSlice;
use leno_capture::CaptureChoice;
use leno_flows::{CpuBudget, FlowMetricsSource};
use leno_resources::{Documents, Located, Object, Problem, Workload};
use leno_types::{Egress, InstanceName, MtlsMode, ServiceName};

use crate::addresses::{Addresses, Allocation};
use crate::listening::OneFamily;
use crate::ranges::MeshRanges;

pub use launch::{
    BoundVolume, CertificateOrigin, InstanceLaunch, InstanceProbe, ProbeQuestion, RunAs, Timetable,
};
pub use leno_supervise::ProcessSharing;
use services::PlannedService;
pub use settings::ProxyMode;

/// The instances and services of a mesh, as its documents describe them.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// The instances.
    pub instances: BTreeMap<InstanceName, PlannedInstance>,
    services: BTreeMap<ServiceName, PlannedService>,
    workloads: Vec<Workload>,
    /// EndpointSlices from the documents, for services without a selector.
    slices: Vec<EndpointSlice>,
    /// Objects that the control plane gets unchanged.
    others: Vec<Object>,
    numbers: Numbers,
    ranges: MeshRanges,
    /// The sizes of the table of flows and of its queue of changes, if documents set them.
    pub flow_sizes: (Option<u32>, Option<u32>),
}

/// One instance of a workload, as planned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedInstance {
    /// Its name.
    pub name: InstanceName,
    /// The workload that it belongs to.
    pub workload: Arc<str>,
    /// The label of its lines of output. It includes the namespace if the mesh has several.
    pub label: String,
    /// Its names in DNS.
    pub full_names: Vec<String>,
    /// Its addresses.
    pub addresses: Addresses,
    /// The ports that it declares.
    pub listening: Vec<u16>,
    /// Addresses of this machine at which ports are published, each with the instance's port.
    pub published: Vec<(SocketAddr, u16)>,
    /// What its inbound side does with plaintext.
    pub mtls: MtlsMode,
    /// The source of its flow metrics.
    pub flows: FlowMetricsSource,
    /// The CPU budget for accounting the flows of its workload, if the documents set it.
    pub flow_budget: Option<CpuBudget>,
    /// In node mode, how long the instance must be busy before it gets its own proxy process, if its documents set
    /// it. `Some(None)` turns that off.
    pub promote_after: Option<Option<Duration>>,
    /// How its processes are started. If this changes, the instance must be restarted; other changes need no
    /// restart.
    pub launch: InstanceLaunch,
}

/// The instances that take traffic. Each has a list of its ports that are open in only one address family.
pub type ReadyInstances = BTreeMap<InstanceName, OneFamily>;

/// The defaults for what documents do not set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanDefaults {
    /// What inbound sides do with plaintext.
    pub mtls: MtlsMode,
    /// Whether workloads may call destinations outside of the mesh that it has no document for.
    pub egress: Egress,
    /// Whether proxies are sidecars or node proxies.
    pub mode: ProxyMode,
    /// In node mode, which instances share a proxy.
    pub share: ProcessSharing,
    /// How traffic is captured.
    pub capture: CaptureChoice,
    /// The source of flow metrics.
    pub flows: FlowMetricsSource,
    /// Whether the machine has IPv6.
    pub ipv6: bool,
    /// The IPv4 ranges of the mesh's addresses.
    pub ranges: MeshRanges,
    /// Whether certificates of proxies come from a SPIFFE Workload API.
    pub spiffe: bool,
}

/// The numbers of all owners of addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Numbers {
    instances: Allocation,
    services: Allocation,
}

/// The state during planning.
struct Draft<'a> {
    documents: &'a Documents,
    defaults: PlanDefaults,
    problems: Vec<Problem>,
    plan: Plan,
}

impl Plan {
    /// All instances, each as if it took traffic in both address families.
    #[must_use]
    pub fn all_ready(&self) -> ReadyInstances {
        self.instances.keys().map(|name| (name.clone(), OneFamily::default())).collect()
    }

    /// Plans these documents. Owners of addresses in the earlier plan `before` keep them.
    ///
    /// # Errors
    /// All reasons why the documents cannot be run here, each with its place.
    pub fn make(
        documents: &Documents,
        defaults: PlanDefaults,
        before: &Self,
    ) -> Result<Self, Vec<Problem>> {
        let plan = Self {
            numbers: before.numbers.clone(),
            ranges: defaults.ranges,
            flow_sizes: settings::flow_sizes(documents),
            ..Self::default()
        };
        let mut draft = Draft { documents, defaults, problems: Vec::new(), plan };
        draft.pass_on();
        draft.add_workloads();
        draft.add_services();
        draft.resolve_aliases();
        draft.name_instances();
        draft.check_published();
        draft.check_dependencies();
        draft.problems.sort_by(|a, b| (&a.file, a.place).cmp(&(&b.file, b.place)));
        if draft.problems.is_empty() { Ok(draft.plan) } else { Err(draft.problems) }
    }

    /// Whether the running `instance` matches the plan, so that it need not be restarted.
    #[must_use]
    pub fn wants(&self, instance: &PlannedInstance) -> bool {
        let wanted = self.instances.get(&instance.name);
        wanted.is_some_and(|w| w.launch == instance.launch && w.addresses == instance.addresses)
    }

    /// If the plan changes nothing of the running `instance` except the group in node mode, the new group; `None`
    /// in its place stands for a sidecar. The instance keeps running while it moves to the new proxy.
    #[must_use]
    pub fn moves(&self, instance: &PlannedInstance) -> Option<&Option<String>> {
        let (from, to) =
            (&instance.launch.group, &self.instances.get(&instance.name)?.launch.group);
        let mut moved = instance.clone();
        moved.launch.group.clone_from(to);
        let is_meshed = moved.launch.meshed && !moved.launch.waypoint;
        (from != to && is_meshed && self.wants(&moved)).then_some(to)
    }

    /// Whether any workload has a proxy.
    #[must_use]
    pub fn meshed(&self) -> bool {
        self.instances.values().any(|instance| instance.launch.meshed)
    }

    /// How many services there are.
    #[must_use]
    pub fn services(&self) -> usize {
        self.services.len()
    }
}

impl Draft<'_> {
    fn problem(&mut self, of: &Located<Object>, path: &str, reason: String) {
        let objects = &self.documents.objects;
        let index = objects.iter().position(|one| std::ptr::eq(one, of));
        let outline = index.and_then(|index| self.documents.outlines.get(index));
        self.problems.push(Problem {
            file: of.file.clone(),
            place: outline.map_or(of.place, |outline| outline.place(path)),
            path: outline.map_or_else(|| path.to_owned(), |outline| outline.field(path)),
            reason,
        });
    }

    /// Adds objects that need no planning unchanged, and rejects those that `leno up` cannot run.
    fn pass_on(&mut self) {
        for located in &self.documents.objects {
            match &located.value {
                Object::Namespace(_)
                | Object::ServiceAccount(_)
                | Object::HttpRoute(_)
                | Object::GrpcRoute(_)
                | Object::TlsRoute(_)
                | Object::TcpRoute(_)
                | Object::ReferenceGrant(_)
                | Object::ConfigMap(_)
                | Object::Secret(_)
                | Object::BackendTlsPolicy(_)
                | Object::TrafficPolicy(_)
                | Object::RateLimitPolicy(_)
                | Object::AuthorizationPolicy(_)
                | Object::PodExemption(_)
                | Object::ServiceLevelObjective(_) => {
                    self.plan.others.push(located.value.clone());
                }
                Object::EndpointSlice(slice) => self.plan.slices.push((**slice).clone()),
                Object::Proxy(_) => {
                    let reason = "a Proxy document is for `leno-proxy --static`: remove it, \
                                  because leno up creates its proxies itself";
                    self.problem(located, "", reason.to_owned());
                }
                Object::Service(_) | Object::Workload(_) => {}
            }
        }
    }

    fn name_instances(&mut self) {
        let namespaces: BTreeSet<_> =
            self.plan.instances.keys().map(|name| name.namespace.clone()).collect();
        for instance in self.plan.instances.values_mut() {
            instance.label = match namespaces.len() {
                1 => instance.name.name.to_string(),
                _ => instance.name.to_string(),
            };
            for (name, service) in &self.plan.services {
                if service.serves(&instance.name) {
                    let (host, domain) = (&instance.name.name, crate::dns::DOMAIN);
                    let full = format!("{host}.{}.{}.svc.{domain}", name.name, name.namespace);
                    instance.full_names.push(full);
                }
            }
        }
    }
}

impl Draft<'_> {
    /// Rejects an address of this machine at which two workloads want to publish a port.
    fn check_published(&mut self) {
        let mut holders: BTreeMap<SocketAddr, String> = BTreeMap::new();
        let documents = self.documents;
        for located in &documents.objects {
            let Object::Workload(workload) = &located.value else { continue };
            for (index, port) in workload.spec.ports.iter().enumerate() {
                let Some(published) = port.published else { continue };
                let of = located.value.key().to_string();
                let Some(other) = holders.get(&published.0) else {
                    holders.insert(published.0, of);
                    continue;
                };
                let reason =
                    format!("{} is already published by {other}: use another port", published.0);
                self.problem(located, &format!("spec.ports[{index}].published"), reason);
            }
        }
    }
}
