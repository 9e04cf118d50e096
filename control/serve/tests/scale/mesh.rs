//! The mesh that is measured: its numbered services, pods and namespaces, as objects for the index.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use k8s_openapi::api::core::v1::{ObjectReference, Service, ServicePort, ServiceSpec};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use leno_index::ObjectChange;
use leno_resources::{
    InstanceStatus, Kind, Metadata, Object, ObjectKey, PodHost, SERVICE_NAME_LABEL, Workload,
    WorkloadPort, WorkloadSpec, WorkloadStatus,
};
use leno_types::{InstanceName, ServiceName};

/// How many pods every service has, except the service with very many.
const PODS: usize = 10;
/// How many endpoints one slice has, as Kubernetes splits them.
const SLICE: usize = 100;

/// How large the mesh is.
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
    pub(crate) changes_per_second: usize,
}

/// The mesh. Pods are replaced one at a time; `generations` records which pod is in each place.
pub(crate) struct Mesh {
    size: Size,
    /// The present pod, by service and then by place: 0 for the first pod, else the number of the change.
    generations: Vec<Vec<u32>>,
}

impl Size {
    pub(crate) fn pods(&self, service: usize) -> usize {
        if service == 0 { self.wide } else { PODS }
    }

    fn namespace(&self, service: usize) -> String {
        let number =
            if service <= self.gathered { 0 } else { 1 + service % (self.namespaces - 1).max(1) };
        format!("team-{number}")
    }

    pub(crate) fn service_name(&self, service: usize) -> ServiceName {
        ServiceName::new(&self.namespace(service), &format!("s{service}")).unwrap()
    }

    pub(crate) fn instance(&self, service: usize, pod: usize) -> InstanceName {
        InstanceName::new(&self.namespace(service), &pod_name(service, pod, 0)).unwrap()
    }

    pub(crate) fn vip(&self, service: usize) -> IpAddr {
        address(0x0a40_0000 + u32::try_from(service).unwrap())
    }
}

/// The address of the pod that the change `generation` creates.
pub(crate) fn replaced(generation: u32) -> IpAddr {
    address(0x2000_0000 + generation)
}

impl Mesh {
    pub(crate) fn new(size: Size) -> Self {
        let pods = |service| vec![0; size.pods(service)];
        Self { size, generations: (0..size.services).map(pods).collect() }
    }

    /// All objects, as in the first list of a cluster.
    pub(crate) fn objects(&self) -> Vec<ObjectChange> {
        let mut changes = Vec::new();
        for service in 0..self.size.services {
            changes.push(upsert(Object::Service(Box::new(self.service(service)))));
            for pod in 0..self.size.pods(service) {
                changes.push(upsert(self.pod(service, pod)));
            }
            for slice in 0..self.size.pods(service).div_ceil(SLICE) {
                changes.push(upsert(self.slice(service, slice)));
            }
        }
        changes
    }

    /// Replaces one pod of a service, as a rolling update does for each pod in turn.
    pub(crate) fn replace(&mut self, service: usize, generation: u32) -> Vec<ObjectChange> {
        // The pods of the first half have proxies and are not replaced.
        let half = self.size.pods(service) / 2;
        let pod = half + generation as usize % half;
        let old = pod_name(service, pod, self.generations[service][pod]);
        self.generations[service][pod] = generation;
        let namespace = self.size.namespace(service);
        let old = ObjectKey { kind: Kind::Workload, namespace, name: old };
        vec![
            upsert(self.pod(service, pod)),
            upsert(self.slice(service, pod / SLICE)),
            ObjectChange::Delete(old),
        ]
    }

    fn service(&self, service: usize) -> Service {
        let port = ServicePort {
            port: 80,
            name: Some("http".to_owned()),
            app_protocol: Some("http".to_owned()),
            ..Default::default()
        };
        let spec = ServiceSpec {
            cluster_ip: Some(self.size.vip(service).to_string()),
            ports: Some(vec![port]),
            ..Default::default()
        };
        Service {
            metadata: self.metadata(service, format!("s{service}")),
            spec: Some(spec),
            ..Default::default()
        }
    }

    fn slice(&self, service: usize, slice: usize) -> Object {
        let pods = slice * SLICE..self.size.pods(service).min((slice + 1) * SLICE);
        let mut metadata = self.metadata(service, format!("s{service}-{slice}"));
        let label = (SERVICE_NAME_LABEL.to_owned(), format!("s{service}"));
        metadata.labels = Some(BTreeMap::from([label]));
        let port =
            EndpointPort { name: Some("http".to_owned()), port: Some(8080), ..Default::default() };
        Object::EndpointSlice(Box::new(EndpointSlice {
            address_type: "IPv4".to_owned(),
            metadata,
            ports: Some(vec![port]),
            endpoints: Some(pods.map(|pod| self.endpoint(service, pod)).collect()),
        }))
    }

    /// The endpoint of a pod, as its slice lists it.
    pub(crate) fn endpoint(&self, service: usize, pod: usize) -> Endpoint {
        let target = ObjectReference {
            kind: Some("Pod".to_owned()),
            name: Some(pod_name(service, pod, self.generations[service][pod])),
            namespace: Some(self.size.namespace(service)),
            ..Default::default()
        };
        let ready =
            EndpointConditions { ready: Some(true), serving: Some(true), terminating: Some(false) };
        Endpoint {
            addresses: vec![self.pod_address(service, pod).to_string()],
            conditions: Some(ready),
            target_ref: Some(target),
            ..Default::default()
        }
    }

    fn pod(&self, service: usize, pod: usize) -> Object {
        let name = pod_name(service, pod, self.generations[service][pod]);
        let instance = InstanceStatus {
            name: name.clone(),
            addresses: vec![self.pod_address(service, pod)],
            meshed: true,
            ready: true,
            ending: false,
            pod: Some(PodHost::default()),
        };
        let port = WorkloadPort { name: "http".to_owned(), port: 8080, ..WorkloadPort::default() };
        let namespace = self.size.namespace(service);
        Object::Workload(Box::new(Workload {
            metadata: Metadata { name, namespace, ..Default::default() },
            spec: WorkloadSpec {
                service_account: account(service),
                replicas: 1,
                ports: vec![port],
                ..WorkloadSpec::default()
            },
            status: Some(WorkloadStatus { instances: vec![instance] }),
        }))
    }

    fn pod_address(&self, service: usize, pod: usize) -> IpAddr {
        match self.generations[service][pod] {
            0 if service == 0 => address(0x0b00_0000 + u32::try_from(pod).unwrap()),
            0 => address(0x0c00_0000 + u32::try_from(service * PODS + pod).unwrap()),
            generation => replaced(generation),
        }
    }

    fn metadata(&self, service: usize, name: String) -> ObjectMeta {
        let namespace = Some(self.size.namespace(service));
        ObjectMeta { name: Some(name), namespace, ..Default::default() }
    }
}

/// The service account of a service's pods.
pub(crate) fn account(service: usize) -> String {
    format!("s{service}")
}

fn pod_name(service: usize, pod: usize, generation: u32) -> String {
    match generation {
        0 => format!("s{service}-{pod}"),
        generation => format!("s{service}-{pod}-{generation}"),
    }
}

fn upsert(object: Object) -> ObjectChange {
    ObjectChange::Upsert(object)
}

fn address(number: u32) -> IpAddr {
    Ipv4Addr::from(number).into()
}
