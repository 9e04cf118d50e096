//! Writes the input of the control plane: the documents, with the fields filled in that a cluster would fill in.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::discovery::v1::{
    Endpoint as SliceEndpoint, EndpointConditions, EndpointPort, EndpointSlice,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use leno_resources::{
    InstanceStatus, Kind, NODE_LABEL, Object, SERVICE_NAME_LABEL, Workload, WorkloadStatus,
    ZONE_LABEL, to_yaml,
};
use leno_types::ServiceName;

use super::services::{PlannedEndpoint, PlannedService};
use super::{Plan, PlannedInstance, ReadyInstances};

impl Plan {
    /// The documents as YAML. `ready` are the instances that take traffic.
    #[must_use]
    pub fn render(&self, ready: &ReadyInstances) -> String {
        let objects = self.objects(ready);
        let documents: Vec<String> =
            objects.iter().map(|object| to_yaml(object).trim_end().to_owned() + "\n").collect();
        documents.join("---\n")
    }

    /// The documents as objects, with the same content as [`render`](Self::render).
    #[must_use]
    pub fn objects(&self, ready: &ReadyInstances) -> Vec<Object> {
        let mut objects: Vec<Object> = self.others.clone();
        objects.extend(self.services.values().map(|s| Object::Service(Box::new(s.object.clone()))));
        objects.extend(self.slices.iter().map(|s| Object::EndpointSlice(Box::new(s.clone()))));
        for (name, service) in &self.services {
            let slices = self.slices_of(name, service, ready);
            objects.extend(slices.into_iter().map(|s| Object::EndpointSlice(Box::new(s))));
        }
        for workload in &self.workloads {
            let mut workload = workload.clone();
            let metadata = &workload.metadata;
            let of_workload = |instance: &&PlannedInstance| {
                *instance.name.namespace == *metadata.namespace
                    && *instance.workload == *metadata.name
            };
            let mut instances: Vec<&PlannedInstance> =
                self.instances.values().filter(of_workload).collect();
            // Shorter names first, so that web-10 comes after web-9.
            instances.sort_by_key(|instance| (instance.name.name.len(), instance.name.clone()));
            let status = |instance: &&PlannedInstance| InstanceStatus {
                name: instance.name.name.to_string(),
                addresses: instance.addresses.iter().collect(),
                meshed: instance.launch.meshed,
                ready: ready.contains_key(&instance.name),
                ending: false,
                pod: None,
            };
            let instances = instances.iter().map(status).collect();
            workload.status = Some(WorkloadStatus { instances });
            objects.push(Object::Workload(Box::new(workload)));
        }
        objects
    }

    /// The EndpointSlices of a service's instances: one for each address family and each set of port numbers,
    /// because a named port may have different numbers in different workloads. A port that is open in only one
    /// family is only in the slices of that family.
    fn slices_of(
        &self,
        name: &ServiceName,
        service: &PlannedService,
        ready: &ReadyInstances,
    ) -> Vec<EndpointSlice> {
        let mut slices = Vec::new();
        for family in [Family::V4, Family::V6] {
            let mut groups: BTreeMap<Vec<Option<u16>>, Vec<SliceEndpoint>> = BTreeMap::new();
            for PlannedEndpoint { instance, ports } in &service.endpoints {
                let Some(instance) = self.instances.get(instance) else { continue };
                let Some(address) = instance.addresses.iter().find(|a| family.has(*a)) else {
                    continue;
                };
                let families = ready.get(&instance.name);
                let open = |port: &u16| !families.is_some_and(|of| of.closes(address, *port));
                let open: Vec<_> = ports.iter().map(|port| port.filter(open)).collect();
                if open.iter().all(Option::is_none) && ports.iter().any(Option::is_some) {
                    continue;
                }
                let ready = service.lists_unready || families.is_some();
                groups.entry(open).or_default().push(SliceEndpoint {
                    zone: self.label(instance, ZONE_LABEL),
                    node_name: self.label(instance, NODE_LABEL),
                    ..slice_endpoint(instance, address, ready)
                });
            }
            for (index, (ports, endpoints)) in groups.into_iter().enumerate() {
                let suffix = format!("{}-{index}", family.label());
                slices.push(EndpointSlice {
                    address_type: family.address_type().to_owned(),
                    endpoints: Some(endpoints),
                    metadata: slice_metadata(name, &suffix),
                    ports: Some(slice_ports(service, &ports)),
                });
            }
        }
        slices
    }

    /// The value of a label of an instance's workload.
    fn label(&self, instance: &PlannedInstance, label: &str) -> Option<String> {
        let of_instance = |workload: &&Workload| {
            workload.metadata.namespace == *instance.name.namespace
                && workload.metadata.name == *instance.workload
        };
        let workload = self.workloads.iter().find(of_instance)?;
        workload.metadata.labels.get(label).cloned()
    }
}

/// An address family. Each slice has addresses of only one.
#[derive(Clone, Copy)]
enum Family {
    V4,
    V6,
}

impl Family {
    fn has(self, address: IpAddr) -> bool {
        address.is_ipv4() == matches!(self, Self::V4)
    }

    fn label(self) -> &'static str {
        match self {
            Self::V4 => "ipv4",
            Self::V6 => "ipv6",
        }
    }

    fn address_type(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }
}

fn slice_metadata(service: &ServiceName, suffix: &str) -> ObjectMeta {
    let label = (SERVICE_NAME_LABEL.to_owned(), service.name.to_string());
    ObjectMeta {
        name: Some(format!("{}-leno-{suffix}", service.name)),
        namespace: Some(service.namespace.to_string()),
        labels: Some([label].into()),
        ..ObjectMeta::default()
    }
}

fn slice_endpoint(instance: &PlannedInstance, address: IpAddr, ready: bool) -> SliceEndpoint {
    SliceEndpoint {
        addresses: vec![address.to_string()],
        conditions: Some(EndpointConditions {
            ready: Some(ready),
            serving: Some(ready),
            terminating: Some(false),
        }),
        hostname: Some(instance.name.name.to_string()),
        target_ref: Some(ObjectReference {
            api_version: Some(Kind::Workload.api_version().to_owned()),
            kind: Some(Kind::Workload.as_str().to_owned()),
            name: Some(instance.name.name.to_string()),
            namespace: Some(instance.name.namespace.to_string()),
            ..ObjectReference::default()
        }),
        ..SliceEndpoint::default()
    }
}

fn slice_ports(service: &PlannedService, numbers: &[Option<u16>]) -> Vec<EndpointPort> {
    let ports = service.ports().iter().zip(numbers);
    let port = ports.filter_map(|(port, number)| {
        Some(EndpointPort {
            name: port.name.clone(),
            port: Some(i32::from((*number)?)),
            protocol: port.protocol.clone().or(Some("TCP".to_owned())),
            app_protocol: port.app_protocol.clone(),
        })
    });
    port.collect()
}
