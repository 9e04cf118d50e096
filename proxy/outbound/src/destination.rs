//! Finds out what is at an address that the application dialled.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use leno_discovery::Directory;
use leno_types::mesh::{Distribution, Endpoint, Resolution, Topology, Workload, declared};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::Worker;
use crate::backends::{Backends, ServiceLabels};
use crate::external::Resolved;

/// How long to wait for discovery's first answer about an address. After this time, an address that may be in the mesh
/// is refused, and the proxy connects directly to any other address. A control plane answers within milliseconds.
pub(crate) const RESOLVE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long to wait for the first endpoint of a service that has none. Discovery reports an endpoint that has just
/// become ready within this time, so requests survive a restart of the only instance.
const EMPTY_WAIT: Duration = Duration::from_secs(1);
/// How long to wait for the first addresses of a name. A near resolver answers at once; if it is silent, the next one
/// is asked after two seconds.
const NAMES_WAIT: Duration = Duration::from_secs(5);
/// How many destinations one worker keeps. If there are more, those that have been idle longest are dropped.
const MAX_DESTINATIONS: usize = 4096;
/// How long an unused destination is kept.
const DESTINATION_IDLE: Duration = Duration::from_secs(300);

/// The destinations of one worker, by the address that was dialled.
#[derive(Debug)]
pub(crate) struct Destinations {
    directory: Directory,
    shared: Rc<Worker>,
    known: RefCell<HashMap<SocketAddr, Rc<Destination>>>,
}

/// One address and port that the application dials, or a port of a service that a route or the configuration names.
#[derive(Debug)]
pub(crate) struct Destination {
    original: SocketAddr,
    shared: Rc<Worker>,
    /// The latest answer of discovery about the address or service.
    resolution: RefCell<watch::Receiver<Resolution>>,
    /// The route for that answer; `None` if there is none yet.
    route: RefCell<Option<Route>>,
    /// When a connection last used the destination.
    used_at: Cell<Instant>,
    /// The DNS names among the destination's endpoints.
    resolved: RefCell<Resolved>,
    /// Whether requests to this destination have already followed routes. The backends of a route are endpoints of
    /// their services; the routes of those services do not apply (GEP-1294, "Multiple routes for a Service").
    routed: bool,
    /// The value of [`Worker::moved`] when the route was made.
    moved: Cell<u64>,
}

/// Where connections to a destination go.
#[derive(Clone, Debug)]
pub(crate) enum Route {
    /// Directly to the address, which is not in the mesh.
    Direct,
    /// To this workload itself.
    Own,
    /// To the endpoints of a service, or to one workload.
    Backends(Rc<Backends>),
    /// To nothing: the service has no such port.
    NoSuchPort,
    /// To nothing: discovery has not answered yet, and the address may be in the mesh, so the proxy does not connect to
    /// it in plaintext.
    Unresolved,
}

impl Route {
    /// Whether the route leads to a service without any endpoint.
    fn is_empty(&self) -> bool {
        matches!(self, Self::Backends(backends) if backends.is_empty())
    }
}

impl Destinations {
    pub(crate) fn new(directory: Directory, shared: Rc<Worker>) -> Self {
        Self { directory, shared, known: RefCell::default() }
    }

    pub(crate) fn directory(&self) -> &Directory {
        &self.directory
    }

    /// The destination of an address. The first use starts a watch in discovery.
    pub(crate) fn get(&self, original: SocketAddr) -> Rc<Destination> {
        self.shared.local.refresh();
        let mut known = self.known.borrow_mut();
        if let Some(destination) = known.get(&original) {
            destination.used_at.set(Instant::now());
            return Rc::clone(destination);
        }
        if known.len() >= MAX_DESTINATIONS {
            forget_longest_idle(&mut known);
        }
        let resolution = self.directory.watch(original.ip());
        let destination = Destination::new(original, resolution, Rc::clone(&self.shared));
        let destination = Rc::new(destination);
        known.insert(original, Rc::clone(&destination));
        destination
    }

    pub(crate) fn sweep(&self) {
        self.known.borrow_mut().retain(|_, destination| {
            destination.sweep();
            Rc::strong_count(destination) > 1
                || destination.used_at.get().elapsed() < DESTINATION_IDLE
        });
    }
}

/// Whether an address is of the kind that services and workloads have: private (RFC 1918, RFC 6598, RFC 4193) or
/// link-local. No service of the mesh has another address, so other addresses are dialled directly while the control
/// plane is away.
pub(crate) fn may_be_meshed(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => {
            let [a, b, ..] = v4.octets();
            v4.is_private() || v4.is_link_local() || a == 100 && b & 0xc0 == 64
        }
        IpAddr::V6(v6) => v6.is_unique_local() || v6.is_unicast_link_local(),
    }
}

/// Drops a quarter of the destinations that no connection uses, so that many insertions need only one search for the
/// oldest destinations. Destinations in use keep their pools and estimates; their number is limited by the number of
/// connections.
fn forget_longest_idle(known: &mut HashMap<SocketAddr, Rc<Destination>>) {
    let is_idle = |one: &Rc<Destination>| Rc::strong_count(one) == 1;
    let idle = known.values().filter(|one| is_idle(one));
    let mut used: Vec<Instant> = idle.map(|one| one.used_at.get()).collect();
    if used.is_empty() {
        return;
    }
    let quarter = used.len() / 4;
    let (_, limit, _) = used.select_nth_unstable(quarter);
    let limit = *limit;
    known.retain(|_, one| !is_idle(one) || one.used_at.get() > limit);
}

impl Destination {
    pub(crate) fn new(
        original: SocketAddr,
        resolution: watch::Receiver<Resolution>,
        shared: Rc<Worker>,
    ) -> Self {
        Self {
            original,
            moved: Cell::new(shared.moved.get()),
            shared,
            resolution: RefCell::new(resolution),
            route: RefCell::new(None),
            used_at: Cell::new(Instant::now()),
            resolved: RefCell::default(),
            routed: false,
        }
    }

    /// The destination for a route's backend, which is a port of a service that the route names. No address is
    /// dialled for it.
    pub(crate) fn of_route(
        port: u16,
        resolution: watch::Receiver<Resolution>,
        shared: Rc<Worker>,
    ) -> Self {
        let original = SocketAddr::from(([0, 0, 0, 0], port));
        Self { routed: true, ..Self::new(original, resolution, shared) }
    }

    /// The dialled address.
    pub(crate) fn original(&self) -> SocketAddr {
        self.original
    }

    /// Where connections go now. Waits for limited times until discovery has answered and until a service has an
    /// endpoint.
    pub(crate) async fn route(&self) -> Route {
        let pending = matches!(*self.resolution.borrow().borrow(), Resolution::Pending);
        if pending && (self.is_fixed() || !self.shared.local.is_local(self.original.ip())) {
            let mut resolution = self.resolution.borrow().clone();
            let answered = resolution.wait_for(|now| !matches!(now, Resolution::Pending));
            if !matches!(tokio::time::timeout(RESOLVE_TIMEOUT, answered).await, Ok(Ok(_))) {
                tracing::warn!(destination = %self.original, "discovery does not answer");
            }
        }
        self.route_with_endpoints().await
    }

    /// Where connections go now. Waits for a limited time until a service has an endpoint.
    pub(crate) async fn route_with_endpoints(&self) -> Route {
        let route = self.route_now();
        if !route.is_empty() {
            return route;
        }
        let mut resolution = self.resolution.borrow().clone();
        let mut names = self.shared.names.changes();
        let filled = async {
            while self.route_now().is_empty() {
                // The senders live as long as the directory and the resolver of names, so an error means that the
                // proxy is ending.
                let ended = tokio::select! {
                    changed = resolution.changed() => changed.is_err(),
                    changed = names.changed() => changed.is_err(),
                };
                if ended {
                    return;
                }
            }
        };
        let wait = match self.resolved.borrow().is_pending() {
            true => NAMES_WAIT,
            false => EMPTY_WAIT,
        };
        // If there is still no endpoint, the caller reports that.
        let _still_empty = tokio::time::timeout(wait, filled).await;
        self.route_now()
    }

    /// Waits until the destination, which was a service or workload of the mesh, is no longer one.
    pub(crate) async fn gone(&self) {
        let mut resolution = self.resolution.borrow().clone();
        let mut was_there = false;
        loop {
            match self.route_now() {
                Route::Backends(_) => was_there = true,
                _ if was_there => return,
                _ => {}
            }
            if resolution.changed().await.is_err() {
                // The directory has ended, and the proxy with it.
                return std::future::pending().await;
            }
        }
    }

    /// Where connections go now, according to the last answer of discovery. As long as nothing changes, this only
    /// compares versions.
    pub(crate) fn route_now(&self) -> Route {
        let mut resolution = self.resolution.borrow_mut();
        let mut route = self.route.borrow_mut();
        match &*route {
            Some(route)
                if !resolution.has_changed().unwrap_or(false)
                    && !self.resolved.borrow().has_changed()
                    && self.moved.get() == self.shared.moved.get() =>
            {
                return route.clone();
            }
            _ => {}
        }
        self.moved.set(self.shared.moved.get());
        let now = resolution.borrow_and_update().clone();
        let new = self.make_route(route.take(), &now);
        // A route that was made while there was no answer must not be stored. It would still be used after the
        // answer.
        if !matches!(now, Resolution::Pending) {
            *route = Some(new.clone());
        }
        new
    }

    pub(crate) fn sweep(&self) {
        if let Some(Route::Backends(backends)) = &*self.route.borrow() {
            backends.sweep();
        }
    }

    /// Makes the route. Keeps the backends of the previous route, so that pools and estimates survive an update.
    fn make_route(&self, before: Option<Route>, now: &Resolution) -> Route {
        let labels;
        let protocol;
        let endpoints: Arc<[Endpoint]>;
        let mut external = None;
        let mut distribution = Distribution::Any;
        match now {
            _ if self.shared.local.is_local(self.original.ip()) && !self.is_fixed() => {
                return Route::Own;
            }
            Resolution::Pending if may_be_meshed(self.original.ip()) => return Route::Unresolved,
            Resolution::Pending | Resolution::Unknown => return Route::Direct,
            Resolution::Service(service) => {
                let Some(port) = service.port(self.original.port()) else {
                    return Route::NoSuchPort;
                };
                labels = ServiceLabels::of(service);
                protocol = port.protocol;
                external = port.external.clone();
                let names = external.as_ref().map_or(&[][..], |external| &external.names);
                let mut resolved = self.resolved.borrow_mut();
                resolved.update(&self.shared.names, names);
                endpoints = match names {
                    [] => Arc::clone(&port.endpoints),
                    _ => resolved.endpoints(&port.endpoints, self.original.ip()),
                };
                distribution = service.distribution;
            }
            Resolution::Workload(workload) => {
                labels = ServiceLabels::none();
                protocol = declared(&workload.ports, self.original.port());
                endpoints = Arc::new([self.endpoint_of(workload)]);
            }
        }
        let backends = match before {
            Some(Route::Backends(backends)) if backends.labels() == &labels => backends,
            _ => Rc::new(Backends::new(Rc::clone(&self.shared), labels, self.original)),
        };
        backends.update_own(self.address_of(now));
        backends.update_external(external.as_deref(), self.resolved.borrow().nothing());
        backends.update(protocol, distribution, &endpoints);
        if let Resolution::Service(service) = now {
            let changed = backends.update_traffic(&service.traffic, self.original.port());
            if !self.routed {
                backends.update_routes(service, self.original.port(), changed);
            }
        }
        Route::Backends(backends)
    }

    /// The address of a service for requests to its waypoint. It is the dialled address; if a route or the
    /// configuration names the service, it is one of the service's addresses.
    fn address_of(&self, now: &Resolution) -> Option<SocketAddr> {
        let Resolution::Service(service) = now else { return None };
        if !self.is_fixed() {
            return Some(self.original);
        }
        service.vips.first().map(|ip| SocketAddr::new(*ip, self.original.port()))
    }

    /// Whether this proxy is a waypoint of the service at this destination.
    pub(crate) fn is_of_waypoint(&self) -> bool {
        let resolution = self.resolution.borrow();
        let now = resolution.borrow();
        matches!(&*now, Resolution::Service(service) if service.waypoint.is_some())
    }

    /// Whether the destination is named by a route or the configuration, so that no address was dialled.
    fn is_fixed(&self) -> bool {
        self.original.ip().is_unspecified()
    }

    fn endpoint_of(&self, workload: &Workload) -> Endpoint {
        Endpoint {
            workload: Some(workload.name.clone()),
            addresses: vec![self.original.ip()],
            port: self.original.port(),
            identity: workload.identity.clone(),
            place: Topology::default(),
            wire: workload.wire,
        }
    }
}

#[cfg(test)]
mod tests {
    use leno_types::mesh::ServerPolicy;
    use leno_types::{Identity, InstanceName, Removal, TrustDomain};

    use super::*;

    #[test]
    fn private_addresses_may_be_of_the_mesh() {
        for ip in ["10.96.0.10", "172.31.255.1", "192.168.0.1", "100.64.0.1", "100.127.0.1"] {
            assert!(may_be_meshed(ip.parse().unwrap()), "{ip}");
        }
        for ip in ["169.254.1.1", "fd00::1", "fe80::1"] {
            assert!(may_be_meshed(ip.parse().unwrap()), "{ip}");
        }
        for ip in ["1.1.1.1", "172.32.0.1", "100.128.0.1", "100.63.0.1", "2001:db8::1", "11.0.0.1"]
        {
            assert!(!may_be_meshed(ip.parse().unwrap()), "{ip}");
        }
    }

    #[tokio::test]
    async fn a_destination_in_use_is_not_forgotten() {
        let outbound = crate::tests::outbound(Directory::fixed(|_| Resolution::Unknown));
        let get = |port| outbound.destinations.get(([192, 0, 2, 1], port).into());
        let used = get(1);
        for port in 2..=8 {
            get(port);
        }
        let known = &outbound.destinations.known;
        forget_longest_idle(&mut known.borrow_mut());
        assert!(known.borrow().len() < 8 && known.borrow().contains_key(&used.original()));
        drop(used);
        while !known.borrow().is_empty() {
            forget_longest_idle(&mut known.borrow_mut());
        }
    }

    #[tokio::test]
    async fn a_client_that_leaves_speaks_plaintext_before_discovery_says_so() {
        let address: SocketAddr = "192.0.2.7:80".parse().unwrap();
        let domain = TrustDomain::new("cluster.local").unwrap();
        let workload = Arc::new(Workload {
            name: InstanceName::new("shop", "cart-0").unwrap(),
            addresses: vec![address.ip()],
            identity: Some(Identity::new(domain, "shop", "cart").unwrap()),
            ports: Vec::new(),
            wire: Default::default(),
        });
        let known = move |_: &_| Resolution::Workload(Arc::clone(&workload));
        let outbound = crate::tests::outbound(Directory::fixed(known));
        let destination = outbound.destinations.get(address);
        let told = |removal| ServerPolicy { removal, ..crate::tests::policy() };
        for (removal, is_expected) in [
            (Removal::Permissive, true),
            (Removal::Plaintext, false),
            (Removal::Released, false),
            (Removal::None, true),
        ] {
            outbound.follow(&told(removal));
            let Route::Backends(backends) = destination.route().await else { panic!("no route") };
            let pick = backends.pick(&[]).unwrap();
            let remote = pick.endpoint();
            assert_eq!(remote.endpoint.identity.is_some(), is_expected, "{removal}");
            let labels = remote.edge(&outbound.shared).labels();
            assert_eq!(labels.mtls, is_expected, "what is counted: {removal}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_unknown_address_is_not_dialled_where_it_may_be_of_the_mesh() {
        let outbound = crate::tests::outbound(Directory::fixed(|_| Resolution::Pending));
        let route =
            async |address: &str| outbound.destinations.get(address.parse().unwrap()).route().await;
        assert!(matches!(route("10.96.0.10:80").await, Route::Unresolved));
        assert!(matches!(route("[fd00::10]:80").await, Route::Unresolved));
        assert!(matches!(route("192.0.2.1:443").await, Route::Direct));
        // If discovery says that the mesh does not know an address, it is dialled directly.
        let outbound = crate::tests::outbound(Directory::fixed(|_| Resolution::Unknown));
        let known = outbound.destinations.get("10.96.0.10:80".parse().unwrap()).route().await;
        assert!(matches!(known, Route::Direct));
    }
}
