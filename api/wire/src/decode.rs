//! From messages to the mesh's values, checked.

mod endpoints;
mod external;
mod routes;
mod traffic;

use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use leno_types::mesh::{
    Distribution, Place, PortProtocol, ServerPolicy, Service, ServicePort, Workload,
};
use leno_types::{Egress, IdentityError, MtlsMode, NameError, Protocol, Removal, ServiceName};
use prost::Message;

pub use endpoints::ServiceUpdate;

use crate::{ADDRESS_TYPE, MAX_PREFETCH, SERVER_POLICY_TYPE, USED_SERVICES_TYPE, proto};

/// Most endpoints of one service over all its ports, ten times what a large service has.
pub const MAX_ENDPOINTS: usize = 100_000;
/// Most ports of one service or workload.
const MAX_PORTS: usize = 1_000;
/// Most addresses of one service or workload.
const MAX_ADDRESSES: usize = 100;

/// Why a message is no value of the mesh.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// Not protobuf, or of another type than said.
    #[error("not a {0}")]
    Message(&'static str, #[source] prost::DecodeError),
    /// The resource is of a type that was not expected here.
    #[error("{found:?} came where {expected} was expected")]
    Type {
        /// What should have come.
        expected: &'static str,
        /// What came.
        found: String,
    },
    /// A field that must be there is not.
    #[error("{0} is missing")]
    Missing(&'static str),
    /// A number is out of range.
    #[error("{number} is not a {field}")]
    Number {
        /// The field.
        field: &'static str,
        /// What it says.
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
        /// How many there are.
        length: usize,
        /// How many there may be.
        bound: usize,
    },
    /// It changes a service that is not held.
    #[error("a part of a service came, and the rest of it is not held")]
    NotHeld,
    /// It changes endpoints of another version than is held.
    #[error("a change of endpoints came for version {from:?}, and {held:?} is held")]
    Version {
        /// The version that the change is for.
        from: String,
        /// The version that is held.
        held: String,
    },
    /// A name is none.
    #[error("bad name")]
    Name(#[from] NameError),
    /// An identity is none.
    #[error("bad identity")]
    Identity(#[from] IdentityError),
}

/// What an `Address` resource holds.
#[derive(Clone, Debug, PartialEq)]
pub enum Address {
    /// A service, or parts of it.
    Service(ServiceUpdate),
    /// A workload.
    Workload(Workload),
}

/// Reads the value of an `Address` resource.
///
/// # Errors
/// [`DecodeError`], naming the field at fault.
pub fn address(any: &proto::Any) -> Result<Address, DecodeError> {
    expect_type(any, ADDRESS_TYPE)?;
    let message = proto::Address::decode(any.value.clone())
        .map_err(|error| DecodeError::Message("Address", error))?;
    match message.kind {
        Some(proto::address::Kind::Service(update)) => Ok(Address::Service(update.into())),
        Some(proto::address::Kind::Workload(workload)) => {
            workload.try_into().map(Address::Workload)
        }
        None => Err(DecodeError::Missing("kind")),
    }
}

/// Reads the value of a `ServerPolicy` resource.
///
/// # Errors
/// [`DecodeError`], naming the field at fault.
pub fn server_policy(any: &proto::Any) -> Result<ServerPolicy, DecodeError> {
    expect_type(any, SERVER_POLICY_TYPE)?;
    proto::ServerPolicy::decode(any.value.clone())
        .map_err(|error| DecodeError::Message("ServerPolicy", error))?
        .try_into()
}

/// Reads the value of a `UsedServices` resource.
///
/// # Errors
/// [`DecodeError`], naming the field at fault.
pub fn used_services(any: &proto::Any) -> Result<Vec<ServiceName>, DecodeError> {
    expect_type(any, USED_SERVICES_TYPE)?;
    let message = proto::UsedServices::decode(any.value.clone())
        .map_err(|error| DecodeError::Message("UsedServices", error))?;
    bounded("used services", message.services.len(), MAX_PREFETCH)?;
    let names = message.services.iter().map(|name| name.parse()).collect::<Result<_, _>>();
    names.map_err(DecodeError::Name)
}

/// Reads a resource of a response.
///
/// # Errors
/// [`DecodeError::Message`].
pub fn resource(bytes: Bytes) -> Result<proto::Resource, DecodeError> {
    proto::Resource::decode(bytes).map_err(|error| DecodeError::Message("Resource", error))
}

impl TryFrom<proto::Service> for Service {
    type Error = DecodeError;

    /// All but endpoints.
    fn try_from(message: proto::Service) -> Result<Self, DecodeError> {
        let name: ServiceName = message.name.parse()?;
        bounded("service ports", message.ports.len(), MAX_PORTS)?;
        let ports = message.ports.into_iter().map(service_port);
        let mut ports = ports.collect::<Result<Vec<_>, _>>()?;
        ports.sort_by_key(|port| port.port);
        let routes = routes::routes(message.routes)?;
        let traffic = traffic::traffic(message.traffic)?;
        let distribution = distribution(message.distribution);
        Ok(Self { vips: ips(&message.vips)?, name, ports, distribution, routes, traffic })
    }
}

/// One of a later version prefers none.
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
        })
    }
}

impl TryFrom<proto::ServerPolicy> for ServerPolicy {
    type Error = DecodeError;

    fn try_from(message: proto::ServerPolicy) -> Result<Self, DecodeError> {
        let mtls = match proto::MtlsMode::try_from(message.mtls) {
            Ok(proto::MtlsMode::Strict) => MtlsMode::Strict,
            Ok(proto::MtlsMode::Permissive) => MtlsMode::Permissive,
            Ok(proto::MtlsMode::Disabled) => MtlsMode::Disabled,
            // A mode of a later version is refused rather than guessed.
            Ok(proto::MtlsMode::Unspecified) | Err(_) => {
                return Err(DecodeError::Number {
                    field: "mTLS mode",
                    number: message.mtls.into(),
                });
            }
        };
        let egress = match proto::Egress::try_from(message.egress) {
            Ok(proto::Egress::Allow) => Egress::Allow,
            // A way of a later version can only be a narrower one.
            Ok(proto::Egress::Deny) | Err(_) => Egress::Deny,
        };
        let removal = match proto::Removal::try_from(message.removal) {
            Ok(proto::Removal::None) => Removal::None,
            Ok(proto::Removal::Permissive) => Removal::Permissive,
            Ok(proto::Removal::Plaintext) => Removal::Plaintext,
            Ok(proto::Removal::Released) => Removal::Released,
            // A step of a later version is none that can be taken.
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
            place: Place { zone: message.zone.into(), node: message.node.into() },
            ending: message.ending,
            removal,
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

/// A protocol of a later version is relayed as bytes, which is right for any.
fn protocol(number: i32) -> Protocol {
    match proto::Protocol::try_from(number) {
        Ok(proto::Protocol::Detect) => Protocol::Detect,
        Ok(proto::Protocol::Http1) => Protocol::Http1,
        Ok(proto::Protocol::Http2) => Protocol::Http2,
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
