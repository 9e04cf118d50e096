//! Converts the mesh's values into messages, which never fails.

mod authorization;
mod endpoints;
mod external;
mod routes;
mod traffic;

use std::net::IpAddr;

use bytes::Bytes;
use leno_types::mesh::{
    Distribution, PortProtocol, ServerPolicy, Service, ServicePort, WireForm, Workload,
};
use leno_types::{Egress, MtlsMode, Protocol, Removal, ServiceName};
use prost::Message;

pub use endpoints::{EndpointsUpdate, endpoints, endpoints_step, service_update};

use crate::trust::TrustBundle;
use crate::{ADDRESS_TYPE, SERVER_POLICY_TYPE, TRUST_BUNDLE_TYPE, USED_SERVICES_TYPE, proto};

impl From<&Service> for proto::Service {
    /// All fields except endpoints.
    fn from(service: &Service) -> Self {
        Self {
            name: service.name.to_string(),
            vips: ips(&service.vips),
            ports: service.ports.iter().map(service_port).collect(),
            routes: service.routes.iter().map(routes::route).collect(),
            traffic: service.traffic.iter().map(|policy| traffic::traffic(policy)).collect(),
            distribution: match service.distribution {
                Distribution::Any => proto::Distribution::Any,
                Distribution::SameZone => proto::Distribution::SameZone,
                Distribution::SameNode => proto::Distribution::SameNode,
            }
            .into(),
            waypoint: service.waypoint.as_deref().map(|policy| Box::new(policy.into())),
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
            hbone: workload.wire == WireForm::Hbone,
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
            authorization: Some(authorization::authorization(&policy.authorization)),
        }
    }
}

/// Encodes a complete service as the value of a resource.
#[must_use]
pub fn service(service: &Service) -> proto::Any {
    service_update(Some(&front(service)), EndpointsUpdate::All(&endpoints(service)))
}

/// Encodes a service without its endpoints, for [`service_update`].
#[must_use]
pub fn front(service: &Service) -> Bytes {
    proto::Service::from(service).encode_to_vec().into()
}

/// Encodes a workload as the value of a resource.
#[must_use]
pub fn workload(workload: &Workload) -> proto::Any {
    address(proto::address::Kind::Workload(workload.into()))
}

/// Encodes a server policy as the value of a resource.
#[must_use]
pub fn server_policy(policy: &ServerPolicy) -> proto::Any {
    let value = proto::ServerPolicy::from(policy).encode_to_vec().into();
    proto::Any { type_url: SERVER_POLICY_TYPE.to_owned(), value }
}

/// Encodes names of services as the value of a resource.
pub fn used_services(names: impl Iterator<Item = ServiceName>) -> proto::Any {
    let services = names.map(|name| name.to_string()).collect();
    let value = proto::UsedServices { services }.encode_to_vec().into();
    proto::Any { type_url: USED_SERVICES_TYPE.to_owned(), value }
}

/// Encodes a trust bundle as the value of a resource.
#[must_use]
pub fn trust_bundle(bundle: &TrustBundle) -> proto::Any {
    let TrustBundle { roots, issuer, revoked, federated } = bundle.clone();
    let revoked = revoked.iter().map(|(identity, last)| proto::Revocation {
        identity: identity.to_string(),
        last_not_before_unix_s: last,
    });
    let revoked = revoked.collect();
    let federated = federated.into_iter().map(|(trust_domain, roots)| proto::FederatedBundle {
        trust_domain: trust_domain.to_string(),
        roots,
    });
    let federated = federated.collect();
    let value = proto::TrustBundle { roots, issuer, revoked, federated }.encode_to_vec().into();
    proto::Any { type_url: TRUST_BUNDLE_TYPE.to_owned(), value }
}

/// Encodes a resource for a response.
#[must_use]
pub fn resource(resource: &proto::Resource) -> Bytes {
    resource.encode_to_vec().into()
}

fn address(kind: proto::address::Kind) -> proto::Any {
    let value = proto::Address { kind: Some(kind) }.encode_to_vec().into();
    proto::Any { type_url: ADDRESS_TYPE.to_owned(), value }
}

fn service_port(port: &ServicePort) -> proto::ServicePort {
    proto::ServicePort {
        port: port.port.into(),
        name: port.name.to_string(),
        protocol: protocol(port.protocol).into(),
        external: port.external.as_deref().map(external::external),
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
        Protocol::Udp => proto::Protocol::Udp,
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
