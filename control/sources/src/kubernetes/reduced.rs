//! Parses only those fields of objects that the mesh uses.
//!
//! A cluster has tens of thousands of pods, and most of a pod's JSON is not needed here: managed fields, volumes,
//! environment, states of containers. The complete types would allocate memory for all of it, and a controller
//! that starts would spend most of its time on that. The types here skip all other fields.

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Container, ContainerPort, HostIP, Pod, PodCondition, PodIP, PodSpec, PodStatus, Service,
    ServiceSpec,
};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use leno_kube::Resource;
use serde::{Deserialize, Deserializer};

/// An object of which only the used fields are parsed. The other fields are empty.
#[derive(Clone, Debug)]
pub(super) struct ReducedObject<K>(pub(super) K);

/// A kind of object that can be parsed in reduced form.
pub(super) trait Reduce: Sized {
    /// The fields that are used.
    type Fields: for<'de> Deserialize<'de> + Into<Self>;
}

impl<'de, K: Reduce> Deserialize<'de> for ReducedObject<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        K::Fields::deserialize(deserializer).map(|fields| Self(fields.into()))
    }
}

impl<K: Resource> Resource for ReducedObject<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(dynamic: &K::DynamicType) -> Cow<'_, str> {
        K::kind(dynamic)
    }

    fn group(dynamic: &K::DynamicType) -> Cow<'_, str> {
        K::group(dynamic)
    }

    fn version(dynamic: &K::DynamicType) -> Cow<'_, str> {
        K::version(dynamic)
    }

    fn plural(dynamic: &K::DynamicType) -> Cow<'_, str> {
        K::plural(dynamic)
    }

    fn meta(&self) -> &ObjectMeta {
        self.0.meta()
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.0.meta_mut()
    }
}

impl Reduce for Pod {
    type Fields = PodFields;
}

impl Reduce for Service {
    type Fields = ServiceFields;
}

impl Reduce for EndpointSlice {
    type Fields = SliceFields;
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct MetadataFields {
    name: Option<String>,
    namespace: Option<String>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
    generation: Option<i64>,
    owner_references: Option<Vec<OwnerReference>>,
    resource_version: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct PodFields {
    metadata: MetadataFields,
    spec: Option<PodSpecFields>,
    status: Option<PodStatusFields>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodSpecFields {
    containers: Option<Vec<ContainerFields>>,
    host_network: Option<bool>,
    init_containers: Option<Vec<ContainerFields>>,
    service_account_name: Option<String>,
}

#[derive(Deserialize)]
struct ContainerFields {
    name: String,
    ports: Option<Vec<ContainerPort>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodStatusFields {
    conditions: Option<Vec<ConditionFields>>,
    #[serde(rename = "hostIP")]
    host_ip: Option<String>,
    #[serde(rename = "hostIPs")]
    host_ips: Option<Vec<HostIP>>,
    phase: Option<String>,
    #[serde(rename = "podIPs")]
    pod_ips: Option<Vec<PodIP>>,
}

#[derive(Deserialize)]
struct ConditionFields {
    #[serde(rename = "type")]
    type_: String,
    status: String,
}

#[derive(Deserialize)]
pub(super) struct ServiceFields {
    metadata: MetadataFields,
    spec: Option<ServiceSpec>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SliceFields {
    metadata: MetadataFields,
    address_type: String,
    endpoints: Option<Vec<Endpoint>>,
    ports: Option<Vec<EndpointPort>>,
}

impl From<MetadataFields> for ObjectMeta {
    fn from(fields: MetadataFields) -> Self {
        Self {
            name: fields.name,
            namespace: fields.namespace,
            labels: fields.labels,
            annotations: fields.annotations,
            creation_timestamp: fields.creation_timestamp,
            deletion_timestamp: fields.deletion_timestamp,
            generation: fields.generation,
            owner_references: fields.owner_references,
            resource_version: fields.resource_version,
            ..Self::default()
        }
    }
}

impl From<PodFields> for Pod {
    fn from(fields: PodFields) -> Self {
        let PodFields { metadata, spec, status } = fields;
        Self {
            metadata: metadata.into(),
            spec: spec.map(Into::into),
            status: status.map(Into::into),
        }
    }
}

impl From<PodSpecFields> for PodSpec {
    fn from(fields: PodSpecFields) -> Self {
        let containers =
            |some: Vec<ContainerFields>| some.into_iter().map(Container::from).collect();
        Self {
            containers: fields.containers.map(containers).unwrap_or_default(),
            host_network: fields.host_network,
            init_containers: fields.init_containers.map(containers),
            service_account_name: fields.service_account_name,
            ..Self::default()
        }
    }
}

impl From<ContainerFields> for Container {
    fn from(ContainerFields { name, ports }: ContainerFields) -> Self {
        Self { name, ports, ..Self::default() }
    }
}

impl From<PodStatusFields> for PodStatus {
    fn from(fields: PodStatusFields) -> Self {
        let condition = |ConditionFields { type_, status }| PodCondition {
            type_,
            status,
            ..PodCondition::default()
        };
        let conditions = |all: Vec<ConditionFields>| all.into_iter().map(condition).collect();
        Self {
            conditions: fields.conditions.map(conditions),
            host_ip: fields.host_ip,
            host_ips: fields.host_ips,
            phase: fields.phase,
            pod_ips: fields.pod_ips,
            ..Self::default()
        }
    }
}

impl From<ServiceFields> for Service {
    fn from(ServiceFields { metadata, spec }: ServiceFields) -> Self {
        Self { metadata: metadata.into(), spec, ..Self::default() }
    }
}

impl From<SliceFields> for EndpointSlice {
    fn from(fields: SliceFields) -> Self {
        Self {
            metadata: fields.metadata.into(),
            address_type: fields.address_type,
            endpoints: fields.endpoints,
            ports: fields.ports,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::pod;
    use serde_json::{Value, json};

    fn metadata() -> Value {
        json!({"name": "web-0", "namespace": "shop", "uid": "u", "generation": 3, "resourceVersion": "7",
            "creationTimestamp": "2026-01-01T00:00:00Z", "deletionTimestamp": "2026-01-02T00:00:00Z",
            "labels": {"app": "web"}, "annotations": {"leno.dev/mtls": "strict"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-7d9",
                "uid": "v", "controller": true}],
            "managedFields": [{"manager": "kubelet", "operation": "Update", "apiVersion": "v1",
                "fieldsType": "FieldsV1", "fieldsV1": {"f:status": {"f:phase": {}}}}]})
    }

    #[test]
    fn a_pod_means_the_same_as_with_all_its_fields() {
        let object = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata(),
            "spec": {"serviceAccountName": "web", "hostNetwork": false, "nodeName": "node-1",
                "volumes": [{"name": "token", "emptyDir": {}}],
                "containers": [{"name": "web", "image": "web", "env": [{"name": "A", "value": "b"}],
                    "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}]}],
                "initContainers": [{"name": "leno-proxy", "image": "p", "restartPolicy": "Always"}]},
            "status": {"phase": "Running", "podIP": "10.244.1.7", "hostIP": "10.0.0.4",
                "podIPs": [{"ip": "10.244.1.7"}, {"ip": "fd00::7"}], "hostIPs": [{"ip": "10.0.0.4"}],
                "conditions": [{"type": "Ready", "status": "True", "reason": "r"}],
                "containerStatuses": [{"name": "web", "image": "web", "imageID": "", "ready": true,
                    "restartCount": 0}]}});
        let full: Pod = serde_json::from_value(object.clone()).unwrap();
        let ReducedObject(reduced): ReducedObject<Pod> = serde_json::from_value(object).unwrap();
        assert_eq!(pod::workload(&reduced), pod::workload(&full));
        assert_eq!(pod::owner(&reduced), pod::owner(&full));
        assert_eq!(reduced.metadata.resource_version.as_deref(), Some("7"));
        assert_eq!(reduced.metadata.managed_fields, None);
        let spec = reduced.spec.unwrap();
        assert_eq!((spec.volumes, spec.containers[0].env.as_ref()), (None, None));
    }

    #[test]
    fn fields_that_are_null_or_absent_are_read_as_the_full_type_reads_them() {
        for object in [
            json!({"metadata": {"name": "web-0", "labels": null}, "spec": null}),
            json!({"metadata": {"name": "web-0"}, "spec": {"containers": null}, "status": {}}),
            json!({"metadata": {"name": "web-0"}, "status": {"podIPs": null, "conditions": null}}),
        ] {
            let full: Pod = serde_json::from_value(object.clone()).unwrap();
            let ReducedObject(reduced): ReducedObject<Pod> =
                serde_json::from_value(object).unwrap();
            assert_eq!(reduced, full);
        }
    }

    #[test]
    fn of_services_and_slices_only_metadata_and_status_are_less() {
        let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata(),
            "spec": {"clusterIP": "10.96.0.1", "selector": {"app": "web"},
                "ports": [{"name": "http", "port": 80, "targetPort": 8080}]},
            "status": {"loadBalancer": {}}});
        let mut full: Service = serde_json::from_value(service.clone()).unwrap();
        let ReducedObject(reduced): ReducedObject<Service> =
            serde_json::from_value(service).unwrap();
        full.status = None;
        (full.metadata.managed_fields, full.metadata.uid) = (None, None);
        assert_eq!(reduced, full);
        let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": metadata(), "addressType": "IPv4", "ports": [{"name": "http", "port": 8080}],
            "endpoints": [{"addresses": ["10.244.1.7"], "conditions": {"ready": true},
                "nodeName": "node-1", "targetRef": {"kind": "Pod", "name": "web-0"}}]});
        let mut full: EndpointSlice = serde_json::from_value(slice.clone()).unwrap();
        let ReducedObject(reduced): ReducedObject<EndpointSlice> =
            serde_json::from_value(slice).unwrap();
        (full.metadata.managed_fields, full.metadata.uid) = (None, None);
        assert_eq!(reduced, full);
    }
}
