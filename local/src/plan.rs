//! From documents to what is to run: instances with addresses, services with VIPs and endpoints.
//!
//! Nothing is started and nothing made, and the same documents over the same earlier plan give the same
//! plan; of the machine it asks only whether it has the users that documents name.
//! An edit keeps every address whose owner stays.

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

/// What is to run.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// The instances.
    pub instances: BTreeMap<InstanceName, PlannedInstance>,
    services: BTreeMap<ServiceName, PlannedService>,
    workloads: Vec<Workload>,
    /// Slices that were given, for services without a selector.
    slices: Vec<EndpointSlice>,
    /// Objects that are passed on as they are.
    others: Vec<Object>,
    numbers: Numbers,
    ranges: MeshRanges,
    /// How many flows the table holds, and how many changes of them wait, where documents say so.
    pub flow_sizes: (Option<u32>, Option<u32>),
}

/// One instance of a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedInstance {
    /// Its name.
    pub name: InstanceName,
    /// The workload it is an instance of.
    pub workload: Arc<str>,
    /// The name in front of its output: with the namespace where there are several.
    pub label: String,
    /// Its names in DNS.
    pub full_names: Vec<String>,
    /// Its addresses.
    pub addresses: Addresses,
    /// The ports it declares.
    pub listening: Vec<u16>,
    /// Addresses of this machine, and the ports of it that they lead to.
    pub published: Vec<(SocketAddr, u16)>,
    /// What its inbound side does with plaintext.
    pub mtls: MtlsMode,
    /// Where its flows are read.
    pub flows: FlowMetricsSource,
    /// The most that accounting for the flows of its workload may cost, if they say so.
    pub flow_budget: Option<CpuBudget>,
    /// In node mode, how long it is busy before it gets a process of its own, if its documents say so; `None` in it: it gets
    /// none.
    pub promote_after: Option<Option<Duration>>,
    /// What is started; another one needs a restart, everything else does not.
    pub launch: InstanceLaunch,
}

/// The instances that take traffic, each with its ports that are open in one family alone.
pub type ReadyInstances = BTreeMap<InstanceName, OneFamily>;

/// What holds where documents say nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanDefaults {
    /// What inbound sides do with plaintext.
    pub mtls: MtlsMode,
    /// Whether workloads may call what the mesh does not know.
    pub egress: Egress,
    /// Where proxies run.
    pub mode: ProxyMode,
    /// In node mode, which instances share one.
    pub share: ProcessSharing,
    /// How traffic is captured.
    pub capture: CaptureChoice,
    /// Where flows are read.
    pub flows: FlowMetricsSource,
    /// Whether there is IPv6.
    pub ipv6: bool,
    /// The addresses of IPv4.
    pub ranges: MeshRanges,
    /// Whether certificates of proxies come from a SPIFFE Workload API.
    pub spiffe: bool,
}

/// Who has which addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Numbers {
    instances: Allocation,
    services: Allocation,
}

/// What is known while a plan is made.
struct Draft<'a> {
    documents: &'a Documents,
    defaults: PlanDefaults,
    problems: Vec<Problem>,
    plan: Plan,
}

impl Plan {
    /// All instances, as if each took traffic in both families.
    #[must_use]
    pub fn all_ready(&self) -> ReadyInstances {
        self.instances.keys().map(|name| (name.clone(), OneFamily::default())).collect()
    }

    /// Makes the plan for these documents; addresses of `before` are kept.
    ///
    /// # Errors
    /// Every reason why the documents cannot be run here, with its place.
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

    /// Whether `instance`, as it runs, is what the plan wants, so that it need not be started again.
    #[must_use]
    pub fn wants(&self, instance: &PlannedInstance) -> bool {
        let wanted = self.instances.get(&instance.name);
        wanted.is_some_and(|w| w.launch == instance.launch && w.addresses == instance.addresses)
    }

    /// The group of node mode that `instance` is to go to, or `None` in it for a proxy of its own, where that is all in which it
    /// differs from what the plan wants: it goes on meanwhile.
    #[must_use]
    pub fn moves(&self, instance: &PlannedInstance) -> Option<&Option<String>> {
        let (from, to) =
            (&instance.launch.group, &self.instances.get(&instance.name)?.launch.group);
        let mut moved = instance.clone();
        moved.launch.group.clone_from(to);
        let is_meshed = moved.launch.meshed && !moved.launch.waypoint;
        (from != to && is_meshed && self.wants(&moved)).then_some(to)
    }

    /// Whether anything has a proxy.
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

    /// Takes over what needs no work here, and refuses what `leno up` cannot run.
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
                    let reason = "a Proxy document is for `leno-proxy --static`: remove it, leno up \
                                  makes the proxies itself";
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
    /// Refuses an address of this machine that two ports of workloads want.
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
                let reason = format!("{} is published by {other} already", published.0);
                self.problem(located, &format!("spec.ports[{index}].published"), reason);
            }
        }
    }
}
