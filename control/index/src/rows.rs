//! Converts objects to rows, which have the fields that the mesh uses. Names and numbers in them are valid.
//!
//! Objects from [`leno_resources::load`] are always valid. An invalid object from another source gets no row, as
//! if it did not exist. If only its invalid part was ignored, mTLS could be turned off by mistake.

pub(crate) mod authorization;
pub(crate) mod external;
pub(crate) mod policies;
pub(crate) mod routes;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::discovery::v1::Endpoint;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use leno_resources::{
    EndpointSlice, PodMode, REDIRECTION_ANNOTATION, SERVICE_NAME_LABEL, Service, WaypointUse,
    Workload, egress, mtls_mode, path_reading, place, waypoint_use, wire_form,
};
use leno_types::authorization::PathReading;
use leno_types::mesh::{Distribution, Topology, WireForm};
use leno_types::{Egress, Identity, InstanceName, MtlsMode, Protocol, ServiceName, TrustDomain};

use crate::sharing::ShareParts;

/// A service: its VIPs and ports.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ServiceRow {
    pub(crate) vips: Vec<IpAddr>,
    /// The TCP ports, and the UDP ports whose datagrams proxies carry, by ascending number.
    pub(crate) ports: Vec<ServicePortRow>,
    /// The name of which an `ExternalName` service is an alias.
    pub(crate) external_name: Option<Arc<str>>,
    /// Which endpoints clients prefer.
    pub(crate) distribution: Distribution,
    /// Whether a client keeps its endpoint (`sessionAffinity: ClientIP`).
    pub(crate) keeps_clients: bool,
    /// The waypoint through which clients reach the service, if the service itself sets one.
    pub(crate) waypoint: Option<Box<WaypointUse>>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ServicePortRow {
    pub(crate) number: u16,
    pub(crate) name: Arc<str>,
    pub(crate) target: TargetPort,
    /// The declared protocol; `None` if the service declares none.
    pub(crate) protocol: Option<Protocol>,
}

/// The port on the workload, for slices that do not set it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum TargetPort {
    Number(u16),
    Name(String),
}

/// The endpoints in one slice of a service.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SliceRow {
    /// The TCP ports, and the UDP ports whose datagrams proxies carry.
    pub(crate) ports: Vec<SlicePortRow>,
    pub(crate) endpoints: Vec<EndpointRow>,
    /// Ready endpoints outside of the mesh that are known by DNS name.
    pub(crate) names: Vec<Arc<str>>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SlicePortRow {
    pub(crate) name: String,
    /// The number of the port; `None` for the service's target port.
    pub(crate) number: Option<u16>,
    /// The declared protocol; `None` if the slice declares none.
    pub(crate) protocol: Option<Protocol>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct EndpointRow {
    pub(crate) ip: IpAddr,
    pub(crate) ready: bool,
    /// Whether the endpoint is terminating but still serves.
    pub(crate) lingers: bool,
    /// The instance; `None` for an endpoint outside of the mesh.
    pub(crate) instance: Option<InstanceName>,
    /// The zone and node whose clients should prefer it.
    pub(crate) place: Topology,
}

/// One running instance: a pod, or one of a `Workload`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct InstanceRow {
    pub(crate) addresses: Vec<IpAddr>,
    /// Whether it has its own proxy, such as a sidecar.
    pub(crate) meshed: bool,
    /// The mode that a pod without a sidecar sets, which may make a node proxy serve it.
    pub(crate) mode: Option<PodMode>,
    /// Whether the agent of its node reports that a node proxy serves it.
    pub(crate) served: bool,
    /// The protocol that its proxy expects from other proxies, if the workload declares one because the proxy is
    /// not of this mesh.
    pub(crate) wire: Option<WireForm>,
    /// Whether it is a pod that a ztunnel serves, according to an annotation of Istio's CNI plugin.
    pub(crate) is_redirected: bool,
    pub(crate) mtls: Option<MtlsMode>,
    pub(crate) egress: Option<Egress>,
    /// How its application interprets paths.
    pub(crate) paths: Option<PathReading>,
    /// Its labels, by which policies select it.
    pub(crate) labels: Arc<BTreeMap<String, String>>,
    pub(crate) identity: Identity,
    pub(crate) ports: Arc<[InstancePortRow]>,
    /// The zone and node in which it runs.
    pub(crate) place: Topology,
    /// Whether it is terminating.
    pub(crate) ending: bool,
    pub(crate) origin: InstanceOrigin,
    /// The addresses of the node that a pod runs on.
    pub(crate) node: Box<[IpAddr]>,
    /// Whether it uses its node's network, so that its addresses are the node's.
    pub(crate) shares_node: bool,
}

/// The kind of object that an instance belongs to. The order of the variants is the order of
/// precedence.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum InstanceOrigin {
    /// A pod. A pod that is not terminating takes precedence, because it may already have the address of a
    /// terminating one; then the oldest pod does. `created` is in seconds since 1970.
    Pod { ending: bool, created: i64 },
    /// A `Workload`.
    Workload { created: i64 },
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct InstancePortRow {
    pub(crate) name: String,
    pub(crate) number: u16,
    pub(crate) protocol: Option<Protocol>,
}

/// Converts a service; `None` for an alias without ports, which exists only in DNS.
pub(crate) fn service(object: &Service) -> Option<(ServiceName, ServiceRow)> {
    let (namespace, name) = names(&object.metadata)?;
    let name = ServiceName::new(namespace, name).ok()?;
    let spec = object.spec.as_ref()?;
    let is_alias = spec.type_.as_deref() == Some("ExternalName");
    if is_alias && spec.ports.as_ref().is_none_or(Vec::is_empty) {
        return None;
    }
    let external_name = spec.external_name.as_deref().filter(|_| is_alias).map(external::host);
    let texts = spec.cluster_ips.iter().flatten().chain(&spec.cluster_ip);
    let vips = addresses(texts.filter_map(|text| text.parse().ok()));
    let mut ports: Vec<_> = spec
        .ports
        .iter()
        .flatten()
        .filter_map(|port| {
            let protocol = carried(port.protocol.as_deref(), port.app_protocol.as_deref())?;
            let number = port_number(port.port)?;
            let target = match &port.target_port {
                None => TargetPort::Number(number),
                Some(IntOrString::Int(target)) => TargetPort::Number(port_number(*target)?),
                Some(IntOrString::String(target)) => TargetPort::Name(target.clone()),
            };
            let name = port.name.as_deref().unwrap_or_default().into();
            Some(ServicePortRow { number, name, target, protocol })
        })
        .collect();
    // If the same number is also a TCP port, only TCP is served.
    ports.sort_by_key(|port| (port.number, port.protocol == Some(Protocol::Udp)));
    ports.dedup_by_key(|port| port.number);
    let distribution = match spec.traffic_distribution.as_deref() {
        Some("PreferClose" | "PreferSameZone") => Distribution::SameZone,
        Some("PreferSameNode") => Distribution::SameNode,
        _ => Distribution::Any,
    };
    let keeps_clients = spec.session_affinity.as_deref() == Some("ClientIP");
    let (labels, annotations) =
        (object.metadata.labels.as_ref(), object.metadata.annotations.as_ref());
    let waypoint = waypoint_use(labels, annotations, namespace).map(Box::new);
    Some((name, ServiceRow { vips, ports, external_name, distribution, keeps_clients, waypoint }))
}

/// Converts a slice. Also returns the service to which it belongs.
pub(crate) fn slice(object: &EndpointSlice) -> Option<(ServiceName, SliceRow)> {
    let (namespace, _) = names(&object.metadata)?;
    let service = object.metadata.labels.as_ref()?.get(SERVICE_NAME_LABEL)?;
    let service = ServiceName::new(namespace, service).ok()?;
    let ports = object.ports.iter().flatten().filter_map(|port| {
        let protocol = carried(port.protocol.as_deref(), port.app_protocol.as_deref())?;
        let name = port.name.clone().unwrap_or_default();
        Some(SlicePortRow { name, number: port.port.and_then(port_number), protocol })
    });
    let names = external::names(object);
    let endpoints = object.endpoints.iter().flatten().filter_map(|endpoint| {
        // Kubernetes only defines the meaning of the first address.
        let ip: IpAddr = endpoint.addresses.first()?.parse().ok()?;
        let conditions = endpoint.conditions.as_ref();
        let target = endpoint.target_ref.as_ref();
        let target = target.filter(|t| matches!(t.kind.as_deref(), Some("Pod" | "Workload")));
        let instance = target.and_then(|target| {
            let namespace = target.namespace.as_deref().unwrap_or(namespace);
            InstanceName::new(namespace, target.name.as_deref()?).ok()
        });
        let ready = conditions.and_then(|conditions| conditions.ready).unwrap_or(true);
        let serving = conditions.and_then(|conditions| conditions.serving).unwrap_or(ready);
        let terminating = conditions.and_then(|conditions| conditions.terminating);
        let lingers = serving && terminating.unwrap_or(false);
        let ip = ip.to_canonical();
        Some(EndpointRow { ip, ready, lingers, instance, place: near(endpoint) })
    });
    let (ports, mut endpoints): (_, Vec<EndpointRow>) = (ports.collect(), endpoints.collect());
    for nth in 1..endpoints.len() {
        if let [.., before, endpoint] = &mut endpoints[..=nth] {
            endpoint.share(before);
        }
    }
    endpoints.shrink_to_fit();
    Some((service, SliceRow { ports, endpoints, names }))
}

/// Converts the instances of a workload.
pub(crate) fn instances(
    object: &Workload,
    trust_domain: &TrustDomain,
) -> Option<Vec<(InstanceName, InstanceRow)>> {
    let Workload { metadata, spec, status } = object;
    let namespace = &metadata.namespace;
    let identity = Identity::new(trust_domain.clone(), namespace, &spec.service_account).ok()?;
    let ports: Arc<[_]> = spec
        .ports
        .iter()
        .map(|port| InstancePortRow {
            name: port.name.clone(),
            number: port.port,
            protocol: declared(port.app_protocol.as_deref()),
        })
        .collect();
    let instances = status.iter().flat_map(|status| &status.instances);
    let created = metadata.created();
    let (mtls, egress) = (mtls_mode(&metadata.annotations), egress(&metadata.annotations));
    let paths = path_reading(&metadata.annotations);
    let labels = Arc::new(metadata.labels.clone());
    let mode = PodMode::new(Some(&metadata.labels), Some(&metadata.annotations));
    let wire = wire_form(Some(&metadata.labels), Some(&metadata.annotations));
    let redirected = metadata.annotations.get(REDIRECTION_ANNOTATION).map(String::as_str);
    let is_redirected = redirected == Some("enabled");
    let row = |instance: &leno_resources::InstanceStatus| {
        let origin = match &instance.pod {
            Some(_) => InstanceOrigin::Pod { ending: instance.ending, created },
            None => InstanceOrigin::Workload { created },
        };
        let node = instance.pod.iter().flat_map(|pod| &pod.addresses).copied();
        let may_be_served =
            instance.pod.as_ref().is_some_and(|pod| !pod.shared && !instance.meshed);
        let row = InstanceRow {
            origin,
            node: addresses(node).into(),
            shares_node: instance.pod.as_ref().is_some_and(|pod| pod.shared),
            addresses: addresses(instance.addresses.iter().copied()),
            meshed: instance.meshed,
            mode: may_be_served.then_some(mode),
            served: instance.pod.as_ref().is_some_and(|pod| pod.served),
            wire,
            is_redirected,
            mtls,
            egress,
            paths,
            labels: labels.clone(),
            identity: identity.clone(),
            ports: ports.clone(),
            place: place(&metadata.labels),
            ending: instance.ending,
        };
        Some((InstanceName::new(namespace, &instance.name).ok()?, row))
    };
    instances.map(row).collect()
}

/// The zone and node whose clients should prefer an endpoint: those in its hints, or else those in which it runs.
/// Only the first zone of a hint is used; Kubernetes never sets more.
fn near(endpoint: &Endpoint) -> Topology {
    let hints = endpoint.hints.as_ref();
    let zone = hints.and_then(|hints| Some(&hints.for_zones.as_ref()?.first()?.name));
    let node = hints.and_then(|hints| Some(&hints.for_nodes.as_ref()?.first()?.name));
    let text = |text: Option<&String>| text.map(String::as_str).unwrap_or_default().into();
    Topology {
        zone: text(zone.or(endpoint.zone.as_ref())),
        node: text(node.or(endpoint.node_name.as_ref())),
    }
}

fn names(metadata: &ObjectMeta) -> Option<(&str, &str)> {
    metadata.namespace.as_deref().zip(metadata.name.as_deref())
}

/// The protocol that `appProtocol` declares; `None` if it declares none.
fn declared(app_protocol: Option<&str>) -> Option<Protocol> {
    Some(Protocol::from_app_protocol(app_protocol)).filter(|protocol| *protocol != Protocol::Detect)
}

/// The protocol that a port of a service declares. The outer `None` stands for a port that proxies do not carry.
fn carried(transport: Option<&str>, app_protocol: Option<&str>) -> Option<Option<Protocol>> {
    let declared = declared(app_protocol);
    match (transport.unwrap_or("TCP"), declared) {
        // The document contradicts itself: a TCP port declares UDP.
        ("TCP", Some(Protocol::Udp)) => Some(Some(Protocol::Opaque)),
        ("TCP", declared) => Some(declared),
        ("UDP", Some(Protocol::Udp)) => Some(declared),
        _ => None,
    }
}

fn port_number(number: i32) -> Option<u16> {
    u16::try_from(number).ok().filter(|number| *number > 0)
}

/// The addresses without duplicates, in their original order.
fn addresses(given: impl Iterator<Item = IpAddr>) -> Vec<IpAddr> {
    let mut unique = Vec::new();
    for ip in given.map(|ip| ip.to_canonical()) {
        if !unique.contains(&ip) {
            unique.push(ip);
        }
    }
    unique
}
