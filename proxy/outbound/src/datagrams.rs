//! Decides where the datagrams that the workload sends go.
//!
//! There is one decision for each flow, which is a socket of the application and a destination. Datagrams to a
//! workload that has a proxy go through the mesh or not at all. Datagrams to other workloads and to addresses outside
//! of the mesh are sent in plaintext, as connections to them are. While the mesh is being removed, datagrams to
//! workloads with a proxy are sent in plaintext, too.

use std::net::SocketAddr;

use leno_types::mesh::{Endpoint, Resolution, WireForm, Workload, takes_datagrams};
use leno_types::{Identity, canonical};
use tokio::time::timeout;

use crate::destination::{RESOLVE_TIMEOUT, may_be_meshed};
use crate::{Outbound, egress};

/// Where the datagrams of a flow go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DatagramRoute {
    /// To the proxy of a workload with this identity.
    Mesh {
        /// The address and port of the workload.
        server: SocketAddr,
        /// The identity of its proxy.
        identity: Identity,
    },
    /// To an address without a proxy, in plaintext.
    Outside(SocketAddr),
    /// Nowhere. The text is the cause.
    Refused(&'static str),
}

/// The cause if discovery has not answered, and the address may be in the mesh.
const NOT_RESOLVED: &str = "not-resolved";
/// The cause if the port is not declared to carry datagrams.
const NOT_DECLARED: &str = "port-not-declared";
/// The cause if the service has no ready endpoint, or the picked endpoint has no address.
const NO_ENDPOINTS: &str = "no-endpoints";
/// The cause if the server's proxy accepts HBONE or is a waypoint; such proxies accept no datagrams.
const WIRE_FORM: &str = "wire-form";

impl Outbound {
    /// Where datagrams to this address go. Waits for a limited time until discovery has answered.
    pub async fn route_datagrams(&self, to: SocketAddr) -> DatagramRoute {
        let to = canonical(to);
        self.shared.local.refresh();
        if self.shared.local.is_local(to.ip()) {
            return DatagramRoute::Outside(to);
        }
        let mut resolution = self.destinations.directory().watch(to.ip());
        let answered = resolution.wait_for(|now| !matches!(now, Resolution::Pending));
        if !matches!(timeout(RESOLVE_TIMEOUT, answered).await, Ok(Ok(_))) {
            tracing::warn!(destination = %to, "discovery does not answer");
        }
        let now = resolution.borrow().clone();
        match now {
            Resolution::Pending if may_be_meshed(to.ip()) => DatagramRoute::Refused(NOT_RESOLVED),
            Resolution::Pending | Resolution::Unknown => self.to_unknown(to),
            Resolution::Workload(workload) => self.to_workload(&workload, to),
            Resolution::Service(service) => match service.datagram_port(to.port()) {
                None => DatagramRoute::Refused(NOT_DECLARED),
                Some(port) => match self.any(&port.endpoints) {
                    None => DatagramRoute::Refused(NO_ENDPOINTS),
                    Some(endpoint) => self.to_endpoint(endpoint, to),
                },
            },
        }
    }

    /// Whether datagrams to `to` may still take this route. It may have become invalid because egress policy, endpoints
    /// or their proxies have changed.
    #[must_use]
    pub fn still_routes_datagrams(&self, to: SocketAddr, route: &DatagramRoute) -> bool {
        let to = canonical(to);
        if self.shared.local.is_local(to.ip()) {
            return *route == DatagramRoute::Outside(to);
        }
        let now = self.destinations.directory().watch(to.ip()).borrow().clone();
        match now {
            // The previous route stays valid until there is an answer.
            Resolution::Pending => true,
            Resolution::Unknown => self.to_unknown(to) == *route,
            Resolution::Workload(workload) => self.to_workload(&workload, to) == *route,
            Resolution::Service(service) => {
                let port = service.datagram_port(to.port());
                let mut endpoints = port.iter().flat_map(|port| &*port.endpoints);
                endpoints.any(|endpoint| self.to_endpoint(endpoint, to) == *route)
            }
        }
    }

    fn to_unknown(&self, to: SocketAddr) -> DatagramRoute {
        match self.shared.egress.allows(to) {
            true => DatagramRoute::Outside(to),
            false => DatagramRoute::Refused(egress::DENIED),
        }
    }

    fn to_workload(&self, workload: &Workload, to: SocketAddr) -> DatagramRoute {
        let identity = workload.identity.clone();
        if identity.is_some() && !takes_datagrams(&workload.ports, to.port()) {
            return DatagramRoute::Refused(NOT_DECLARED);
        }
        self.to_server(to, identity, workload.wire)
    }

    fn to_endpoint(&self, endpoint: &Endpoint, dialled: SocketAddr) -> DatagramRoute {
        match endpoint.address(dialled.ip()) {
            None => DatagramRoute::Refused(NO_ENDPOINTS),
            Some(server) => self.to_server(server, endpoint.identity.clone(), endpoint.wire),
        }
    }

    fn to_server(
        &self,
        server: SocketAddr,
        identity: Option<Identity>,
        wire: WireForm,
    ) -> DatagramRoute {
        match identity {
            _ if self.shared.is_leaving.get() => DatagramRoute::Outside(server),
            None => DatagramRoute::Outside(server),
            Some(_) if wire != WireForm::Leno => DatagramRoute::Refused(WIRE_FORM),
            Some(identity) => DatagramRoute::Mesh { server, identity },
        }
    }

    /// Picks a random endpoint, because the load of a flow on its server is not known.
    fn any<'e>(&self, endpoints: &'e [Endpoint]) -> Option<&'e Endpoint> {
        let random = usize::try_from(self.shared.random()).unwrap_or_default();
        endpoints.get(random.checked_rem(endpoints.len())?)
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::sync::Arc;

    use leno_discovery::Directory;
    use leno_types::mesh::{PortProtocol, Service, ServicePort, Subject};
    use leno_types::{Egress, Protocol, ServiceName};

    use super::*;
    use crate::tests::{outbound, policy};

    fn web() -> Identity {
        "spiffe://cluster.local/ns/shop/sa/web".parse().unwrap()
    }

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn endpoint(identity: Option<Identity>, wire: WireForm) -> Endpoint {
        let (workload, place) = (None, Default::default());
        let addresses = vec![IpAddr::from([10, 89, 0, 2])];
        Endpoint { workload, addresses, port: 7000, identity, place, wire }
    }

    fn service(endpoints: Vec<Endpoint>) -> Resolution {
        let port = |port, protocol, endpoints: Vec<Endpoint>| ServicePort {
            port,
            name: "".into(),
            protocol,
            endpoints: endpoints.into(),
            external: None,
        };
        Resolution::Service(Arc::new(Service {
            name: ServiceName::new("shop", "web").unwrap(),
            vips: vec![IpAddr::from([10, 96, 0, 1])],
            ports: vec![
                port(80, Protocol::Http1, vec![endpoint(Some(web()), WireForm::Leno)]),
                port(5353, Protocol::Udp, endpoints),
            ],
            distribution: Default::default(),
            routes: [].into(),
            traffic: [].into(),
            waypoint: None,
        }))
    }

    fn workload(identity: Option<Identity>) -> Resolution {
        Resolution::Workload(Arc::new(Workload {
            name: "shop/web-0".parse().unwrap(),
            addresses: vec![IpAddr::from([10, 89, 0, 2])],
            identity,
            ports: vec![PortProtocol { port: 7000, protocol: Protocol::Udp }],
            wire: WireForm::Leno,
        }))
    }

    async fn route(answer: Resolution, egress: Egress, to: &str) -> DatagramRoute {
        let directory = Directory::fixed(move |_: &Subject| answer.clone())
            .with_server_policy(leno_types::mesh::ServerPolicy { egress, ..policy() });
        outbound(directory).route_datagrams(address(to)).await
    }

    #[tokio::test(start_paused = true)]
    async fn datagrams_go_by_the_mesh_or_outside_of_it_or_nowhere() {
        use DatagramRoute::{Mesh, Outside, Refused};
        let mesh = Mesh { server: address("10.89.0.2:7000"), identity: web() };
        let meshed = || endpoint(Some(web()), WireForm::Leno);
        let hbone = endpoint(Some(web()), WireForm::Hbone);
        let unmeshed = endpoint(None, WireForm::Leno);
        let vip = "10.96.0.1:5353";
        let (own, public) = ("10.89.0.2:7000", "203.0.113.9:7000");
        let cases = [
            (service(vec![meshed(), meshed()]), Egress::Deny, vip, mesh.clone()),
            (service(vec![unmeshed]), Egress::Deny, vip, Outside(address("10.89.0.2:7000"))),
            (service(vec![hbone]), Egress::Allow, vip, Refused(WIRE_FORM)),
            (service(vec![]), Egress::Allow, vip, Refused(NO_ENDPOINTS)),
            (service(vec![meshed()]), Egress::Allow, "10.96.0.1:80", Refused(NOT_DECLARED)),
            (workload(Some(web())), Egress::Deny, own, mesh),
            (workload(Some(web())), Egress::Allow, "10.89.0.2:53", Refused(NOT_DECLARED)),
            (workload(None), Egress::Allow, "10.89.0.2:53", Outside(address("10.89.0.2:53"))),
            (Resolution::Unknown, Egress::Allow, public, Outside(address(public))),
            (Resolution::Unknown, Egress::Deny, public, Refused(egress::DENIED)),
            (Resolution::Pending, Egress::Allow, own, Refused(NOT_RESOLVED)),
            (Resolution::Pending, Egress::Allow, public, Outside(address(public))),
        ];
        for (answer, egress, to, expected) in cases {
            assert_eq!(route(answer.clone(), egress, to).await, expected, "{answer:?} {to}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn datagrams_to_itself_stay_in_the_workload() {
        let own = address("127.0.0.1:7000");
        let route = outbound(Directory::fixed(|_| Resolution::Unknown)).route_datagrams(own).await;
        assert_eq!(route, DatagramRoute::Outside(own));
    }
}
