//! The mesh that is measured: its numbered services, pods and namespaces, as objects of the API server.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Mutex;

use futures_util::{StreamExt, stream};
use leno_testkit_api::TestApiServer;
use leno_testkit_api::objects;
use leno_types::InstanceName;
use serde_json::{Value, json};

/// How many pods every service has, except the service with very many.
const PODS: usize = 10;
/// How many endpoints one slice has, as Kubernetes splits them.
const SLICE: usize = 100;
/// How many services are created at once.
const AT_ONCE: usize = 32;

/// How large the mesh is, and what happens to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub(crate) services: usize,
    pub(crate) namespaces: usize,
    /// How many pods service 0 has, which is in the large namespace.
    pub(crate) wide: usize,
    /// How many services the large namespace has besides service 0.
    pub(crate) gathered: usize,
    pub(crate) proxies: usize,
    pub(crate) changes: usize,
    /// How many changes are made per second.
    pub(crate) rate: usize,
    /// How many pods with a proxy are replaced per second.
    pub(crate) rollout_rate: usize,
    pub(crate) routes: usize,
}

/// The slot of a pod in the mesh: its service, and its number within the service. Pods that replace each other have the
/// same slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PodSlot {
    pub(crate) service: usize,
    pub(crate) pod: usize,
}

/// The state of the pod in a slot.
#[derive(Clone, Copy, Debug, Default)]
struct Pod {
    /// How many pods the slot has had before this one.
    generation: usize,
    /// Whether the pod is left out of its service's slices.
    is_out: bool,
}

/// The intended state of the mesh.
pub(crate) struct Mesh {
    pub(crate) size: Size,
    /// The pods, by service and then by number.
    pods: Mutex<Vec<Vec<Pod>>>,
    /// The address that each service was given.
    vips: Mutex<BTreeMap<usize, IpAddr>>,
    /// One lock per service, held while its slices are written, so that an older write cannot follow a newer one.
    turns: Vec<tokio::sync::Mutex<()>>,
}

impl Size {
    pub(crate) fn pods(&self, service: usize) -> usize {
        if service == 0 { self.wide } else { PODS }
    }

    pub(crate) fn namespace(&self, service: usize) -> String {
        let number =
            if service <= self.gathered { 0 } else { 1 + service % (self.namespaces - 1).max(1) };
        format!("team-{number}")
    }
}

impl Mesh {
    pub(crate) fn new(size: Size) -> Self {
        let pods = (0..size.services).map(|service| vec![Pod::default(); size.pods(service)]);
        let turns = (0..size.services).map(|_| tokio::sync::Mutex::new(()));
        let pods = Mutex::new(pods.collect());
        Self { size, pods, vips: Mutex::default(), turns: turns.collect() }
    }

    pub(crate) fn pods(&self) -> usize {
        (0..self.size.services).map(|service| self.size.pods(service)).sum()
    }

    /// Creates all objects.
    pub(crate) async fn fill(&self, bed: &TestApiServer) {
        let namespaces: BTreeSet<String> =
            (0..self.size.services).map(|service| self.size.namespace(service)).collect();
        let made = namespaces.iter().map(|name| {
            let metadata = json!({"name": name});
            let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata});
            async move { drop(bed.create(namespace).await) }
        });
        stream::iter(made).buffer_unordered(AT_ONCE).collect::<()>().await;
        let services = (0..self.size.services).map(|service| self.fill_one(bed, service));
        stream::iter(services).buffer_unordered(AT_ONCE).collect::<()>().await;
    }

    async fn fill_one(&self, bed: &TestApiServer, service: usize) {
        let made = json!({"apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"name": account(service)}});
        bed.create(self.placed(service, made)).await;
        for pod in 0..self.size.pods(service) {
            self.make_pod(bed, PodSlot { service, pod }).await;
        }
        let made = self.placed(service, objects::service(&account(service), 80));
        let made = bed.create(made).await;
        let vip = made.data["spec"]["clusterIP"].as_str().unwrap().parse().unwrap();
        self.vips.lock().unwrap().insert(service, vip);
        for slice in 0..self.size.pods(service).div_ceil(SLICE) {
            bed.create(self.slice(service, slice)).await;
        }
    }

    /// The address of a service.
    pub(crate) fn vip(&self, service: usize) -> IpAddr {
        self.vips.lock().unwrap()[&service]
    }

    /// Creates the pod of a slot, and reports it as running.
    pub(crate) async fn make_pod(&self, bed: &TestApiServer, place: PodSlot) {
        let (name, address) = (self.instance(place).name, self.address(place).to_string());
        let mut pod = self.placed(place.service, objects::pod(&name, &address));
        pod["spec"]["serviceAccountName"] = json!(account(place.service));
        bed.create(pod.clone()).await;
        bed.set_status(pod).await;
    }

    pub(crate) async fn delete_pod(&self, bed: &TestApiServer, service: usize, name: &str) {
        bed.delete(self.placed(service, objects::pod(name, ""))).await;
    }

    /// Replaces the pod in a slot by the next generation, which has another name and address. The service's slices
    /// still list the old pod.
    pub(crate) fn replace(&self, place: PodSlot) {
        self.pods.lock().unwrap()[place.service][place.pod].generation += 1;
    }

    /// Removes the endpoint of a pod from its service, or adds it again. Returns whether the service has it now.
    pub(crate) fn flip(&self, place: PodSlot) -> bool {
        let pod = &mut self.pods.lock().unwrap()[place.service][place.pod];
        pod.is_out = !pod.is_out;
        !pod.is_out
    }

    /// Writes the slice of a slot in its intended state.
    pub(crate) async fn write_slice(&self, bed: &TestApiServer, place: PodSlot) {
        let _turn = self.turns[place.service].lock().await;
        let slice = self.slice(place.service, place.pod / SLICE);
        bed.merge(slice.clone(), json!({"endpoints": slice["endpoints"]})).await;
    }

    pub(crate) fn instance(&self, place: PodSlot) -> InstanceName {
        let generation = self.pod(place).generation;
        let name = match generation {
            0 => format!("{}-{}", account(place.service), place.pod),
            _ => format!("{}-{}-{generation}", account(place.service), place.pod),
        };
        InstanceName::new(&self.size.namespace(place.service), &name).unwrap()
    }

    /// The address of the pod in a slot. It is different for every pod and every generation.
    pub(crate) fn address(&self, place: PodSlot) -> IpAddr {
        let number = match place.service {
            0 => self.size.services * PODS + place.pod,
            service => service * PODS + place.pod,
        };
        address(0x0a80_0000 + 0x0010_0000 * self.pod(place).generation, number)
    }

    /// The addresses that the endpoints of a service should have.
    pub(crate) fn addresses(&self, service: usize) -> BTreeSet<IpAddr> {
        let places = (0..self.size.pods(service)).map(|pod| PodSlot { service, pod });
        let inside = places.filter(|place| !self.pod(*place).is_out);
        inside.map(|place| self.address(place)).collect()
    }

    /// The endpoint of a pod, as its slice lists it.
    pub(crate) fn endpoint(&self, place: PodSlot) -> Value {
        let target = json!({"kind": "Pod", "name": *self.instance(place).name,
            "namespace": self.size.namespace(place.service)});
        json!({"addresses": [self.address(place).to_string()], "conditions": {"ready": true},
            "targetRef": target})
    }

    fn slice(&self, service: usize, slice: usize) -> Value {
        let mut object = objects::slice(&account(service), &[]);
        object["metadata"]["name"] = json!(format!("{}-{slice}", account(service)));
        let pods = slice * SLICE..self.size.pods(service).min((slice + 1) * SLICE);
        let places = pods.map(|pod| PodSlot { service, pod });
        let inside = places.filter(|place| !self.pod(*place).is_out);
        object["endpoints"] = inside.map(|place| self.endpoint(place)).collect();
        self.placed(service, object)
    }

    fn placed(&self, service: usize, mut object: Value) -> Value {
        object["metadata"]["namespace"] = json!(self.size.namespace(service));
        object
    }

    fn pod(&self, place: PodSlot) -> Pod {
        self.pods.lock().unwrap()[place.service][place.pod]
    }
}

/// The name of a service, and of the service account of its pods.
pub(crate) fn account(service: usize) -> String {
    format!("s{service}")
}

fn address(first: usize, number: usize) -> IpAddr {
    Ipv4Addr::from(u32::try_from(first + number).unwrap()).into()
}
