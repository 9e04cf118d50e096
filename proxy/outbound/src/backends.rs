//! The endpoints of one destination, with their balancer, pools and counters.

use std::cell::{Cell, OnceCell, RefCell};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use leno_balance::{Affinity, Balancer, Candidate, Nearness, NoPick, Pick, hash};
use leno_policy::effective;
use leno_pool::{CONN_IDLE, MESH_IDLE};
use leno_resilience::Gate;
use leno_telemetry::{Counter, Direction, Edge, EdgeLabels};
use leno_types::mesh::{Distribution, Endpoint, ExternalEndpoints, Service, WireForm};
use leno_types::traffic::Traffic;
use leno_types::{InstanceName, Protocol};

use crate::Worker;
use crate::external::{Outside, UNREACHABLE};
use crate::policy::{EndpointPolicy, RequestPolicy};
use crate::routes::Routes;
use crate::server::Pool;
use crate::streams::Streams;

/// The state that all endpoints of a destination share. A destination is a dialled address, or a service that a route
/// or the configuration names.
#[derive(Debug)]
pub(crate) struct Backends {
    shared: Rc<Worker>,
    labels: ServiceLabels,
    /// The address that the application dialled. Endpoints are preferably reached at addresses of the same family.
    like: IpAddr,
    /// The protocol that discovery has for the port.
    declared: Cell<Protocol>,
    /// Which endpoints near the workload are preferred.
    distribution: Cell<Distribution>,
    /// Whether a server has sent bytes before its client did, on the last connection that showed it.
    server_first: Cell<bool>,
    balancer: RefCell<Balancer<Remote>>,
    /// Limits and counts the connections to all endpoints, including endpoints that were removed.
    connections: Rc<Gate>,
    /// The routes that requests follow instead of going to these endpoints, if a route attaches to the service.
    routes: RefCell<Option<Rc<Routes>>>,
    /// The policies from which `requests` and `endpoints` were made.
    traffic: RefCell<Arc<[Arc<Traffic>]>>,
    /// The policy for requests that the application sends to this destination.
    requests: RefCell<Rc<RequestPolicy>>,
    /// The policy for choosing endpoints, ejecting them and limiting their load, whatever route leads to them.
    endpoints: RefCell<Rc<EndpointPolicy>>,
    /// How many ejections were already counted in metrics. The balancer ejects a failing endpoint: it leaves it out
    /// for a while.
    ejections: Cell<u64>,
    /// The routes that opaque connections follow, if a route attaches to the service.
    streams: RefCell<Option<Rc<Streams>>>,
    /// The routes from which `routes` and `streams` were made.
    routed: RefCell<Option<Arc<[Arc<leno_types::routes::Route>]>>>,
    /// How the proxy uses TLS on connections to endpoints outside of the mesh.
    outside: RefCell<Option<Rc<Outside>>>,
    /// The cause, if endpoints that are given by name have no address.
    unresolved: Cell<Option<&'static str>>,
    /// The cause if the last attempt to connect to an endpoint failed, and the cause is `connect-unreachable` or
    /// concerns an endpoint outside of the mesh.
    failure: Cell<Option<&'static str>>,
    /// The address of the service itself. The proxy requests this address from a waypoint of the service.
    own: Cell<Option<SocketAddr>>,
    /// The last endpoint whose application was not reached, for error answers.
    unreached: RefCell<Option<UnreachedEndpoint>>,
    /// Counts requests that failed before an endpoint was chosen. Metrics count by edge, which is a client workload
    /// and a server workload; this edge has no server.
    nobody: OnceCell<Rc<Edge>>,
}

/// An endpoint whose application was not reached, and why.
#[derive(Clone, Debug)]
pub(crate) struct UnreachedEndpoint {
    cause: &'static str,
    workload: Option<InstanceName>,
    address: SocketAddr,
}

impl fmt::Display for UnreachedEndpoint {
    /// Formats it as parameters of a header: `last="connect-refused"; endpoint="shop/web-0"`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cause, workload, address } = self;
        match workload {
            Some(name) => write!(f, "last=\"{cause}\"; endpoint=\"{name}\""),
            None => write!(f, "last=\"{cause}\"; endpoint=\"{address}\""),
        }
    }
}

/// The labels that name the service in the metrics of an edge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServiceLabels {
    service: Arc<str>,
    namespace: Arc<str>,
}

/// One endpoint, with the connections to it.
#[derive(Debug)]
pub(crate) struct Remote {
    pub(crate) endpoint: Endpoint,
    pub(crate) address: SocketAddr,
    /// The pool of connections to this endpoint.
    pub(crate) pool: Pool,
    /// Limits the connections to all endpoints of the service.
    pub(crate) connections: Rc<Gate>,
    /// How the proxy uses TLS on connections to this endpoint, if it is outside of the mesh.
    pub(crate) outside: Option<Rc<Outside>>,
    /// The address of the service, if this endpoint is a waypoint of the service.
    pub(crate) behind: Option<SocketAddr>,
    edge: OnceCell<Rc<Edge>>,
    labels: EdgeLabels,
}

/// After an update, an endpoint keeps its pool and its history if its old and its new value are equal by these fields.
impl PartialEq for Remote {
    fn eq(&self, other: &Self) -> bool {
        let same_tls = match (&self.outside, &other.outside) {
            (Some(own), Some(other)) => Rc::ptr_eq(own, other),
            (own, other) => own.is_none() && other.is_none(),
        };
        let same_end = self.address == other.address && self.behind == other.behind;
        same_end && self.endpoint == other.endpoint && same_tls
    }
}

impl Eq for Remote {}

impl Hash for Remote {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.address.hash(state);
    }
}

impl ServiceLabels {
    pub(crate) fn of(service: &Service) -> Self {
        let name = &service.name;
        Self { service: Arc::clone(&name.name), namespace: Arc::clone(&name.namespace) }
    }

    /// The labels for a workload that was dialled by its own address.
    pub(crate) fn none() -> Self {
        Self { service: "".into(), namespace: "".into() }
    }
}

impl Backends {
    /// `dialled` is the dialled address. It has the unspecified address `0.0.0.0` if a route or the configuration
    /// names the service.
    pub(crate) fn new(shared: Rc<Worker>, labels: ServiceLabels, dialled: SocketAddr) -> Self {
        let none = Traffic::default();
        let requests = RequestPolicy::new(&none, None, &shared.limits);
        let endpoints = EndpointPolicy::new(&none, None, &shared.source);
        let mut balancer = Balancer::new();
        balancer.configure(endpoints.settings(Distribution::Any));
        Self {
            shared,
            labels,
            like: dialled.ip(),
            declared: Cell::new(Protocol::Detect),
            distribution: Cell::default(),
            server_first: Cell::new(false),
            balancer: RefCell::new(balancer),
            connections: Gate::new(u32::MAX, 0),
            routes: RefCell::new(None),
            traffic: RefCell::default(),
            requests: RefCell::new(Rc::new(requests)),
            endpoints: RefCell::new(Rc::new(endpoints)),
            ejections: Cell::new(0),
            streams: RefCell::new(None),
            routed: RefCell::new(None),
            outside: RefCell::new(None),
            unresolved: Cell::new(None),
            failure: Cell::new(None),
            own: Cell::new(None),
            unreached: RefCell::new(None),
            nobody: OnceCell::new(),
        }
    }

    /// Sets how endpoints outside of the mesh are reached. Must be called before the endpoints are updated.
    pub(crate) fn update_external(
        &self,
        external: Option<&ExternalEndpoints>,
        unresolved: Option<&'static str>,
    ) {
        self.unresolved.set(unresolved);
        let how = external.and_then(|external| external.tls.as_ref());
        let known = self.outside.borrow().as_ref().is_some_and(|known| Some(&known.how) == how);
        if !known {
            self.outside.replace(how.map(Outside::new));
        }
    }

    /// Sets the address of the service. Must be called before the endpoints are updated.
    pub(crate) fn update_own(&self, own: Option<SocketAddr>) {
        self.own.set(own);
    }

    /// Whether the proxy uses TLS on connections to endpoints that have no identity.
    pub(crate) fn originates_tls(&self) -> bool {
        self.outside.borrow().is_some()
    }

    /// Why no endpoint could be picked, for `leno-error` and metrics.
    pub(crate) fn cause(&self, reason: NoPick) -> &'static str {
        // If all endpoints were tried, or all have just failed, the cause of the last failed connection explains
        // more.
        let outside = match reason {
            NoPick::Empty => self.unresolved.get(),
            NoPick::Excluded | NoPick::Failfast => self.failure.get(),
            NoPick::Full => None,
        };
        outside.unwrap_or_else(|| cause(reason))
    }

    /// Records the last endpoint whose application was not reached. The result of [`cause`](Self::cause) does not name
    /// it.
    pub(crate) fn note_unreached(&self, remote: &Remote, cause: &'static str) {
        let workload = remote.endpoint.workload.clone();
        let unreached = UnreachedEndpoint { cause, workload, address: remote.address };
        self.unreached.replace(Some(unreached));
    }

    /// The last endpoint that was not reached, if no endpoint could be picked because all were tried or have just
    /// failed. `None` if [`cause`](Self::cause) already says more.
    pub(crate) fn unreached(&self, reason: NoPick) -> Option<UnreachedEndpoint> {
        let tells = matches!(reason, NoPick::Excluded | NoPick::Failfast);
        let plain = self.cause(reason) == cause(reason);
        self.unreached.borrow().clone().filter(|_| tells && plain)
    }

    /// Records that a connection to an endpoint was opened, or failed for this cause.
    pub(crate) fn opened(&self, failure: Option<&'static str>) {
        let tells = |cause: &&str| cause.starts_with("external-") || *cause == UNREACHABLE;
        self.failure.set(failure.filter(tells));
    }

    /// Applies the current endpoints from discovery. Endpoints that remain keep their pools and estimates.
    pub(crate) fn update(
        &self,
        protocol: Protocol,
        distribution: Distribution,
        endpoints: &[Endpoint],
    ) {
        self.declared.set(protocol);
        if self.distribution.replace(distribution) != distribution {
            let settings = self.endpoints.borrow().settings(distribution);
            self.balancer.borrow_mut().configure(settings);
        }
        let own = self.shared.place.borrow();
        let remotes = endpoints.iter().filter_map(|endpoint| {
            let address = endpoint.address(self.like)?;
            Some(Candidate {
                endpoint: self.remote(endpoint, address),
                key: hash(address.to_string().as_bytes()),
                weight: 1,
                nearness: match &endpoint.place {
                    place if place.shares_node(&own) => Nearness::Node,
                    place if place.shares_zone(&own) => Nearness::Zone,
                    _ => Nearness::Elsewhere,
                },
            })
        });
        self.balancer.borrow_mut().update_with(leno_transport::now(), remotes);
    }

    /// Applies the current routes of a port from discovery. Requests in progress keep the routes with which they began.
    /// `is_stale` says that the policies of routes have changed.
    pub(crate) fn update_routes(&self, service: &Service, port: u16, is_stale: bool) {
        let same = match &*self.routed.borrow() {
            Some(routed) => Arc::ptr_eq(routed, &service.routes) || *routed == service.routes,
            None => service.routes.is_empty(),
        };
        if !same || is_stale && !service.routes.is_empty() {
            // The new routes are made before the old ones are dropped, so that targets that remain keep their pools.
            let streams = Streams::new(&self.shared, service, port);
            let before = self.routes();
            let routes = Routes::new(&self.shared, (service, port), before.as_deref());
            drop(self.routes.replace(routes));
            drop(self.streams.replace(streams));
            self.routed.replace(Some(Arc::clone(&service.routes)));
        }
    }

    /// Applies the current policies of a port from discovery. Requests in progress keep the policies with which they
    /// began. Returns whether the policies changed.
    pub(crate) fn update_traffic(&self, traffic: &Arc<[Arc<Traffic>]>, port: u16) -> bool {
        let same = |known: &Arc<[Arc<Traffic>]>| Arc::ptr_eq(known, traffic) || known == traffic;
        if same(&self.traffic.borrow()) {
            return false;
        }
        self.traffic.replace(Arc::clone(traffic));
        let now = effective(traffic, port, None);
        let requests = Rc::clone(&self.requests.borrow());
        if !requests.is_of(&now) {
            let new = RequestPolicy::new(&now, Some(&requests), &self.shared.limits);
            self.requests.replace(Rc::new(new));
        }
        let endpoints = Rc::clone(&self.endpoints.borrow());
        if !endpoints.is_of(&now) {
            let new = EndpointPolicy::new(&now, Some(&endpoints), &self.shared.source);
            let settings = new.settings(self.distribution.get());
            self.balancer.borrow_mut().configure(settings);
            self.connections.set(new.connections(), 0);
            self.endpoints.replace(Rc::new(new));
        }
        true
    }

    /// The routes that requests follow; `None` if no route attaches to the service.
    pub(crate) fn routes(&self) -> Option<Rc<Routes>> {
        self.routes.borrow().clone()
    }

    /// The routes that opaque connections follow.
    pub(crate) fn streams(&self) -> Option<Rc<Streams>> {
        self.streams.borrow().clone()
    }

    pub(crate) fn labels(&self) -> &ServiceLabels {
        &self.labels
    }

    pub(crate) fn protocol(&self) -> Protocol {
        self.declared.get()
    }

    /// Whether a server of this destination has sent bytes before its client did.
    pub(crate) fn server_speaks_first(&self) -> bool {
        self.server_first.get()
    }

    /// Records whether the server sent first, so that the next connection does not wait for the client.
    pub(crate) fn learn(&self, server_first: bool) {
        self.server_first.set(server_first);
    }

    /// Picks an endpoint that is not in `tried`. Does not wait: if there is none, the error says why.
    pub(crate) fn pick(&self, tried: &[SocketAddr]) -> Result<Pick<Remote>, NoPick> {
        self.pick_for(self.endpoints.borrow().wanted_of_stream(), tried)
    }

    /// Picks an endpoint that is not in `tried`: if possible the one that `wanted` names by a hash or a session.
    pub(crate) fn pick_for(
        &self,
        wanted: Affinity,
        tried: &[SocketAddr],
    ) -> Result<Pick<Remote>, NoPick> {
        let excluded = |remote: &Remote| tried.contains(&remote.address);
        let picked = self.balancer.borrow_mut().pick_for(leno_transport::now(), wanted, excluded);
        self.count_ejections();
        picked
    }

    /// Closes a connection that no request uses, to make room for a connection to another endpoint. Returns whether
    /// there was one.
    pub(crate) fn close_idle(&self) -> bool {
        let balancer = self.balancer.borrow();
        balancer.endpoints().any(|(remote, _)| remote.pool.take().is_some())
    }

    /// Whether there are endpoints that are not in `tried`.
    pub(crate) fn has_others(&self, tried: &[SocketAddr]) -> bool {
        let balancer = self.balancer.borrow();
        balancer.endpoints().any(|(remote, _)| !tried.contains(&remote.address))
    }

    /// The addresses of the endpoints to which no shared connection is open or being opened.
    pub(crate) fn unconnected(&self) -> Vec<SocketAddr> {
        let balancer = self.balancer.borrow();
        let without = balancer.endpoints().filter(|(remote, _)| !remote.pool.is_shared());
        without.map(|(remote, _)| remote.address).collect()
    }

    /// The policy for requests that the application sends to this destination.
    pub(crate) fn requests(&self) -> Rc<RequestPolicy> {
        Rc::clone(&self.requests.borrow())
    }

    /// The policy for choosing endpoints, ejecting them and limiting their load.
    pub(crate) fn endpoints(&self) -> Rc<EndpointPolicy> {
        Rc::clone(&self.endpoints.borrow())
    }

    fn count_ejections(&self) {
        let ejections = self.balancer.borrow().ejections();
        for _ in self.ejections.replace(ejections)..ejections {
            self.shared.registry.count(Counter::Ejections);
        }
    }

    /// Whether there is neither an endpoint nor a route.
    pub(crate) fn is_empty(&self) -> bool {
        let routed = self.routes.borrow().is_some() || self.streams.borrow().is_some();
        !routed && self.balancer.borrow().is_empty()
    }

    /// The edge without a server, which counts requests that failed before an endpoint was chosen.
    pub(crate) fn nobody(&self) -> &Edge {
        self.nobody.get_or_init(|| self.shared.registry.edge(&self.edge_labels(None)))
    }

    pub(crate) fn sweep(&self) {
        self.count_ejections();
        for (remote, _in_flight) in self.balancer.borrow().endpoints() {
            remote.pool.sweep();
        }
        let now = leno_transport::now();
        for (remote, reason) in self.balancer.borrow().ejected_endpoints(now) {
            remote.edge(&self.shared).ejected(reason);
        }
        if let Some(routes) = &*self.routes.borrow() {
            routes.sweep();
        }
        if let Some(streams) = &*self.streams.borrow() {
            streams.sweep();
        }
    }

    fn remote(&self, endpoint: &Endpoint, address: SocketAddr) -> Remote {
        // Requests of a workload to itself go directly to its application, without a proxy in between.
        let own = self.shared.local.is_local(address.ip());
        let mut endpoint = endpoint.clone();
        if self.shared.is_leaving.get() {
            endpoint.identity = None;
        }
        let mut labels = self.edge_labels(Some(&endpoint));
        labels.mtls &= !own;
        let is_mesh = endpoint.identity.is_some() && endpoint.wire == WireForm::Leno && !own;
        let (limits, shared_idle) = match is_mesh {
            true => (&self.shared.mesh_limits, MESH_IDLE),
            false => (&self.shared.h2_limits, CONN_IDLE),
        };
        Remote {
            address,
            pool: Pool::new(Rc::clone(limits), shared_idle),
            connections: Rc::clone(&self.connections),
            outside: self.outside.borrow().clone().filter(|_| endpoint.identity.is_none()),
            behind: self.own.get().filter(|_| endpoint.wire == WireForm::Waypoint),
            endpoint,
            edge: OnceCell::new(),
            labels,
        }
    }

    fn edge_labels(&self, endpoint: Option<&Endpoint>) -> EdgeLabels {
        let workload = endpoint.and_then(|endpoint| endpoint.workload.as_ref());
        let namespace = workload.map_or(&self.labels.namespace, |workload| &workload.namespace);
        EdgeLabels {
            direction: Direction::Outbound,
            client: Arc::clone(&self.shared.client),
            client_namespace: Arc::clone(&self.shared.client_namespace),
            client_trust_domain: "".into(),
            server: workload.map_or_else(|| "".into(), |workload| Arc::clone(&workload.name)),
            server_namespace: Arc::clone(namespace),
            service: Arc::clone(&self.labels.service),
            mtls: endpoint.is_some_and(|endpoint| endpoint.identity.is_some()),
        }
    }
}

impl Remote {
    /// The labels of the edge from this workload to the workload at this endpoint.
    pub(crate) fn labels(&self) -> &EdgeLabels {
        &self.labels
    }

    /// The metrics of the traffic to this endpoint. Created on first use, so that an endpoint that is never called
    /// has no series.
    pub(crate) fn edge(&self, shared: &Worker) -> &Rc<Edge> {
        self.edge.get_or_init(|| shared.registry.edge(&self.labels))
    }
}

/// The cause for each reason for which no endpoint can be picked. [`Backends::cause`] may know a more exact one.
pub(crate) const fn cause(reason: NoPick) -> &'static str {
    match reason {
        NoPick::Empty => "no-endpoints",
        NoPick::Excluded => "endpoints-tried",
        NoPick::Failfast => "failfast",
        NoPick::Full => "endpoints-full",
    }
}

#[cfg(test)]
mod tests {
    use leno_discovery::Directory;
    use leno_types::Identity;
    use leno_types::TrustDomain;
    use leno_types::mesh::{Resolution, Topology};

    use super::*;

    #[tokio::test]
    async fn a_call_to_itself_is_not_counted_as_encrypted() {
        let outbound = crate::tests::outbound(Directory::fixed(|_| Resolution::Unknown));
        let domain = TrustDomain::new("cluster.local").unwrap();
        let identity = Identity::new(domain, "shop", "web").unwrap();
        for (address, mtls) in [("127.0.0.1", false), ("192.0.2.1", true)] {
            let ip: IpAddr = address.parse().unwrap();
            let (shared, dialled) = (Rc::clone(&outbound.shared), SocketAddr::new(ip, 80));
            let backends = Backends::new(shared, ServiceLabels::none(), dialled);
            backends.update(
                Protocol::Http1,
                Distribution::Any,
                &[Endpoint {
                    workload: None,
                    addresses: vec![ip],
                    port: 80,
                    identity: Some(identity.clone()),
                    place: Topology::default(),
                    wire: Default::default(),
                }],
            );
            let pick = backends.pick(&[]).unwrap();
            assert_eq!(pick.endpoint().edge(&outbound.shared).labels().mtls, mtls, "{address}");
        }
    }
}
