//! From the mesh's values to messages. Never fails.

mod external;
mod routes;
mod traffic;

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use leno_types::mesh::{
    Distribution, Endpoint, PortProtocol, ServerPolicy, Service, ServicePort, Workload,
};
use leno_types::{Egress, Identity, MtlsMode, Protocol, Removal};
use prost::Message;

use crate::{ADDRESS_TYPE, SERVER_POLICY_TYPE, proto};

impl From<&Service> for proto::Service {
    fn from(service: &Service) -> Self {
        let mut shared = Shared::default();
        let ports = service.ports.iter().map(|port| service_port(port, &mut shared)).collect();
        Self {
            name: service.name.to_string(),
            vips: ips(&service.vips),
            ports,
            identities: shared.identities.texts,
            routes: service.routes.iter().map(routes::route).collect(),
            traffic: service.traffic.iter().map(|policy| traffic::traffic(policy)).collect(),
            distribution: match service.distribution {
                Distribution::Any => proto::Distribution::Any,
                Distribution::SameZone => proto::Distribution::SameZone,
                Distribution::SameNode => proto::Distribution::SameNode,
            }
            .into(),
            places: shared.places.texts,
        }
    }
}

impl From<&Workload> for proto::Workload {
    fn from(workload: &Workload) -> Self {
        Self {
            name: workload.name.to_string(),
            addresses: ips(&workload.addresses),
            identity: workload.identity.as_ref().map(ToString::to_string).unwrap_or_default(),
            ports: ports(&workload.ports),
        }
    }
}

impl From<&ServerPolicy> for proto::ServerPolicy {
    fn from(policy: &ServerPolicy) -> Self {
        Self {
            workload: policy.workload.to_string(),
            mtls: mtls(policy.mtls).into(),
            ports: ports(&policy.ports),
            limits: policy.limits.iter().map(traffic::rate_limit).collect(),
            egress: egress(policy.egress).into(),
            zone: policy.place.zone.to_string(),
            node: policy.place.node.to_string(),
            ending: policy.ending,
            removal: removal(policy.removal).into(),
        }
    }
}

/// A service as the value of a resource.
#[must_use]
pub fn service(service: &Service) -> proto::Any {
    address(proto::address::Kind::Service(service.into()))
}

/// A workload as the value of a resource.
#[must_use]
pub fn workload(workload: &Workload) -> proto::Any {
    address(proto::address::Kind::Workload(workload.into()))
}

/// A server policy as the value of a resource.
#[must_use]
pub fn server_policy(policy: &ServerPolicy) -> proto::Any {
    let value = proto::ServerPolicy::from(policy).encode_to_vec().into();
    proto::Any { type_url: SERVER_POLICY_TYPE.to_owned(), value }
}

fn address(kind: proto::address::Kind) -> proto::Any {
    let value = proto::Address { kind: Some(kind) }.encode_to_vec().into();
    proto::Any { type_url: ADDRESS_TYPE.to_owned(), value }
}

/// What many endpoints share.
#[derive(Default)]
struct Shared {
    identities: Texts<Identity>,
    places: Texts<Arc<str>>,
}

/// Texts in the order of their first use, which are referred to by their place, from 1.
struct Texts<T> {
    places: HashMap<T, u32>,
    texts: Vec<String>,
}

impl<T> Default for Texts<T> {
    fn default() -> Self {
        Self { places: HashMap::new(), texts: Vec::new() }
    }
}

impl<T: Eq + Hash + Clone + ToString> Texts<T> {
    fn place(&mut self, of: &T) -> u32 {
        if let Some(place) = self.places.get(of) {
            return *place;
        }
        self.texts.push(of.to_string());
        let place = u32::try_from(self.texts.len()).expect("endpoints are fewer than 2^32");
        self.places.insert(of.clone(), place);
        place
    }
}

impl Shared {
    /// 0 for an empty one.
    fn text(&mut self, text: &Arc<str>) -> u32 {
        if text.is_empty() { 0 } else { self.places.place(text) }
    }
}

fn service_port(port: &ServicePort, shared: &mut Shared) -> proto::ServicePort {
    proto::ServicePort {
        port: port.port.into(),
        name: port.name.to_string(),
        protocol: protocol(port.protocol).into(),
        endpoints: port.endpoints.iter().map(|one| endpoint(one, shared)).collect(),
        external: port.external.as_deref().map(external::external),
    }
}

fn endpoint(endpoint: &Endpoint, shared: &mut Shared) -> proto::Endpoint {
    proto::Endpoint {
        workload: endpoint.workload.as_ref().map(ToString::to_string).unwrap_or_default(),
        addresses: ips(&endpoint.addresses),
        port: endpoint.port.into(),
        identity: endpoint.identity.as_ref().map_or(0, |id| shared.identities.place(id)),
        zone: shared.text(&endpoint.place.zone),
        node: shared.text(&endpoint.place.node),
    }
}

fn ports(ports: &[PortProtocol]) -> Vec<proto::PortProtocol> {
    let port = |p: &PortProtocol| proto::PortProtocol {
        port: p.port.into(),
        protocol: protocol(p.protocol).into(),
    };
    ports.iter().map(port).collect()
}

fn ips(ips: &[IpAddr]) -> Vec<Bytes> {
    let bytes = |ip: &IpAddr| match ip {
        IpAddr::V4(ip) => Bytes::copy_from_slice(&ip.octets()),
        IpAddr::V6(ip) => Bytes::copy_from_slice(&ip.octets()),
    };
    ips.iter().map(bytes).collect()
}

fn protocol(protocol: Protocol) -> proto::Protocol {
    match protocol {
        Protocol::Detect => proto::Protocol::Detect,
        Protocol::Http1 => proto::Protocol::Http1,
        Protocol::Http2 => proto::Protocol::Http2,
        Protocol::Opaque => proto::Protocol::Opaque,
    }
}

fn removal(removal: Removal) -> proto::Removal {
    match removal {
        Removal::None => proto::Removal::None,
        Removal::Permissive => proto::Removal::Permissive,
        Removal::Plaintext => proto::Removal::Plaintext,
        Removal::Released => proto::Removal::Released,
    }
}

fn egress(egress: Egress) -> proto::Egress {
    match egress {
        Egress::Allow => proto::Egress::Allow,
        Egress::Deny => proto::Egress::Deny,
    }
}

fn mtls(mode: MtlsMode) -> proto::MtlsMode {
    match mode {
        MtlsMode::Strict => proto::MtlsMode::Strict,
        MtlsMode::Permissive => proto::MtlsMode::Permissive,
        MtlsMode::Disabled => proto::MtlsMode::Disabled,
    }
}
