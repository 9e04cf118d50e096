//! Builds the values that the control plane sends to proxies from the facts about objects. Does no I/O.

pub(crate) mod authorization;
mod external;
pub(crate) mod policies;
pub(crate) mod routes;
mod waypoint;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use leno_types::mesh::{
    Distribution, Endpoint, PortProtocol, ServerPolicy, Service, ServicePort, Topology, Workload,
};
use leno_types::{InstanceName, Protocol, ServiceName};

use crate::facts::Facts;
use crate::rows::{EndpointRow, InstanceRow, ServicePortRow, SlicePortRow, SliceRow, TargetPort};

/// A service as most of its clients receive it, and its variants: one for each namespace that has its own routes for
/// the service (by the namespace), or one for the service's waypoint (by `namespace/name`).
pub(crate) struct BuiltService {
    pub(crate) service: Service,
    pub(crate) consumers: BTreeMap<Arc<str>, Service>,
}

/// A service as its clients receive it; `None` if there is no such Service, even if there are slices for it.
pub(crate) fn service(facts: &Facts, name: &ServiceName) -> Option<BuiltService> {
    let row = facts.service(name)?;
    let port = |port: &ServicePortRow| ServicePort {
        port: port.number,
        name: port.name.clone(),
        protocol: service_protocol(facts, name, port),
        endpoints: endpoints(facts, name, (port, row.distribution)),
        external: external::external(facts, name, row, port),
    };
    let ports = row.ports.iter().map(port).collect();
    let (routes, consumers) = routes::routes(facts, name, row);
    let traffic = policies::traffic(facts, name, row, &routes);
    let (vips, distribution) = (row.vips.clone(), row.distribution);
    let service =
        Service { name: name.clone(), vips, ports, distribution, routes, traffic, waypoint: None };
    if let Some(said) = facts.waypoint_use(name) {
        return Some(waypoint::behind(facts, said, (row, service)));
    }
    let own = |(of, routes): (_, routes::Routes)| {
        let traffic = policies::traffic(facts, name, row, &routes);
        (of, Service { routes, traffic, ..service.clone() })
    };
    let consumers = consumers.into_iter().map(own).collect();
    Some(BuiltService { service, consumers })
}

/// A workload as clients of its addresses receive it, and the policy that its own proxy enforces.
pub(crate) fn instance(facts: &Facts, name: &InstanceName) -> Option<(Workload, ServerPolicy)> {
    // A pod that uses its node's network has the node's addresses. A client of such an address does not mean this
    // pod.
    let row = facts.instance(name).filter(|row| !row.shares_node)?;
    let ports = instance_ports(facts, name, row);
    let own = row.addresses.iter().copied().filter(|ip| facts.holds(name, row, *ip));
    let workload = Workload {
        name: name.clone(),
        addresses: own.collect(),
        identity: facts.identity(name).cloned(),
        ports: ports.clone(),
        wire: facts.wire(name),
    };
    let (mtls, egress) = (facts.mode(name, row), facts.egress(name, row));
    let (limits, place) = (policies::limits(facts, name), row.place.clone());
    let (ending, removal) = (row.ending, facts.removal());
    let authorization = authorization::authorization(facts, name, &row.labels);
    let own = name.clone();
    let policy = ServerPolicy {
        workload: own,
        mtls,
        ports: served_ports(facts, name, ports),
        limits,
        egress,
        place,
        ending,
        removal,
        authorization,
    };
    Some((workload, policy))
}

/// The ports as the workload's own proxy serves them. If the proxy must refuse HBONE, the port of HBONE counts as
/// a port of the application.
fn served_ports(
    facts: &Facts,
    name: &InstanceName,
    mut ports: Vec<PortProtocol>,
) -> Vec<PortProtocol> {
    let port = leno_types::ports::HBONE;
    if facts.refuses_hbone(name) && ports.iter().all(|named| named.port != port) {
        ports.push(PortProtocol { port, protocol: Protocol::Detect });
    }
    ports
}

/// An address that serves one port of a service.
struct ServedAddress<'a> {
    endpoint: &'a EndpointRow,
    number: u16,
}

/// The accepted addresses that serve a port, ready or not. A slice's port belongs to the service's port with the same
/// name.
fn places<'a>(
    facts: &'a Facts,
    service: &'a ServiceName,
    port: &'a ServicePortRow,
) -> impl Iterator<Item = ServedAddress<'a>> {
    facts.slices(service).flat_map(move |slice| {
        let served = slice_port(slice, port);
        let endpoints = slice.endpoints.iter();
        let accepted = endpoints.filter(|endpoint| facts.accept(service, endpoint).is_ok());
        accepted.filter_map(move |endpoint| {
            let instance = endpoint.instance.as_ref().and_then(|name| facts.instance(name));
            let number = target_number(port, served?, instance)?;
            Some(ServedAddress { endpoint, number })
        })
    })
}

fn slice_port<'a>(slice: &'a SliceRow, port: &ServicePortRow) -> Option<&'a SlicePortRow> {
    slice.ports.iter().find(|candidate| *candidate.name == *port.name)
}

/// The number of the port on the workload: the slice's, or else the service's target port.
fn target_number(
    port: &ServicePortRow,
    served: &SlicePortRow,
    instance: Option<&InstanceRow>,
) -> Option<u16> {
    served.number.or_else(|| match &port.target {
        TargetPort::Number(number) => Some(*number),
        TargetPort::Name(name) => {
            let named = instance?.ports.iter().find(|candidate| candidate.name == *name);
            named.map(|named| named.number)
        }
    })
}

/// The protocol of a port: the one that the service declares, else its slices, else the workloads behind it.
fn service_protocol(facts: &Facts, name: &ServiceName, port: &ServicePortRow) -> Protocol {
    let of_slices = || {
        let ports = facts.slices(name).filter_map(|slice| slice_port(slice, port));
        strictest(ports.filter_map(|port| port.protocol))
    };
    let of_instances = || {
        strictest(places(facts, name, port).filter_map(|place| {
            own_protocol(facts.instance(place.endpoint.instance.as_ref()?)?, place.number)
        }))
    };
    // Only the port's own declaration can make it a UDP port.
    let of_connections = |protocol: &Protocol| *protocol != Protocol::Udp;
    let of_others = || of_slices().or_else(of_instances).filter(of_connections);
    port.protocol.or_else(of_others).unwrap_or_default()
}

/// Picks the strictest of several declared protocols. HTTP is stricter than opaque, because the proxy applies
/// policies to each HTTP request but only relays opaque bytes. If opaque won, a second service on the same port
/// could declare the port opaque, which would disable the policies of the first service. The two versions of HTTP
/// are equally strict, because a proxy accepts both on an HTTP port.
fn strictest(declared: impl Iterator<Item = Protocol>) -> Option<Protocol> {
    declared.min_by_key(|protocol| match protocol {
        Protocol::Http1 => 0,
        Protocol::Http2 => 1,
        Protocol::Detect => 2,
        Protocol::Opaque => 3,
        // If the same number is also a TCP port, only TCP is served.
        Protocol::Udp => 4,
    })
}

fn own_protocol(row: &InstanceRow, number: u16) -> Option<Protocol> {
    row.ports.iter().find(|port| port.number == number)?.protocol
}

/// The ports that an instance, or a service on it, declares, and their protocols. The instance's own declaration
/// takes precedence over those of services.
fn instance_ports(facts: &Facts, name: &InstanceName, row: &InstanceRow) -> Vec<PortProtocol> {
    let mut said: BTreeMap<u16, Vec<Protocol>> = BTreeMap::new();
    for service in facts.services_of(name) {
        let ports = facts.service(service).into_iter().flat_map(|service| &service.ports);
        for port in ports {
            let served = facts.slices_of(name, service).filter_map(|slice| slice_port(slice, port));
            for served in served {
                if let Some(number) = target_number(port, served, Some(row)) {
                    let said = said.entry(number).or_default();
                    said.extend(port.protocol.or(served.protocol));
                }
            }
        }
    }
    let of_services =
        said.into_iter().map(|(n, said)| (n, strictest(said.into_iter()).unwrap_or_default()));
    let mut ports: BTreeMap<u16, Protocol> = of_services.collect();
    for port in row.ports.iter() {
        let carries = ports.entry(port.number).or_default();
        *carries = port.protocol.unwrap_or(*carries);
    }
    ports.into_iter().map(|(port, protocol)| PortProtocol { port, protocol }).collect()
}

/// How addresses are grouped into endpoints: the addresses of one instance form one endpoint, and an address
/// without an instance is a separate endpoint.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum EndpointKey {
    Instance(InstanceName),
    Unknown(IpAddr),
}

/// At most one address of each address family.
#[derive(Default)]
struct Families {
    v4: Option<IpAddr>,
    v6: Option<IpAddr>,
    /// The endpoint's zone and node; empty if the service distributes requests to all endpoints, wherever they
    /// are.
    place: Topology,
}

/// The ready endpoints of a port, ordered by their names. If none is ready, the endpoints that are terminating but
/// still serve, as kube-proxy does (KEP-1669).
fn endpoints(
    facts: &Facts,
    name: &ServiceName,
    (port, distribution): (&ServicePortRow, Distribution),
) -> Arc<[Endpoint]> {
    let mut found: BTreeMap<(EndpointKey, u16), Families> = BTreeMap::new();
    let any_ready = places(facts, name, port).any(|place| place.endpoint.ready);
    let serves = |row: &EndpointRow| if any_ready { row.ready } else { row.lingers };
    for ServedAddress { endpoint, number } in
        places(facts, name, port).filter(|p| serves(p.endpoint))
    {
        let whose = match &endpoint.instance {
            Some(instance) => EndpointKey::Instance(instance.clone()),
            None => EndpointKey::Unknown(endpoint.ip),
        };
        let families = found.entry((whose, number)).or_default();
        let family = if endpoint.ip.is_ipv4() { &mut families.v4 } else { &mut families.v6 };
        family.get_or_insert(endpoint.ip);
        if distribution != Distribution::Any {
            families.place.clone_from(&endpoint.place);
        }
    }
    let endpoint = |((whose, port), families): ((EndpointKey, u16), Families)| {
        let workload = match whose {
            EndpointKey::Instance(instance) => Some(instance),
            EndpointKey::Unknown(_) => None,
        };
        let identity = workload.as_ref().and_then(|name| facts.identity(name)).cloned();
        let wire = workload.as_ref().map(|name| facts.wire(name)).unwrap_or_default();
        let addresses = families.v4.into_iter().chain(families.v6).collect();
        Endpoint { workload, addresses, port, identity, place: families.place, wire }
    };
    found.into_iter().map(endpoint).collect()
}
