//! Simulated proxies of the mesh, which only do what concerns the control plane.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use futures_util::{StreamExt, stream};
use leno_testkit_api::{TestApiServer, until};
use tokio::sync::watch;

use super::figures::Figures;
use super::mesh::{Mesh, PodSlot, Size, account};
use super::phases::PATIENCE;
use super::stub::{Decoded, Received, StubProxy};
use crate::machine::Random;
use crate::replica::Replica;

/// How many services of its own namespace a proxy follows, and how many of other namespaces.
const FOLLOWED_NEAR: usize = 4;
const FOLLOWED_FAR: usize = 2;
/// One in this many proxies belongs to the large namespace.
const WIDE_PROXIES: usize = 5;
/// How many proxies are started at once.
const AT_ONCE: usize = 16;

/// One proxy with its subscriptions. Dropping this ends it.
pub(crate) struct Client {
    pub(crate) place: PodSlot,
    proxy: StubProxy,
    followed: Vec<(usize, watch::Receiver<Received>)>,
}

/// All proxies, and how they reach the controller.
pub(crate) struct Clients {
    pub(crate) all: Vec<Client>,
    /// The addresses at which clients reach the controller. Each is another address of this machine.
    controls: Vec<SocketAddr>,
    decoded: Arc<Decoded>,
    /// The services of each namespace, except the service with very many pods.
    together: HashMap<String, Vec<usize>>,
}

impl Clients {
    /// Starts all proxies, each with a token for its pod, and waits until all their subscriptions are answered.
    pub(crate) async fn start(
        bed: &TestApiServer,
        replica: &Replica,
        mesh: &Mesh,
        addresses: &[IpAddr],
        figures: &mut Figures,
    ) -> Self {
        let size = mesh.size;
        let listening: SocketAddr = replica.address().await.parse().unwrap();
        let controls = match addresses {
            [] => vec![listening],
            some => some.iter().map(|ip| SocketAddr::new(*ip, listening.port())).collect(),
        };
        let mut together: HashMap<String, Vec<usize>> = HashMap::new();
        for service in 1..size.services {
            together.entry(size.namespace(service)).or_default().push(service);
        }
        let (all, decoded) = (Vec::new(), Arc::default());
        let mut clients = Self { all, controls, decoded, together };
        let (begin, cpu) = (Instant::now(), replica.cpu());
        let starting = places(size).into_iter().map(|place| clients.connect(bed, mesh, place));
        let all = stream::iter(starting).buffered(AT_ONCE).collect().await;
        clients.all = all;
        figures.time("all proxies connected and answered", begin.elapsed(), None);
        figures.time("CPU for that", replica.cpu() - cpu, None);
        figures.memory("resident, connected", replica, Some(600));
        clients
    }

    /// Starts the proxy of the pod in a slot, and waits until its subscriptions are answered.
    pub(crate) async fn connect(&self, bed: &TestApiServer, mesh: &Mesh, place: PodSlot) -> Client {
        let instance = mesh.instance(place);
        let account = account(place.service);
        let of = (&*instance.namespace, &*account);
        let token = bed.token(of, Some("leno"), Some(&*instance.name)).await;
        let number = place.service + place.pod;
        let control = self.controls[number % self.controls.len()];
        let questions = self.questions(mesh.size, place.service);
        let ips: Vec<IpAddr> = questions.iter().map(|service| mesh.vip(*service)).collect();
        let proxy = StubProxy::start(control, &token, &instance, &ips, &self.decoded).await;
        let followed = questions.into_iter().zip(ips.iter().map(|ip| proxy.receiver(*ip)));
        let followed = followed.collect();
        let client = Client { place, proxy, followed };
        client.is_answered().await;
        client
    }

    /// The services that a proxy follows. All replicas of a workload follow the same ones.
    fn questions(&self, size: Size, service: usize) -> Vec<usize> {
        let mut random = Random::new(service);
        let near = &self.together[&size.namespace(service)];
        let mut services = if service <= size.gathered { vec![0] } else { Vec::new() };
        services.extend((0..FOLLOWED_NEAR).map(|_| near[random.below(near.len())]));
        services.extend((0..FOLLOWED_FAR).map(|_| 1 + random.below(size.services - 1)));
        services.sort_unstable();
        services.dedup();
        services
    }

    /// The subscribers of each service.
    pub(crate) fn subscribers(&self) -> HashMap<usize, Vec<watch::Receiver<Received>>> {
        let mut subscribers: HashMap<_, Vec<_>> = HashMap::new();
        for (service, receiver) in self.all.iter().flat_map(|client| &client.followed) {
            subscribers.entry(*service).or_default().push(receiver.clone());
        }
        subscribers
    }

    /// Waits until every proxy has exactly the endpoints that the mesh has at present.
    pub(crate) async fn are_right(&self, mesh: &Mesh) {
        for (service, receivers) in self.subscribers() {
            let expected = mesh.addresses(service);
            until(&format!("the endpoints of s{service}"), async || {
                receivers.iter().all(|one| addresses(&one.borrow()) == expected).then_some(())
            })
            .await;
        }
    }

    /// Asserts that no proxy has lost its stream or received something that it could not use.
    pub(crate) fn are_connected(&self) {
        for client in &self.all {
            assert!(client.proxy.is_connected(), "{:?}", client.place);
        }
    }
}

impl Client {
    async fn is_answered(&self) {
        for (_, receiver) in &self.followed {
            let mut receiver = receiver.clone();
            let known = receiver.wait_for(|now| now.service.is_some());
            tokio::time::timeout(PATIENCE, known).await.expect("in time").unwrap();
        }
        self.proxy.has_policy(PATIENCE).await;
    }
}

/// The addresses of a service's endpoints.
fn addresses(now: &Received) -> std::collections::BTreeSet<IpAddr> {
    let ports = now.service.iter().flat_map(|service| &service.ports);
    let endpoints = ports.flat_map(|port| port.endpoints.iter());
    endpoints.flat_map(|one| one.addresses.iter().copied()).collect()
}

/// The pods that have a proxy. All are in the first half of their service's pods: some belong to the service with
/// very many pods, some to other services in its namespace, and most to services in other namespaces.
fn places(size: Size) -> Vec<PodSlot> {
    let others = size.services - size.gathered - 1;
    let (mut wide, mut near, mut far) = (0, 0, 0);
    let place = |number: usize| match (number % WIDE_PROXIES, number / WIDE_PROXIES % 2) {
        (0, 0) => {
            wide += 1;
            PodSlot { service: 0, pod: wide - 1 }
        }
        (0, _) => {
            near += 1;
            PodSlot { service: 1 + (near - 1) % size.gathered, pod: (near - 1) / size.gathered }
        }
        _ => {
            far += 1;
            PodSlot { service: size.gathered + 1 + (far - 1) % others, pod: (far - 1) / others }
        }
    };
    let places: Vec<PodSlot> = (0..size.proxies).map(place).collect();
    let fits = |place: &PodSlot| place.pod < size.pods(place.service) / 2;
    assert!(places.iter().all(fits), "the mesh is too small for so many proxies");
    places
}
