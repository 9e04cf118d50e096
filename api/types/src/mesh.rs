//! What the control plane tells a proxy: services with their endpoints, workloads, server policy.
//!
//! The index makes these values, `wire` carries them, discovery hands them to the planes as
//! [`Resolution`]s. They are immutable: an update is a new value behind a new `Arc`.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::routes::Route;
use crate::traffic::{RateLimit, Traffic};
use crate::{Egress, Identity, InstanceName, MtlsMode, Protocol, Removal, ServiceName};

/// What stands behind one IP address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Resolution {
    /// The control plane has not answered yet.
    #[default]
    Pending,
    /// The address is the VIP of a service.
    Service(Arc<Service>),
    /// The address is a workload's own.
    Workload(Arc<Workload>),
    /// The mesh does not know the address.
    Unknown,
}

/// A service as its clients need it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// Its name.
    pub name: ServiceName,
    /// Its virtual addresses; empty for a headless service.
    pub vips: Vec<IpAddr>,
    /// Its ports, by ascending number.
    pub ports: Vec<ServicePort>,
    /// Which endpoints clients prefer.
    pub distribution: Distribution,
    /// Where requests to it go instead of its own endpoints: the routes that hold for the client
    /// that this value was made for. None means that nobody has attached any.
    pub routes: Arc<[Arc<Route>]>,
    /// The policies of the service, and those of its routes.
    pub traffic: Arc<[Arc<Traffic>]>,
}

/// What a proxy asks about.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Subject {
    /// Whatever stands behind an address.
    Address(IpAddr),
    /// A service, by its name: what routes refer to.
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
    /// Its name, empty when it has none.
    pub name: Arc<str>,
    /// What it carries, when declared.
    pub protocol: Protocol,
    /// Where it can be served, ready endpoints only.
    pub endpoints: Arc<[Endpoint]>,
    /// What is known of those of its endpoints that are outside of the mesh.
    pub external: Option<Arc<External>>,
}

/// What is outside of the mesh behind a port of a service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct External {
    /// Where it can be served, by names whose addresses the client finds out.
    pub names: Vec<NamedEndpoint>,
    /// How TLS is begun there, also with endpoints that have addresses and no identity; none means that
    /// they are called as the application calls.
    pub tls: Option<Origination>,
}

/// A place outside of the mesh that has a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedEndpoint {
    /// The name in DNS, in full and without a dot at its end.
    pub host: Arc<str>,
    /// The port there.
    pub port: u16,
}

/// How TLS is begun with a server outside of the mesh, and whom it must prove to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origination {
    /// Who says so, for messages: `BackendTLSPolicy <namespace>/<name>`.
    pub source: Arc<str>,
    /// What the server is asked for (RFC 6066 section 3) and, where there are no names, what its
    /// certificate must be for.
    pub hostname: Arc<str>,
    /// Who must have issued its certificate.
    pub roots: Roots,
    /// What its certificate must be for, one of these.
    pub names: Arc<[SubjectName]>,
}

/// Authorities.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Roots {
    /// Those that the proxy's machine trusts.
    System,
    /// These, in DER.
    Given(Arc<[Vec<u8>]>),
    /// None that can be used, and why; nothing is sent then.
    Missing(Arc<str>),
}

/// A name in a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SubjectName {
    /// Of a host.
    Host(Arc<str>),
    /// A URI, compared as it is.
    Uri(Arc<str>),
}

/// One place that serves a service's port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// The workload instance, when known.
    pub workload: Option<InstanceName>,
    /// Its addresses, at most one of each family, IPv4 first.
    pub addresses: Vec<IpAddr>,
    /// The port on the workload.
    pub port: u16,
    /// Whom to expect over mTLS; none means plaintext (unmeshed, or mTLS disabled).
    pub identity: Option<Identity>,
    /// Where it is, for clients that prefer near ones; empty where the service prefers none.
    pub place: Place,
}

/// Where something runs; empty where nobody has said.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Place {
    /// The zone (`topology.kubernetes.io/zone`).
    pub zone: Arc<str>,
    /// The node (`kubernetes.io/hostname`).
    pub node: Arc<str>,
}

/// Which endpoints of a service clients prefer (`trafficDistribution`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Distribution {
    /// None.
    #[default]
    Any,
    /// Those of the client's zone (`PreferSameZone`, `PreferClose`).
    SameZone,
    /// Those of the client's node, then those of its zone (`PreferSameNode`).
    SameNode,
}

/// One workload instance, for clients that dial its address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Its name.
    pub name: InstanceName,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// Whom to expect over mTLS; none means plaintext.
    pub identity: Option<Identity>,
    /// What its ports carry, where declared.
    pub ports: Vec<PortProtocol>,
}

/// What a proxy enforces for its own workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerPolicy {
    /// The workload it is for.
    pub workload: InstanceName,
    /// Whether plaintext is served.
    pub mtls: MtlsMode,
    /// The ports that the workload or a service names, and what they carry;
    /// [`Protocol::Detect`] where nobody says. Of any other port nobody but the workload knows.
    pub ports: Vec<PortProtocol>,
    /// How many requests the workload takes.
    pub limits: Arc<[RateLimit]>,
    /// Whether it may call what the mesh does not know.
    pub egress: Egress,
    /// Where it is.
    pub place: Place,
    /// Whether it has been told to end. It still serves whoever comes, and closes their connections after
    /// the next response, so that they go elsewhere before it is gone.
    pub ending: bool,
    /// How far the removal of the mesh has gone.
    pub removal: Removal,
}

/// A port number and what it carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortProtocol {
    /// The port on the workload.
    pub port: u16,
    /// What it carries.
    pub protocol: Protocol,
}

impl ServerPolicy {
    /// Whether connections of HTTP are closed after their next response.
    #[must_use]
    pub fn closes(&self) -> bool {
        self.ending || self.removal == Removal::Released
    }
}

impl Service {
    /// The port that clients dial as `port`.
    #[must_use]
    pub fn port(&self, port: u16) -> Option<&ServicePort> {
        self.ports.iter().find(|candidate| candidate.port == port)
    }
}

impl Place {
    /// Whether both are known to be on one node.
    #[must_use]
    pub fn shares_node(&self, other: &Self) -> bool {
        !self.node.is_empty() && self.node == other.node
    }

    /// Whether both are known to be in one zone.
    #[must_use]
    pub fn shares_zone(&self, other: &Self) -> bool {
        !self.zone.is_empty() && self.zone == other.zone
    }
}

impl Endpoint {
    /// The socket address to dial: of the family of `like` where the endpoint has one, else any.
    #[must_use]
    pub fn address(&self, like: IpAddr) -> Option<SocketAddr> {
        let same_family = |ip: &&IpAddr| ip.is_ipv4() == like.is_ipv4();
        let ip = self.addresses.iter().find(same_family).or(self.addresses.first())?;
        Some(SocketAddr::new(*ip, self.port))
    }
}

/// What is declared for `port`, [`Protocol::Detect`] when nothing is.
#[must_use]
pub fn declared(ports: &[PortProtocol], port: u16) -> Protocol {
    ports.iter().find(|p| p.port == port).map_or(Protocol::Detect, |p| p.protocol)
}
