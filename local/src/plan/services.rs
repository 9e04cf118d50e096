//! Plans services: their VIPs, and the instances behind them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Service as ServiceObject, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use leno_resources::{Located, Object, Workload, WorkloadPort};
use leno_types::{InstanceName, Protocol, ServiceName, UDP_APP_PROTOCOL};

use super::Draft;

/// The value of `clusterIP` that makes a service headless.
const HEADLESS: &str = "None";

/// A service with the fields that Kubernetes would fill in.
#[derive(Clone, Debug)]
pub(super) struct PlannedService {
    /// The document, with VIPs and protocols filled in.
    pub(super) object: ServiceObject,
    /// Its VIPs, IPv4 first; empty for a headless service.
    pub(super) vips: Vec<IpAddr>,
    /// The instances behind it.
    pub(super) endpoints: Vec<PlannedEndpoint>,
    /// Whether endpoints that are not ready are listed as well.
    pub(super) lists_unready: bool,
}

/// An instance behind a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PlannedEndpoint {
    pub(super) instance: InstanceName,
    /// For each port of the service, the instance's port that it leads to; `None` if the instance has no such
    /// port.
    pub(super) ports: Vec<Option<u16>>,
}

/// Which VIPs the documents request for a service, if any.
enum VipRequest {
    Headless,
    Vips { given: Vec<IpAddr>, v4: bool, v6: bool },
}

impl PlannedService {
    /// Whether the instance is an endpoint of the service.
    pub(super) fn serves(&self, instance: &InstanceName) -> bool {
        self.endpoints.iter().any(|endpoint| endpoint.instance == *instance)
    }

    /// The name that the service is an alias of, if it is an alias.
    pub(super) fn external_name(&self) -> Option<&str> {
        let spec = self.object.spec.as_ref().filter(|spec| is_alias(spec))?;
        spec.external_name.as_deref()
    }

    pub(super) fn ports(&self) -> &[ServicePort] {
        self.object.spec.as_ref().and_then(|spec| spec.ports.as_deref()).unwrap_or_default()
    }
}

impl Draft<'_> {
    /// Adds all services: those in documents, and those that workloads with ports imply.
    pub(super) fn add_services(&mut self) {
        let documents = self.documents;
        let mut found: Vec<(ServiceName, &Located<Object>, ServiceObject)> = Vec::new();
        for located in &documents.objects {
            if let Object::Service(object) = &located.value
                && let Some(name) = self.service_name(located, &located.value)
            {
                found.push((name, located, (**object).clone()));
            }
        }
        let given: BTreeSet<ServiceName> = found.iter().map(|(name, ..)| name.clone()).collect();
        for located in &documents.objects {
            if let Object::Workload(workload) = &located.value
                && !workload.spec.ports.is_empty()
                && let Some(name) = self.service_name(located, &located.value)
                && !given.contains(&name)
            {
                found.push((name, located, implied(workload)));
            }
        }
        let wanted: Vec<(&Located<Object>, VipRequest)> =
            found.iter().map(|(_, at, object)| (*at, self.wanted(at, object))).collect();
        let names: Vec<&ServiceName> = found.iter().map(|(name, ..)| name).collect();
        let Some(vips) = self.vips(&names, &wanted) else { return };
        for ((name, located, object), vips) in found.into_iter().zip(vips) {
            let service = self.service(located, object, vips, !given.contains(&name));
            self.plan.services.insert(name, service);
        }
    }

    fn service_name(&mut self, located: &Located<Object>, object: &Object) -> Option<ServiceName> {
        let key = object.key();
        match ServiceName::new(&key.namespace, &key.name) {
            Ok(name) => Some(name),
            Err(error) => {
                self.problem(located, "metadata.name", error.to_string());
                None
            }
        }
    }

    /// Determines from `clusterIP`, `clusterIPs` and the address families which VIPs a service wants.
    fn wanted(&mut self, located: &Located<Object>, object: &ServiceObject) -> VipRequest {
        let spec = object.spec.clone().unwrap_or_default();
        // An alias without ports exists only in DNS and needs no VIP.
        if is_alias(&spec) && spec.ports.as_ref().is_none_or(Vec::is_empty) {
            return VipRequest::Headless;
        }
        let mut texts = spec.cluster_ips.unwrap_or_default();
        if let Some(first) = spec.cluster_ip.filter(|text| !text.is_empty())
            && !texts.contains(&first)
        {
            texts.insert(0, first);
        }
        if texts.iter().any(|text| text == HEADLESS) {
            return VipRequest::Headless;
        }
        let range = self.defaults.ranges.services(self.defaults.ipv6);
        let mut given = Vec::new();
        for text in texts {
            match text.parse::<IpAddr>() {
                Ok(address) if range.number(address).is_some() => given.push(address),
                _ => {
                    let reason = format!(
                        "{text} is not in the address range of services: use an address of {} or \
                         fd96::/112, use None, or remove the field",
                        self.defaults.ranges.services_v4()
                    );
                    self.problem(located, "spec.clusterIP", reason);
                }
            }
        }
        let policy = spec.ip_family_policy.as_deref();
        let dual = matches!(policy, Some("PreferDualStack" | "RequireDualStack"));
        let families = spec.ip_families.unwrap_or_default();
        let (v4, v6) = match (families.as_slice(), policy) {
            ([], Some("SingleStack")) => match given.first() {
                Some(IpAddr::V6(_)) => (false, true),
                _ => (true, false),
            },
            ([], _) => (true, true),
            (families, _) => {
                let has = |family: &str| dual || families.iter().any(|f| f == family);
                (has("IPv4"), has("IPv6"))
            }
        };
        VipRequest::Vips { given, v4, v6 }
    }

    /// Assigns VIPs to every service that wants them: the requested ones, or others from the range.
    fn vips(
        &mut self,
        names: &[&ServiceName],
        wanted: &[(&Located<Object>, VipRequest)],
    ) -> Option<Vec<Vec<IpAddr>>> {
        let range = self.defaults.ranges.services(self.defaults.ipv6);
        let mut holders: BTreeMap<IpAddr, &ServiceName> = BTreeMap::new();
        for (name, (located, wanted)) in names.iter().zip(wanted) {
            let VipRequest::Vips { given, .. } = wanted else { continue };
            for address in given {
                if let Some(other) = holders.insert(*address, name) {
                    let reason = format!(
                        "{address} is already the address of {other}: use another \
                         address"
                    );
                    self.problem(located, "spec.clusterIP", reason);
                }
            }
        }
        let reserved: Vec<u16> = holders.keys().filter_map(|a| range.number(*a)).collect();
        let complete = |given: &[IpAddr], v4: bool, v6: bool| {
            let has = |wants_v4| given.iter().any(|address| address.is_ipv4() == wants_v4);
            (!v4 || has(true)) && (!v6 || has(false))
        };
        let owner = |name: &ServiceName| (name.namespace.to_string(), name.name.to_string());
        let owners = names.iter().zip(wanted).filter_map(|(name, (_, wanted))| match wanted {
            VipRequest::Vips { given, v4, v6 } if !complete(given, *v4, *v6) => Some(owner(name)),
            _ => None,
        });
        let Some(numbers) = self.plan.numbers.services.assign(owners, &reserved) else {
            if let Some((located, _)) = wanted.last() {
                let reason = "there are more services than addresses in their range: make some \
                              headless (clusterIP: None)";
                self.problem(located, "spec.clusterIP", reason.to_owned());
            }
            return None;
        };
        let vips = names.iter().zip(wanted).map(|(name, (_, wanted))| {
            let VipRequest::Vips { given, v4, v6 } = wanted else { return Vec::new() };
            let own = numbers.number(&owner(name)).map(|number| range.addresses(number));
            let own: Vec<IpAddr> = own.iter().flat_map(|addresses| addresses.iter()).collect();
            let family = |wants_v4: bool| {
                let of = |address: &&IpAddr| address.is_ipv4() == wants_v4;
                given.iter().find(of).or_else(|| own.iter().find(of)).copied()
            };
            let wants = [v4.then(|| family(true)), v6.then(|| family(false))];
            wants.into_iter().flatten().flatten().collect()
        });
        let vips = vips.collect();
        self.plan.numbers.services = numbers;
        Some(vips)
    }

    /// Completes a service: its VIPs, endpoints, and the protocols of its ports.
    fn service(
        &mut self,
        located: &Located<Object>,
        mut object: ServiceObject,
        vips: Vec<IpAddr>,
        implied: bool,
    ) -> PlannedService {
        let key = leno_resources::Object::Service(Box::new(object.clone())).key();
        let spec = object.spec.get_or_insert_default();
        let alias = is_alias(spec);
        let texts: Vec<String> = match vips.as_slice() {
            [] => vec![HEADLESS.to_owned()],
            vips => vips.iter().map(IpAddr::to_string).collect(),
        };
        spec.cluster_ip = texts.first().cloned();
        spec.cluster_ips = Some(texts);
        let selector = spec.selector.clone().unwrap_or_default();
        let selected: Vec<Workload> = self
            .plan
            .workloads
            .iter()
            .filter(|workload| workload.metadata.namespace == key.namespace && !alias)
            .filter(|workload| match implied {
                true => workload.metadata.name == key.name,
                false => matches(&selector, &workload.metadata.labels),
            })
            .cloned()
            .collect();
        let mut ports = spec.ports.take().unwrap_or_default();
        for (index, port) in ports.iter_mut().enumerate() {
            let targets: Vec<_> = selected.iter().filter_map(|w| target(port, w)).collect();
            if targets.is_empty() && !selected.is_empty() {
                let name = match &port.target_port {
                    Some(IntOrString::String(name)) => name.clone(),
                    _ => String::new(),
                };
                let path = format!("spec.ports[{index}].targetPort");
                let reason = format!(
                    "no selected workload has a port named {name:?}: declare it \
                     there, or correct targetPort"
                );
                self.problem(located, &path, reason);
            }
            fill_protocol(port, &targets);
            let is_carried = port.app_protocol.as_deref() == Some(UDP_APP_PROTOCOL);
            if is_carried && port.protocol.as_deref() != Some("UDP") {
                let path = format!("spec.ports[{index}].protocol");
                let reason = "the workloads declare this port for UDP: set protocol: UDP";
                self.problem(located, &path, reason.to_owned());
            }
            if let Some(transport @ ("UDP" | "SCTP")) = port.protocol.as_deref()
                && !vips.is_empty()
                && !(transport == "UDP" && is_carried)
            {
                let path = format!("spec.ports[{index}].protocol");
                let unless = match transport {
                    "UDP" => format!(" without appProtocol: {UDP_APP_PROTOCOL}"),
                    _ => String::new(),
                };
                let reason = format!(
                    "the address of a Service carries only TCP, not {transport}{unless}: make it \
                     headless (clusterIP: None), so that clients connect to the instances \
                     themselves"
                );
                self.problem(located, &path, reason);
            }
        }
        let endpoints = selected.iter().flat_map(|workload| endpoints(workload, &ports)).collect();
        spec.ports = Some(ports).filter(|ports| !ports.is_empty());
        let lists_unready = spec.publish_not_ready_addresses.unwrap_or_default();
        PlannedService { object, vips, endpoints, lists_unready }
    }
}

/// The target of a service's port on a workload: the number, and the workload's declaration of it. `None` if the
/// workload has no port with that name.
type Target<'a> = (u16, Option<&'a WorkloadPort>);

fn target<'a>(port: &ServicePort, workload: &'a Workload) -> Option<Target<'a>> {
    let declared = &workload.spec.ports;
    match &port.target_port {
        Some(IntOrString::String(name)) => {
            let found = declared.iter().find(|candidate| candidate.name == *name)?;
            Some((found.port, Some(found)))
        }
        other => {
            let number = match other {
                Some(IntOrString::Int(number)) if *number != 0 => *number,
                _ => port.port,
            };
            let number = u16::try_from(number).ok()?;
            Some((number, declared.iter().find(|candidate| candidate.port == number)))
        }
    }
}

/// If a service's port has no protocol, sets it to the protocol of the target ports in the workloads, if these
/// agree.
fn fill_protocol(port: &mut ServicePort, targets: &[Target<'_>]) {
    if port.app_protocol.is_some() {
        return;
    }
    let declared = |target: &Target<'_>| target.1.and_then(|port| port.app_protocol.clone());
    let said: BTreeSet<Option<String>> = targets.iter().map(declared).collect();
    if said.len() == 1 {
        port.app_protocol = said.into_iter().next().flatten();
    }
}

fn endpoints(workload: &Workload, ports: &[ServicePort]) -> Vec<PlannedEndpoint> {
    let ports: Vec<Option<u16>> =
        ports.iter().map(|port| target(port, workload).map(|(number, _)| number)).collect();
    let endpoint = |index| {
        let name = workload.instance_name(index);
        // If the name is invalid, that was reported with the workload.
        let instance = InstanceName::new(&workload.metadata.namespace, &name).ok()?;
        Some(PlannedEndpoint { instance, ports: ports.clone() })
    };
    (0..workload.spec.replicas).filter_map(endpoint).collect()
}

/// Whether a service is an alias of a name outside of the mesh or of another service.
pub(super) fn is_alias(spec: &ServiceSpec) -> bool {
    spec.type_.as_deref() == Some("ExternalName")
}

/// An empty selector selects nothing: the documents have the service's endpoints.
pub(super) fn matches(
    selector: &BTreeMap<String, String>,
    labels: &BTreeMap<String, String>,
) -> bool {
    !selector.is_empty() && selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}

/// The service that a workload with ports implies if no document declares a service of that name.
fn implied(workload: &Workload) -> ServiceObject {
    let transport = |port: &WorkloadPort| match port.protocol() {
        Protocol::Udp => "UDP",
        _ => "TCP",
    };
    let port = |port: &WorkloadPort| ServicePort {
        name: Some(port.name.clone()).filter(|name| !name.is_empty()),
        port: port.port.into(),
        protocol: Some(transport(port).to_owned()),
        app_protocol: port.app_protocol.clone(),
        ..ServicePort::default()
    };
    ServiceObject {
        metadata: ObjectMeta {
            name: Some(workload.metadata.name.clone()),
            namespace: Some(workload.metadata.namespace.clone()),
            ..ObjectMeta::default()
        },
        spec: Some(ServiceSpec {
            ports: Some(workload.spec.ports.iter().map(port).collect()),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}
