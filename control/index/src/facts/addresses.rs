//! Determines which object owns each IP address, and which endpoints are accepted.
//!
//! If several objects claim an address, the first in this order owns it: a service, because the API server
//! allocates its addresses; a pod, because the kubelet reports its addresses; then the oldest `Workload`. A slice
//! may send clients to addresses that its own namespace owns, and to addresses outside of the cluster. Any other
//! address is refused. Otherwise a tenant could use the proxies of its clients to reach what it cannot reach
//! itself (CVE-2021-25740).

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use leno_types::{InstanceName, ServiceName};

use super::{AffectedNames, Facts};
use crate::index::ObjectWriters;
use crate::rows::{EndpointRow, InstanceOrigin, InstanceRow, SliceRow};

/// Addresses outside of the link-local range at which clouds serve credentials to a machine: AWS
/// over IPv6, Azure's host (168.63.129.16), Alibaba, Oracle.
const METADATA: [IpAddr; 4] = [
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)),
];

/// How many refused endpoints of one service are kept for reports; the counts include all of them.
const MAX_REPORTED: usize = 8;

/// An endpoint that is ignored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedEndpoint {
    /// Its address.
    pub address: IpAddr,
    /// Why it is ignored.
    pub reason: EndpointRefusal,
}

/// Why an endpoint of a slice is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum EndpointRefusal {
    /// Its `targetRef` names an object of another namespace.
    #[error("its targetRef is in another namespace than its EndpointSlice")]
    ForeignTarget,
    /// The object in its `targetRef` has other addresses.
    #[error("it is not an address of the pod or Workload that its targetRef names")]
    NotOfTarget,
    /// The object in its `targetRef` does not exist, or was not read yet.
    #[error("its targetRef names a pod or Workload that does not exist (yet)")]
    UnknownTarget,
    /// A pod or a `Workload` of another namespace has the address.
    #[error("it is the address of a workload in another namespace")]
    ForeignAddress,
    /// A Service has the address.
    #[error("it is the address of a Service")]
    ServiceAddress,
    /// A node has the address.
    #[error("it is the address of a node")]
    NodeAddress,
    /// No endpoint may have the address.
    #[error("it is a loopback, link-local, multicast or metadata address")]
    ReservedAddress,
}

/// The refused endpoints of a service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RefusedEndpoints {
    /// How many endpoints were refused for each reason.
    pub counts: BTreeMap<EndpointRefusal, usize>,
    /// The first refused endpoints, in the order of their slices; at most `MAX_REPORTED`.
    pub first: Vec<RefusedEndpoint>,
}

/// The claims on each address, and the endpoints that depend on them. Always empty if one operator writes all
/// objects.
#[derive(Clone, Debug, Default)]
pub(super) struct Addresses {
    /// The claims in their order of precedence. The first one decides.
    claims: BTreeMap<IpAddr, Vec<EndpointClaim>>,
    /// How many pods run on the node of each address.
    nodes: BTreeMap<IpAddr, usize>,
    /// The services that have endpoints without an instance at each address, with the number of such endpoints.
    bare: BTreeMap<IpAddr, BTreeMap<ServiceName, usize>>,
    /// The refused endpoints of each service.
    refused: BTreeMap<ServiceName, RefusedEndpoints>,
}

/// A claim on an address. The order of the variants is the order of precedence.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum EndpointClaim {
    Service(ServiceName),
    Instance(InstanceOrigin, InstanceName),
}

impl EndpointRefusal {
    /// The value of the label `reason` in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ForeignTarget => "foreign-target",
            Self::NotOfTarget => "not-of-target",
            Self::UnknownTarget => "unknown-target",
            Self::ForeignAddress => "foreign-address",
            Self::ServiceAddress => "service-address",
            Self::NodeAddress => "node-address",
            Self::ReservedAddress => "reserved-address",
        }
    }

    /// Whether the endpoint may be accepted soon without a change. Slices and pods are watched separately, so a
    /// pod may be read after the endpoint that names it.
    #[must_use]
    pub const fn may_pass(self) -> bool {
        matches!(self, Self::UnknownTarget)
    }
}

impl Addresses {
    fn holder(&self, ip: IpAddr) -> Option<&EndpointClaim> {
        self.claims.get(&ip)?.first()
    }

    fn claim(&mut self, ip: IpAddr, claim: EndpointClaim) {
        let claims = self.claims.entry(ip).or_insert_with(|| Vec::with_capacity(1));
        let at = claims.partition_point(|other| *other <= claim);
        claims.insert(at, claim);
    }

    fn unclaim(&mut self, ip: IpAddr, claim: &EndpointClaim) {
        let Some(claims) = self.claims.get_mut(&ip) else { return };
        if let Ok(at) = claims.binary_search(claim) {
            claims.remove(at);
        }
        if claims.is_empty() {
            self.claims.remove(&ip);
        }
    }

    /// Counts a pod on the node with this address. Returns whether the address became a node's address or ceased
    /// to be one.
    fn count_node(&mut self, ip: IpAddr, add: bool) -> bool {
        if add {
            let pods = self.nodes.entry(ip).or_default();
            *pods += 1;
            return *pods == 1;
        }
        let Some(pods) = self.nodes.get_mut(&ip) else { return false };
        *pods -= 1;
        let last = *pods == 0;
        if last {
            self.nodes.remove(&ip);
        }
        last
    }

    /// Marks every instance and service whose answer at this address may change.
    fn touch(&self, ip: IpAddr, touched: &mut AffectedNames) {
        for claim in self.claims.get(&ip).into_iter().flatten() {
            if let EndpointClaim::Instance(_, name) = claim {
                touched.instances.insert(name.clone());
            }
        }
        touched.services.extend(self.bare.get(&ip).into_iter().flatten().map(|(of, _)| of.clone()));
    }
}

impl Facts {
    /// Whether claims are checked, because tenants write the objects.
    pub(super) fn checks_claims(&self) -> bool {
        self.settings.writers == ObjectWriters::Tenants
    }

    /// Whether clients of `service` may be sent to an endpoint of its slices.
    pub(crate) fn accept(
        &self,
        service: &ServiceName,
        endpoint: &EndpointRow,
    ) -> Result<(), EndpointRefusal> {
        if !self.checks_claims() {
            return Ok(());
        }
        let ip = endpoint.ip;
        if is_reserved(ip) {
            return Err(EndpointRefusal::ReservedAddress);
        }
        if let Some(target) = &endpoint.instance {
            if target.namespace != service.namespace {
                return Err(EndpointRefusal::ForeignTarget);
            }
            let row = self.instance(target).ok_or(EndpointRefusal::UnknownTarget)?;
            let holds = self.holds(target, row, ip);
            return holds.then_some(()).ok_or(EndpointRefusal::NotOfTarget);
        }
        match self.addresses.holder(ip) {
            Some(EndpointClaim::Service(_)) => Err(EndpointRefusal::ServiceAddress),
            Some(EndpointClaim::Instance(_, name)) if name.namespace != service.namespace => {
                Err(EndpointRefusal::ForeignAddress)
            }
            Some(EndpointClaim::Instance(..)) => Ok(()),
            // The API server writes this slice itself, and may run in a node's network.
            None if (&*service.namespace, &*service.name) == ("default", "kubernetes") => Ok(()),
            None if self.addresses.nodes.contains_key(&ip) => Err(EndpointRefusal::NodeAddress),
            None => Ok(()),
        }
    }

    /// Whether an address belongs to an instance, because no other object has a claim that takes precedence.
    pub(crate) fn holds(&self, name: &InstanceName, row: &InstanceRow, ip: IpAddr) -> bool {
        if !self.checks_claims() {
            return true;
        }
        let first = || match self.addresses.holder(ip) {
            Some(EndpointClaim::Instance(_, holder)) => holder == name,
            _ => false,
        };
        row.addresses.contains(&ip) && (row.shares_node || first())
    }

    /// The refused endpoints by service.
    pub(crate) fn refused(&self) -> &BTreeMap<ServiceName, RefusedEndpoints> {
        &self.addresses.refused
    }

    /// Computes the refused endpoints of a service again.
    pub(crate) fn note_refused(&mut self, name: &ServiceName) {
        if !self.checks_claims() {
            return;
        }
        let mut refused = RefusedEndpoints::default();
        for endpoint in self.slices(name).flat_map(|slice| &slice.endpoints) {
            let Err(reason) = self.accept(name, endpoint) else { continue };
            *refused.counts.entry(reason).or_default() += 1;
            if refused.first.len() < MAX_REPORTED && !reason.may_pass() {
                refused.first.push(RefusedEndpoint { address: endpoint.ip, reason });
            }
        }
        if refused.counts.is_empty() {
            self.addresses.refused.remove(name);
        } else {
            self.addresses.refused.insert(name.clone(), refused);
        }
    }

    pub(super) fn claim_service(
        &mut self,
        name: &ServiceName,
        add: bool,
        touched: &mut AffectedNames,
    ) {
        let Some(row) = self.services.get(name).filter(|_| self.checks_claims()) else { return };
        for ip in row.vips.clone() {
            self.change_claim(ip, EndpointClaim::Service(name.clone()), add, touched);
        }
    }

    pub(super) fn claim_instance(
        &mut self,
        (name, row): (&InstanceName, &InstanceRow),
        add: bool,
        touched: &mut AffectedNames,
    ) {
        if !self.checks_claims() {
            return;
        }
        for ip in row.node.iter().copied() {
            if self.addresses.count_node(ip, add) {
                self.addresses.touch(ip, touched);
            }
        }
        if row.shares_node {
            return;
        }
        for ip in row.addresses.iter().copied() {
            let claim = EndpointClaim::Instance(row.origin.clone(), name.clone());
            self.change_claim(ip, claim, add, touched);
        }
    }

    /// Counts the endpoints of a slice that name no instance. Whether they are accepted depends on the owner of
    /// their address.
    pub(super) fn note_bare(&mut self, service: &ServiceName, row: &SliceRow, add: bool) {
        if !self.checks_claims() {
            return;
        }
        for endpoint in row.endpoints.iter().filter(|endpoint| endpoint.instance.is_none()) {
            let ip = endpoint.ip;
            let services = self.addresses.bare.entry(ip).or_default();
            let count = services.entry(service.clone()).or_default();
            *count = if add { *count + 1 } else { count.saturating_sub(1) };
            if *count == 0 {
                services.remove(service);
            }
            if services.is_empty() {
                self.addresses.bare.remove(&ip);
            }
        }
    }

    fn change_claim(
        &mut self,
        ip: IpAddr,
        claim: EndpointClaim,
        add: bool,
        touched: &mut AffectedNames,
    ) {
        self.addresses.touch(ip, touched);
        if add {
            self.addresses.claim(ip, claim);
        } else {
            self.addresses.unclaim(ip, &claim);
        }
    }
}

/// Whether no endpoint may have this address: a loopback, link-local, multicast or broadcast address, one of 0.0.0.0/8,
/// that of a metadata server of a cloud, or an IPv6 address that embeds such an IPv4 address.
#[must_use]
pub fn is_reserved(ip: IpAddr) -> bool {
    let ip = ip.to_canonical();
    let of_family = match ip {
        IpAddr::V4(ip) => {
            ip.is_loopback()
                || ip.is_link_local()
                || ip.is_multicast()
                || ip.is_broadcast()
                // "This network" (RFC 791): Linux connects to itself at 0.0.0.0.
                || ip.octets()[0] == 0
        }
        IpAddr::V6(ip) => {
            ip.is_loopback()
                || ip.is_unspecified()
                || ip.is_multicast()
                || ip.is_unicast_link_local()
                || embedded(ip).is_some_and(|ip| is_reserved(ip.into()))
        }
    };
    of_family || METADATA.contains(&ip)
}

/// The IPv4 address to which an IPv6 address leads because of its format; `None` if it has no such format.
fn embedded(ip: Ipv6Addr) -> Option<Ipv4Addr> {
    let [first, second, third, .., last, end] = ip.segments();
    let v4 = |high: u16, low: u16| Ipv4Addr::from(u32::from(high) << 16 | u32::from(low));
    match (first, second) {
        // NAT64 (RFC 6052, RFC 8215), and 6to4 (RFC 3056).
        (0x64, 0xff9b) => Some(v4(last, end)),
        (0x2002, high) => Some(v4(high, third)),
        // IPv4-compatible (RFC 4291 section 2.5.5.1).
        (0, 0) => Some(v4(last, end)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression test for a fault of Istio's, which fetched keys from any address that a tenant's document named.
    #[test]
    fn cve_2026_41413_addresses_of_the_machine_and_of_its_cloud_are_reserved() {
        for text in [
            "127.0.0.1",
            "127.8.9.10",
            "0.0.0.0",
            "0.1.2.3",
            "169.254.169.254",
            "224.0.0.1",
            "255.255.255.255",
            "::1",
            "::",
            "fe80::1",
            "ff02::1",
            "fd00:ec2::254",
            "100.100.100.200",
            "168.63.129.16",
            "192.0.0.192",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "::127.0.0.1",
            "64:ff9b::a9fe:a9fe",
            "2002:7f00:1::",
        ] {
            assert!(is_reserved(text.parse().unwrap()), "{text}");
        }
        for text in [
            "10.0.0.1",
            "192.0.2.7",
            "100.100.100.201",
            "fd00:ec2::253",
            "2001:db8::1",
            "64:ff9b::c000:201",
        ] {
            assert!(!is_reserved(text.parse().unwrap()), "{text}");
        }
    }
}
