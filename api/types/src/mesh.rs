//! The values that the control plane sends to proxies: services with endpoints, workloads, server
//! policy.
//!
//! The index builds these values, `wire` encodes them, and discovery passes them to the proxy's inbound and outbound
//! side as [`Resolution`]s. They are immutable: an update is a new value in a new `Arc`.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::authorization::Authorization;
use crate::routes::Route;
use crate::traffic::{RateLimit, Traffic};
use crate::{Egress, Identity, InstanceName, MtlsMode, Protocol, Removal, ServiceName};

/// The service or workload at an IP address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Resolution {
    /// The control plane has not answered yet.
    #[default]
    Pending,
    /// The address is a virtual address of a service.
    Service(Arc<Service>),
    /// The address belongs to a workload.
    Workload(Arc<Workload>),
    /// The mesh does not know the address.
    Unknown,
}

/// A service as its clients receive it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// The service's name.
    pub name: ServiceName,
    /// The service's virtual addresses; empty for a headless service.
    pub vips: Vec<IpAddr>,
    /// The service's ports, by ascending number.
    pub ports: Vec<ServicePort>,
    /// Which endpoints clients prefer.
    pub distribution: Distribution,
    /// The routes that apply to the client which receives this value. Requests follow them instead of going to the
    /// service's own endpoints. Empty if no route is attached.
    pub routes: Arc<[Arc<Route>]>,
    /// The policies of the service, and those of its routes.
    pub traffic: Arc<[Arc<Traffic>]>,
    /// The policy that the receiving proxy enforces in front of the service, if it is the service's waypoint (a shared
    /// proxy through which clients reach the service). Its ports are those of the service. `None` for every other
    /// proxy.
    pub waypoint: Option<Arc<ServerPolicy>>,
}

/// A service or an address to which a proxy subscribes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Subject {
    /// The service or workload at an address.
    Address(IpAddr),
    /// A service, by its name; routes refer to services by name.
    Service(ServiceName),
}

impl From<IpAddr> for Subject {
    fn from(ip: IpAddr) -> Self {
        Self::Address(ip)
    }
}

/// One port of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    /// The number that clients dial.
    pub port: u16,
    /// The port's name, empty if it has none.
    pub name: Arc<str>,
    /// The declared protocol.
    pub protocol: Protocol,
    /// The endpoints of the port, of which only ready ones are listed.
    pub endpoints: Arc<[Endpoint]>,
    /// The port's endpoints outside of the mesh, if it has any, and how TLS is originated with them.
    pub external: Option<Arc<ExternalEndpoints>>,
}

/// The endpoints of a port outside of the mesh.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExternalEndpoints {
    /// Endpoints known by DNS name; the client resolves their addresses.
    pub names: Vec<NamedEndpoint>,
    /// How the proxy originates TLS to these endpoints, and to endpoints of the port that have
    /// addresses but no identity. `None` means that the application's bytes are relayed unchanged.
    pub tls: Option<Origination>,
}

/// An endpoint outside of the mesh that is known by DNS name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedEndpoint {
    /// The fully qualified DNS name, without the trailing dot.
    pub host: Arc<str>,
    /// The port of the endpoint.
    pub port: u16,
}

/// How a proxy originates TLS to a server outside of the mesh, and how it verifies the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origination {
    /// The policy that sets it, for messages: `BackendTLSPolicy <namespace>/<name>`.
    pub source: Arc<str>,
    /// The server name that the proxy requests (RFC 6066 section 3). If `names` is empty, the
    /// certificate must be for this name.
    pub hostname: Arc<str>,
    /// The authorities that may have issued the certificate.
    pub roots: Roots,
    /// Alternative names. If there are any, the certificate must be for one of them.
    pub names: Arc<[SubjectName]>,
}

/// Certificate authorities.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Roots {
    /// The authorities that the proxy's machine trusts.
    System,
    /// Only these authorities, in DER.
    Given(Arc<[Vec<u8>]>),
    /// There is no usable authority, for this reason; no connection is made.
    Missing(Arc<str>),
}

/// A name in a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SubjectName {
    /// A host name.
    Host(Arc<str>),
    /// A URI, compared byte by byte.
    Uri(Arc<str>),
}

/// One endpoint of a service's port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// The workload instance, if known.
    pub workload: Option<InstanceName>,
    /// The endpoint's addresses, at most one of each family, IPv4 first.
    pub addresses: Vec<IpAddr>,
    /// The port on the workload.
    pub port: u16,
    /// The identity that the client expects over mTLS; `None` means plaintext, because the endpoint has no proxy or
    /// mTLS is disabled.
    pub identity: Option<Identity>,
    /// The endpoint's zone and node, for clients that prefer near endpoints; empty if the service prefers none.
    pub place: Topology,
    /// The protocol of its proxy, if it has an identity.
    pub wire: WireForm,
}

/// The protocol between the proxy of a client and the proxy of a server, inside mTLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WireForm {
    /// The protocol of this mesh: mTLS on the port of the endpoint itself.
    #[default]
    Leno,
    /// HBONE, as ztunnel uses it: an HTTP/2 CONNECT for each connection, on [`HBONE`](crate::ports::HBONE).
    Hbone,
    /// The endpoint is a waypoint of the service: over HBONE, clients send a CONNECT for an address and port of the
    /// service.
    Waypoint,
}

/// Where an instance runs. A part is empty if it is unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Topology {
    /// The zone (`topology.kubernetes.io/zone`).
    pub zone: Arc<str>,
    /// The node (`kubernetes.io/hostname`).
    pub node: Arc<str>,
}

/// Which endpoints of a service clients prefer (`trafficDistribution`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Distribution {
    /// No preference.
    #[default]
    Any,
    /// Endpoints in the client's zone (`PreferSameZone`, `PreferClose`).
    SameZone,
    /// Endpoints on the client's node, then those in its zone (`PreferSameNode`).
    SameNode,
}

/// One workload instance, for clients that dial its address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// The instance's name.
    pub name: InstanceName,
    /// The instance's addresses.
    pub addresses: Vec<IpAddr>,
    /// The identity that the client expects over mTLS; `None` means plaintext.
    pub identity: Option<Identity>,
    /// The declared protocols of its ports.
    pub ports: Vec<PortProtocol>,
    /// The protocol of its proxy, if it has an identity.
    pub wire: WireForm,
}

/// The policy that a proxy enforces for its own workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerPolicy {
    /// The workload to which the policy applies.
    pub workload: InstanceName,
    /// Whether plaintext is accepted.
    pub mtls: MtlsMode,
    /// The ports that the workload or a service declares, with their protocols;
    /// [`Protocol::Detect`] for a port without a declared protocol. Other ports may exist, but the
    /// mesh does not know them.
    pub ports: Vec<PortProtocol>,
    /// The workload's rate limits.
    pub limits: Arc<[RateLimit]>,
    /// Whether the workload may connect to destinations that the mesh does not know.
    pub egress: Egress,
    /// The zone and the node in which the workload runs.
    pub place: Topology,
    /// Whether the workload is terminating. It still serves new connections, but closes each connection after its next
    /// response, so that clients move to other endpoints before it stops.
    pub ending: bool,
    /// The stage of the mesh's removal.
    pub removal: Removal,
    /// Which clients may connect, and what they may request.
    pub authorization: Arc<Authorization>,
}

/// A port and its protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortProtocol {
    /// The port on the workload.
    pub port: u16,
    /// The protocol.
    pub protocol: Protocol,
}

impl ServerPolicy {
    /// Whether HTTP connections are closed after their next response.
    #[must_use]
    pub fn closes(&self) -> bool {
        self.ending || self.removal == Removal::Released
    }
}

impl Service {
    /// The TCP port that clients dial as `port`.
    #[must_use]
    pub fn port(&self, port: u16) -> Option<&ServicePort> {
        self.ports.iter().find(|one| one.port == port && one.protocol != Protocol::Udp)
    }

    /// The UDP port to which clients send datagrams.
    #[must_use]
    pub fn datagram_port(&self, port: u16) -> Option<&ServicePort> {
        self.ports.iter().find(|one| one.port == port && one.protocol == Protocol::Udp)
    }
}

impl Topology {
    /// Whether both are known to be on the same node.
    #[must_use]
    pub fn shares_node(&self, other: &Self) -> bool {
        !self.node.is_empty() && self.node == other.node
    }

    /// Whether both are known to be in the same zone.
    #[must_use]
    pub fn shares_zone(&self, other: &Self) -> bool {
        !self.zone.is_empty() && self.zone == other.zone
    }
}

impl Endpoint {
    /// The socket address to which a client connects. It is of the same family as `like`, if the endpoint has such an
    /// address, and otherwise of the other family.
    #[must_use]
    pub fn address(&self, like: IpAddr) -> Option<SocketAddr> {
        let same_family = |ip: &&IpAddr| ip.is_ipv4() == like.is_ipv4();
        let ip = self.addresses.iter().find(same_family).or(self.addresses.first())?;
        Some(SocketAddr::new(*ip, self.port))
    }
}

/// The declared protocol of the TCP port `port`; [`Protocol::Detect`] if none is declared.
#[must_use]
pub fn declared(ports: &[PortProtocol], port: u16) -> Protocol {
    let declared = ports.iter().find(|p| p.port == port && p.protocol != Protocol::Udp);
    declared.map_or(Protocol::Detect, |p| p.protocol)
}

/// Whether proxies carry datagrams to `port`.
#[must_use]
pub fn takes_datagrams(ports: &[PortProtocol], port: u16) -> bool {
    ports.contains(&PortProtocol { port, protocol: Protocol::Udp })
}
