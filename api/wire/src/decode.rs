//! Converts messages into the mesh's values, and checks them.

mod authorization;
mod endpoints;
mod external;
mod routes;
mod traffic;

use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use leno_types::mesh::{
    Distribution, PortProtocol, ServerPolicy, Service, ServicePort, Topology, WireForm, Workload,
};
use leno_types::{
    Egress, IdentityError, MAX_REVOKED, MtlsMode, NameError, Protocol, Removal, Revocations,
    ServiceName, TrustDomain,
};
use prost::Message;

pub use endpoints::ServiceUpdate;

use crate::trust::{MAX_FEDERATED, MAX_ROOTS, TrustBundle};
use crate::{
    ADDRESS_TYPE, MAX_PREFETCH, SERVER_POLICY_TYPE, TRUST_BUNDLE_TYPE, USED_SERVICES_TYPE, proto,
};

/// The largest number of endpoints of one service, over all its ports: ten times the number of a large service.
pub const MAX_ENDPOINTS: usize = 100_000;
/// The largest number of ports of one service or workload.
const MAX_PORTS: usize = 1_000;
/// The largest number of addresses of one service or workload.
const MAX_ADDRESSES: usize = 100;

/// Why a message is not a valid value of the mesh.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// The bytes are not a message of this type.
    #[error("not a {0}")]
    Message(&'static str, #[source] prost::DecodeError),
    /// The resource has an unexpected type.
    #[error("{found:?} came where {expected} was expected")]
    Type {
        /// The expected type.
        expected: &'static str,
        /// The actual type.
        found: String,
    },
    /// A required field is missing.
    #[error("{0} is missing")]
    Missing(&'static str),
    /// A number is out of range.
    #[error("{number} is not a {field}")]
    Number {
        /// The field.
        field: &'static str,
        /// The value of the field.
        number: i64,
    },
    /// An address has neither 4 nor 16 bytes.
    #[error("an address of {0} bytes")]
    Address(usize),
    /// A list is longer than its bound.
    #[error("{field}: {length} are more than {bound}")]
    Length {
        /// The field.
        field: &'static str,
        /// The actual length.
        length: usize,
        /// The largest allowed length.
        bound: usize,
    },
    /// The message changes a service that the proxy does not hold.
    #[error("a part of a service came, and the rest of it is not held")]
    NotHeld,
    /// The message changes endpoints of another version than the one that the proxy holds.
    #[error("a change of endpoints came for version {from:?}, and {held:?} is held")]
    Version {
        /// The version that the change is for.
        from: String,
        /// The version that the proxy holds.
        held: String,
    },
    /// A name is invalid.
    #[error("bad name")]
    Name(#[from] NameError),
    /// Only a proxy of a later version can use the message.
    #[error("{0} are of a later version than this proxy")]
    Later(&'static str),
    /// An identity is invalid.
    #[error("bad identity")]
    Identity(#[from] IdentityError),
}

/// The value of an `Address` resource.
#[derive(Clone, Debug, PartialEq)]
pub enum AddressResource {
    /// A service, or changed parts of it.
    Service(ServiceUpdate),
    /// A workload.
    Workload(Workload),
}

/// Decodes the value of an `Address` resource.
///
/// # Errors
/// [`DecodeError`], which names the invalid field.
pub fn address(any: &proto::Any) -> Result<AddressResource, DecodeError> {
    expect_type(any, ADDRESS_TYPE)?;
    let message = proto::Address::decode(any.value.clone())
        .map_err(|error| DecodeError::Message("Address", error))?;
    match message.kind {
        Some(proto::address::Kind::Service(update)) => Ok(AddressResource::Service(update.into())),
        Some(proto::address::Kind::Workload(workload)) => {
            workload.try_into().map(AddressResource::Workload)
        }
        None => Err(DecodeError::Missing("kind")),
    }
}

/// Decodes the value of a `ServerPolicy` resource.
///
/// # Errors
/// [`DecodeError`], which names the invalid field.
pub fn server_policy(any: &proto::Any) -> Result<ServerPolicy, DecodeError> {
    expect_type(any, SERVER_POLICY_TYPE)?;
    proto::ServerPolicy::decode(any.value.clone())
        .map_err(|error| DecodeError::Message("ServerPolicy", error))?
        .try_into()
}

/// Decodes the value of a `UsedServices` resource.
///
/// # Errors
/// [`DecodeError`], which names the invalid field.
pub fn used_services(any: &proto::Any) -> Result<Vec<ServiceName>, DecodeError> {
    expect_type(any, USED_SERVICES_TYPE)?;
    let message = proto::UsedServices::decode(any.value.clone())
        .map_err(|error| DecodeError::Message("UsedServices", error))?;
    bounded("used services", message.services.len(), MAX_PREFETCH)?;
    let names = message.services.iter().map(|name| name.parse()).collect::<Result<_, _>>();
    names.map_err(DecodeError::Name)
}

/// Decodes the value of a `TrustBundle` resource.
///
/// # Errors
/// [`DecodeError`], which names the invalid field. A bundle without roots is invalid, too: nothing could be verified
/// with it.
pub fn trust_bundle(any: &proto::Any) -> Result<TrustBundle, DecodeError> {
    expect_type(any, TRUST_BUNDLE_TYPE)?;
    let message = proto::TrustBundle::decode(any.value.clone())
        .map_err(|error| DecodeError::Message("TrustBundle", error))?;
    bounded("roots", message.roots.len(), MAX_ROOTS)?;
    if message.roots.is_empty() {
        return Err(DecodeError::Missing("roots"));
    }
    bounded("revocations", message.revoked.len(), MAX_REVOKED)?;
    let revoked = message.revoked.iter().map(|one| -> Result<_, DecodeError> {
        Ok((one.identity.parse()?, one.last_not_before_unix_s))
    });
    let revoked = Revocations::new(revoked.collect::<Result<Vec<_>, _>>()?);
    bounded("federated trust domains", message.federated.len(), MAX_FEDERATED)?;
    let federated = message.federated.into_iter().map(|one| -> Result<_, DecodeError> {
        bounded("roots of a federated trust domain", one.roots.len(), MAX_ROOTS)?;
        if one.roots.is_empty() {
            return Err(DecodeError::Missing("roots of a federated trust domain"));
        }
        Ok((TrustDomain::new(&one.trust_domain)?, one.roots))
    });
    let federated = federated.collect::<Result<_, _>>()?;
    Ok(TrustBundle { roots: message.roots, issuer: message.issuer, revoked, federated })
}

/// Decodes a resource of a response.
///
/// # Errors
/// [`DecodeError::Message`].
pub fn resource(bytes: Bytes) -> Result<proto::Resource, DecodeError> {
    proto::Resource::decode(bytes).map_err(|error| DecodeError::Message("Resource", error))
}

impl TryFrom<proto::Service> for Service {
    type Error = DecodeError;

    /// All fields except endpoints.
    fn try_from(message: proto::Service) -> Result<Self, DecodeError> {
        let name: ServiceName = message.name.parse()?;
        bounded("service ports", message.ports.len(), MAX_PORTS)?;
        let ports = message.ports.into_iter().map(service_port);
        let mut ports = ports.collect::<Result<Vec<_>, _>>()?;
        ports.sort_by_key(|port| port.port);
        let routes = routes::routes(message.routes)?;
        let traffic = traffic::traffic(message.traffic)?;
        let distribution = distribution(message.distribution);
        let waypoint =
            message.waypoint.map(|policy| (*policy).try_into().map(Arc::new)).transpose()?;
        Ok(Self { vips: ips(&message.vips)?, name, ports, distribution, routes, traffic, waypoint })
    }
}

/// A distribution that only later versions know counts as no preference.
fn distribution(number: i32) -> Distribution {
    match proto::Distribution::try_from(number) {
        Ok(proto::Distribution::SameZone) => Distribution::SameZone,
        Ok(proto::Distribution::SameNode) => Distribution::SameNode,
        Ok(proto::Distribution::Any) | Err(_) => Distribution::Any,
    }
}

impl TryFrom<proto::Workload> for Workload {
    type Error = DecodeError;

    fn try_from(message: proto::Workload) -> Result<Self, DecodeError> {
        Ok(Self {
            name: message.name.parse()?,
            addresses: ips(&message.addresses)?,
            identity: match message.identity.as_str() {
                "" => None,
                text => Some(text.parse()?),
            },
            ports: ports(&message.ports)?,
            wire: wire(message.hbone),
        })
    }
}

fn wire(hbone: bool) -> WireForm {
    if hbone { WireForm::Hbone } else { WireForm::Leno }
}

impl TryFrom<proto::ServerPolicy> for ServerPolicy {
    type Error = DecodeError;

    fn try_from(message: proto::ServerPolicy) -> Result<Self, DecodeError> {
        let mtls = match proto::MtlsMode::try_from(message.mtls) {
            Ok(proto::MtlsMode::Strict) => MtlsMode::Strict,
            Ok(proto::MtlsMode::Permissive) => MtlsMode::Permissive,
            Ok(proto::MtlsMode::Disabled) => MtlsMode::Disabled,
            // Reject a mode that only later versions know, instead of guessing.
            Ok(proto::MtlsMode::Unspecified) | Err(_) => {
                return Err(DecodeError::Number {
                    field: "mTLS mode",
                    number: message.mtls.into(),
                });
            }
        };
        let egress = match proto::Egress::try_from(message.egress) {
            Ok(proto::Egress::Allow) => Egress::Allow,
            // A setting that this version does not know is of a later version. Denying is the restrictive choice.
            Ok(proto::Egress::Deny) | Err(_) => Egress::Deny,
        };
        let removal = match proto::Removal::try_from(message.removal) {
            Ok(proto::Removal::None) => Removal::None,
            Ok(proto::Removal::Permissive) => Removal::Permissive,
            Ok(proto::Removal::Plaintext) => Removal::Plaintext,
            Ok(proto::Removal::Released) => Removal::Released,
            // The proxy cannot perform a step that only later versions know.
            Err(_) => {
                let number = message.removal.into();
                return Err(DecodeError::Number { field: "step of a removal", number });
            }
        };
        Ok(Self {
            workload: message.workload.parse()?,
            mtls,
            egress,
            ports: ports(&message.ports)?,
            limits: traffic::rate_limits(message.limits)?,
            place: Topology { zone: message.zone.into(), node: message.node.into() },
            ending: message.ending,
            removal,
            authorization: Arc::new(authorization::authorization(message.authorization)),
        })
    }
}

fn expect_type(any: &proto::Any, expected: &'static str) -> Result<(), DecodeError> {
    if any.type_url == expected {
        Ok(())
    } else {
        Err(DecodeError::Type { expected, found: any.type_url.clone() })
    }
}

fn bounded(field: &'static str, length: usize, bound: usize) -> Result<(), DecodeError> {
    if length > bound { Err(DecodeError::Length { field, length, bound }) } else { Ok(()) }
}

fn service_port(message: proto::ServicePort) -> Result<ServicePort, DecodeError> {
    Ok(ServicePort {
        port: port(message.port)?,
        name: message.name.into(),
        protocol: protocol(message.protocol),
        endpoints: [].into(),
        external: message.external.map(external::external).transpose()?.map(Arc::new),
    })
}

fn ports(messages: &[proto::PortProtocol]) -> Result<Vec<PortProtocol>, DecodeError> {
    bounded("ports", messages.len(), MAX_PORTS)?;
    let one = |message: &proto::PortProtocol| {
        Ok(PortProtocol { port: port(message.port)?, protocol: protocol(message.protocol) })
    };
    messages.iter().map(one).collect()
}

fn port(number: u32) -> Result<u16, DecodeError> {
    match u16::try_from(number) {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(DecodeError::Number { field: "port", number: number.into() }),
    }
}

/// A protocol that only later versions know is relayed as bytes, which is correct for any protocol.
fn protocol(number: i32) -> Protocol {
    match proto::Protocol::try_from(number) {
        Ok(proto::Protocol::Detect) => Protocol::Detect,
        Ok(proto::Protocol::Http1) => Protocol::Http1,
        Ok(proto::Protocol::Http2) => Protocol::Http2,
        Ok(proto::Protocol::Udp) => Protocol::Udp,
        Ok(proto::Protocol::Opaque) | Err(_) => Protocol::Opaque,
    }
}

fn ips(messages: &[Bytes]) -> Result<Vec<IpAddr>, DecodeError> {
    bounded("addresses", messages.len(), MAX_ADDRESSES)?;
    let ip = |bytes: &Bytes| {
        if let Ok(octets) = <[u8; 4]>::try_from(bytes.as_ref()) {
            Ok(octets.into())
        } else if let Ok(octets) = <[u8; 16]>::try_from(bytes.as_ref()) {
            Ok(octets.into())
        } else {
            Err(DecodeError::Address(bytes.len()))
        }
    };
    messages.iter().map(ip).collect()
}
