//! Which object holds each IP address, and which endpoints count.
//!
//! An address is held by the first of those that claim it: a service, whose addresses the API server
//! allocates; then a pod, whose addresses the kubelet reports; then a `Workload`, the oldest first. A slice
//! may send clients to what its own namespace holds, or out of the cluster, and nowhere else: otherwise a
//! tenant reaches, through the proxies of its clients, what it could not reach itself (CVE-2021-25740).

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use leno_types::{InstanceName, ServiceName};

use super::{Facts, Touched};
use crate::index::Writers;
use crate::rows::{EndpointRow, InstanceRow, Origin, SliceRow};

/// Where clouds serve a machine its credentials outside of the link-local range: AWS over IPv6, Azure's
/// host (168.63.129.16), Alibaba, Oracle.
const METADATA: [IpAddr; 4] = [
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)),
];

/// Most refused endpoints of one service that are kept for reports; all are counted.
const MAX_REPORTED: usize = 8;

/// An endpoint that is ignored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedEndpoint {
    /// Its address.
    pub address: IpAddr,
    /// Why it is ignored.
    pub reason: Refusal,
}

/// Why an endpoint of a slice is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Refusal {
    /// Its `targetRef` is in another namespace.
    #[error("its targetRef is in another namespace than its EndpointSlice")]
    ForeignTarget,
    /// Its `targetRef` has other addresses.
    #[error("it is not an address of the pod or Workload that its targetRef names")]
    NotOfTarget,
    /// Its `targetRef` names what there is not, or not yet.
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

/// The endpoints of a service that are ignored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RefusedEndpoints {
    /// How many there are for each reason.
    pub counts: BTreeMap<Refusal, usize>,
    /// The first of them, in the order of their slices.
    pub first: Vec<RefusedEndpoint>,
}

/// Who claims each address, and whose endpoints are there. Empty where one operator writes all objects.
#[derive(Clone, Debug, Default)]
pub(super) struct Addresses {
    /// In order: the first claim holds.
    claims: BTreeMap<IpAddr, Vec<Claim>>,
    /// How many pods run on the node of each address.
    nodes: BTreeMap<IpAddr, usize>,
    /// The services with endpoints that name no instance, and how many of these each has.
    bare: BTreeMap<IpAddr, BTreeMap<ServiceName, usize>>,
    /// What is ignored of each service.
    refused: BTreeMap<ServiceName, RefusedEndpoints>,
}

/// Who claims an address, the first of all to be believed first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Claim {
    Service(ServiceName),
    Instance(Origin, InstanceName),
}

impl Refusal {
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

    /// Whether it passes by itself: slices and pods are watched apart, and a pod may be read after its
    /// endpoint.
    #[must_use]
    pub const fn may_pass(self) -> bool {
        matches!(self, Self::UnknownTarget)
    }
}

impl Addresses {
    fn holder(&self, ip: IpAddr) -> Option<&Claim> {
        self.claims.get(&ip)?.first()
    }

    fn claim(&mut self, ip: IpAddr, claim: Claim) {
        let claims = self.claims.entry(ip).or_insert_with(|| Vec::with_capacity(1));
        let at = claims.partition_point(|other| *other <= claim);
        claims.insert(at, claim);
    }

    fn unclaim(&mut self, ip: IpAddr, claim: &Claim) {
        let Some(claims) = self.claims.get_mut(&ip) else { return };
        if let Ok(at) = claims.binary_search(claim) {
            claims.remove(at);
        }
        if claims.is_empty() {
            self.claims.remove(&ip);
        }
    }

    /// Whether the address is a node's from now on, or not any more.
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

    /// The answer at an address may be another one for all that have to do with it.
    fn touch(&self, ip: IpAddr, touched: &mut Touched) {
        for claim in self.claims.get(&ip).into_iter().flatten() {
            if let Claim::Instance(_, name) = claim {
                touched.instances.insert(name.clone());
            }
        }
        touched.services.extend(self.bare.get(&ip).into_iter().flatten().map(|(of, _)| of.clone()));
    }
}

impl Facts {
    /// Whether the namespaces of objects are those of tenants, whose claims are checked.
    pub(super) fn checks_claims(&self) -> bool {
        self.settings.writers == Writers::Tenants
    }

    /// Whether clients of `service` may be sent to an endpoint of its slices.
    pub(crate) fn accept(
        &self,
        service: &ServiceName,
        endpoint: &EndpointRow,
    ) -> Result<(), Refusal> {
        if !self.checks_claims() {
            return Ok(());
        }
        let ip = endpoint.ip;
        if is_reserved(ip) {
            return Err(Refusal::ReservedAddress);
        }
        if let Some(target) = &endpoint.instance {
            if target.namespace != service.namespace {
                return Err(Refusal::ForeignTarget);
            }
            let row = self.instance(target).ok_or(Refusal::UnknownTarget)?;
            let holds = self.holds(target, row, ip);
            return holds.then_some(()).ok_or(Refusal::NotOfTarget);
        }
        match self.addresses.holder(ip) {
            Some(Claim::Service(_)) => Err(Refusal::ServiceAddress),
            Some(Claim::Instance(_, name)) if name.namespace != service.namespace => {
                Err(Refusal::ForeignAddress)
            }
            Some(Claim::Instance(..)) => Ok(()),
            // The API server writes the slice of this service itself, and may run on a node's network.
            None if (&*service.namespace, &*service.name) == ("default", "kubernetes") => Ok(()),
            None if self.addresses.nodes.contains_key(&ip) => Err(Refusal::NodeAddress),
            None => Ok(()),
        }
    }

    /// Whether an address is an instance's own: no other object has the better claim to it.
    pub(crate) fn holds(&self, name: &InstanceName, row: &InstanceRow, ip: IpAddr) -> bool {
        if !self.checks_claims() {
            return true;
        }
        let first = || match self.addresses.holder(ip) {
            Some(Claim::Instance(_, holder)) => holder == name,
            _ => false,
        };
        row.addresses.contains(&ip) && (row.shares_node || first())
    }

    /// The endpoints that are ignored, by their services.
    pub(crate) fn refused(&self) -> &BTreeMap<ServiceName, RefusedEndpoints> {
        &self.addresses.refused
    }

    /// Updates the note of which endpoints of a service are ignored.
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

    pub(super) fn claim_service(&mut self, name: &ServiceName, add: bool, touched: &mut Touched) {
        let Some(row) = self.services.get(name).filter(|_| self.checks_claims()) else { return };
        for ip in row.vips.clone() {
            self.change_claim(ip, Claim::Service(name.clone()), add, touched);
        }
    }

    pub(super) fn claim_instance(
        &mut self,
        (name, row): (&InstanceName, &InstanceRow),
        add: bool,
        touched: &mut Touched,
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
            let claim = Claim::Instance(row.origin.clone(), name.clone());
            self.change_claim(ip, claim, add, touched);
        }
    }

    /// Notes the endpoints of a slice that name no instance: their acceptance hangs on their address.
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

    fn change_claim(&mut self, ip: IpAddr, claim: Claim, add: bool, touched: &mut Touched) {
        self.addresses.touch(ip, touched);
        if add {
            self.addresses.claim(ip, claim);
        } else {
            self.addresses.unclaim(ip, &claim);
        }
    }
}

/// Whether an address leads to the client's own machine, or to what only machines may call.
fn is_reserved(ip: IpAddr) -> bool {
    let of_family = match ip {
        IpAddr::V4(ip) => {
            ip.is_loopback()
                || ip.is_link_local()
                || ip.is_multicast()
                || ip.is_broadcast()
                // "This network" (RFC 791): Linux takes 0.0.0.0 for itself.
                || ip.octets()[0] == 0
        }
        IpAddr::V6(ip) => {
            ip.is_loopback()
                || ip.is_unspecified()
                || ip.is_multicast()
                || ip.is_unicast_link_local()
        }
    };
    of_family || METADATA.contains(&ip)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_the_machine_and_of_its_cloud_are_reserved() {
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
        ] {
            assert!(is_reserved(text.parse().unwrap()), "{text}");
        }
        for text in ["10.0.0.1", "192.0.2.7", "100.100.100.201", "fd00:ec2::253", "2001:db8::1"] {
            assert!(!is_reserved(text.parse().unwrap()), "{text}");
        }
    }
}
