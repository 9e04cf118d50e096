//! Converts a pod into a workload with one instance.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use leno_resources::{
    DEFAULT_NAMESPACE, InstanceStatus, Kind, MAX_PORTS, Metadata, NamespaceMode, Object, ObjectKey,
    PodHost, PodMode, SERVED_CONDITION, Workload, WorkloadPort, WorkloadSpec, WorkloadStatus,
};
use leno_types::{Owner, TEMPLATE_HASH_LABEL};

use super::SkippedObject;

/// The name of the proxy's container. A pod with such a container is in the mesh.
pub const PROXY_CONTAINER: &str = "leno-proxy";

/// The prefix of the name of a workload that stands for a pod. The API server allows no such name, so a pod and a
/// `Workload` of the same name are different.
const POD: &str = "pod/";
/// Converts a pod to a workload. A pod that has ended, or has no address yet, counts as absent. A pod that uses
/// its node's network becomes an instance without a proxy, so that endpoints with the node's address can be
/// checked.
pub(super) fn workload(pod: &Pod) -> Result<Object, SkippedObject> {
    let name = pod.metadata.name.clone().unwrap_or_default();
    let namespace = pod.metadata.namespace.clone();
    let namespace = namespace.unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned());
    let workload = format!("{POD}{name}");
    let absent = || {
        let (namespace, name) = (namespace.clone(), workload.clone());
        SkippedObject::Absent(ObjectKey { kind: Kind::Workload, namespace, name })
    };
    let (Some(spec), Some(status)) = (&pod.spec, &pod.status) else { return Err(absent()) };
    let ended = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
    let addresses: Vec<IpAddr> =
        status.pod_ips.iter().flatten().filter_map(|given| given.ip.parse().ok()).collect();
    if ended || addresses.is_empty() {
        return Err(absent());
    }
    let shared = spec.host_network == Some(true);
    let hosts = status.host_ips.iter().flatten().map(|given| &given.ip).chain(&status.host_ip);
    let addresses_of_node = hosts.filter_map(|ip| ip.parse().ok()).collect();
    let served = is_served(pod) == Some(true);
    let host = PodHost { addresses: addresses_of_node, shared, served };
    let ready = is_ready(pod);
    let ending = pod.metadata.deletion_timestamp.is_some();
    let meshed = is_meshed(pod) && !shared;
    let text = |map: &Option<BTreeMap<String, String>>| map.clone().unwrap_or_default();
    Ok(Object::Workload(Box::new(Workload {
        metadata: Metadata {
            name: workload,
            namespace,
            labels: text(&pod.metadata.labels),
            annotations: text(&pod.metadata.annotations),
            creation_timestamp: pod.metadata.creation_timestamp.clone(),
            ..Metadata::default()
        },
        spec: WorkloadSpec {
            service_account: spec.service_account_name.clone().unwrap_or_else(|| "default".into()),
            replicas: 1,
            ports: spec.containers.iter().flat_map(ports).take(MAX_PORTS).collect(),
            ..WorkloadSpec::default()
        },
        status: Some(WorkloadStatus {
            instances: vec![InstanceStatus {
                name,
                addresses,
                meshed,
                ready,
                ending,
                pod: Some(host),
            }],
        }),
    })))
}

/// Whether a pod is in the mesh: it has a sidecar ([`is_meshed`]), or it is in node mode by its own settings or those
/// of its namespace. A pod in its node's network cannot be in node mode.
#[must_use]
pub fn has_proxy(pod: &Pod, of_namespace: NamespaceMode) -> bool {
    let shared = pod.spec.as_ref().is_some_and(|spec| spec.host_network == Some(true));
    let (labels, annotations) = (pod.metadata.labels.as_ref(), pod.metadata.annotations.as_ref());
    is_meshed(pod) || !shared && PodMode::new(labels, annotations).is_node(of_namespace)
}

/// Whether a pod has a sidecar. It is among the init containers or, in clusters before 1.29, among the ordinary
/// ones.
#[must_use]
pub fn is_meshed(pod: &Pod) -> bool {
    let containers = |spec: &PodSpec| {
        let all = spec.containers.iter().chain(spec.init_containers.iter().flatten());
        all.into_iter().any(|container| container.name == PROXY_CONTAINER)
    };
    pod.spec.as_ref().is_some_and(containers)
}

/// Whether a pod should get traffic, which its condition `Ready` shows.
#[must_use]
pub fn is_ready(pod: &Pod) -> bool {
    condition(pod, "Ready") == Some(true)
}

/// Whether a node proxy serves a pod, as the agent of its node reports it; `None` without a report.
#[must_use]
pub fn is_served(pod: &Pod) -> Option<bool> {
    condition(pod, SERVED_CONDITION)
}

/// Whether a condition of a pod is true; `None` if the pod does not have it.
fn condition(pod: &Pod, kind: &str) -> Option<bool> {
    let mut conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.find(|one| one.type_ == kind).map(|one| one.status == "True")
}

/// The object that has created a pod, as users refer to it: a Deployment and not its ReplicaSet.
#[must_use]
pub fn owner(pod: &Pod) -> Owner {
    let references = pod.metadata.owner_references.iter().flatten();
    let Some(by) = references.clone().find(|one| one.controller == Some(true)) else {
        let name = pod.metadata.name.clone().unwrap_or_default();
        return Owner { kind: "Pod".to_owned(), name };
    };
    let hash = pod.metadata.labels.as_ref().and_then(|labels| labels.get(TEMPLATE_HASH_LABEL));
    Owner::of_pod(&by.kind, &by.name, hash.map(String::as_str))
}

/// The TCP ports that a container declares.
fn ports(container: &Container) -> impl Iterator<Item = WorkloadPort> {
    let all = container.ports.iter().flatten();
    let tcp = all.filter(|port| port.protocol.as_deref().is_none_or(|name| name == "TCP"));
    tcp.filter_map(|port| {
        let number = u16::try_from(port.container_port).ok().filter(|number| *number > 0)?;
        let name = port.name.clone().unwrap_or_default();
        Some(WorkloadPort { name, port: number, ..WorkloadPort::default() })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(spec: &str, status: &str) -> Pod {
        let text = format!(
            r#"{{"metadata":{{"name":"web-7d9","namespace":"shop","labels":{{"app":"web"}}}},
                "spec":{spec},"status":{status}}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    const RUNNING: &str = r#"{"phase":"Running","podIPs":[{"ip":"10.244.1.7"},{"ip":"fd00::7"}],
        "conditions":[{"type":"Ready","status":"True"}]}"#;

    fn made(spec: &str, status: &str) -> Option<Workload> {
        match workload(&pod(spec, status)) {
            Ok(Object::Workload(workload)) => Some(*workload),
            Ok(other) => panic!("{other:?}"),
            Err(SkippedObject::Absent(key)) => {
                assert_eq!((&*key.namespace, &*key.name), ("shop", "pod/web-7d9"));
                None
            }
            Err(bad) => panic!("{bad:?}"),
        }
    }

    #[test]
    fn a_pod_is_an_instance_of_its_service_account_with_both_addresses() {
        let spec = r#"{"serviceAccountName":"web","containers":[{"name":"web","ports":[
            {"containerPort":8080,"name":"http"},{"containerPort":53,"protocol":"UDP"}]}]}"#;
        let workload = made(spec, RUNNING).unwrap();
        assert_eq!(workload.metadata.name, "pod/web-7d9", "a Workload may be called web-7d9");
        assert_eq!(workload.spec.service_account, "web");
        let ports: Vec<_> = workload.spec.ports.iter().map(|p| (&*p.name, p.port)).collect();
        assert_eq!(ports, [("http", 8080)]);
        let [instance] = &workload.status.unwrap().instances[..] else { panic!() };
        assert_eq!(instance.name, "web-7d9");
        assert_eq!(instance.addresses.len(), 2);
        assert!(instance.ready && !instance.meshed && !instance.ending);
    }

    #[test]
    fn a_pod_is_served_once_its_nodes_agent_reports_it() {
        let served = |condition: &str| {
            let status = RUNNING.replace(r#"[{"type":"#, &format!(r#"[{condition}{{"type":"#));
            let workload = made(r#"{"containers":[{"name":"web"}]}"#, &status).unwrap();
            workload.status.unwrap().instances[0].pod.as_ref().unwrap().served
        };
        assert!(served(r#"{"type":"leno.dev/Served","status":"True"},"#));
        for other in ["", r#"{"type":"leno.dev/Served","status":"False"},"#] {
            assert!(!served(other), "{other}");
        }
        assert!(!served(r#"{"type":"leno.dev/Served","status":"Unknown"},"#));
    }

    #[test]
    fn a_pod_that_is_being_deleted_is_ending() {
        let mut ending = pod(r#"{"containers":[{"name":"web"}]}"#, RUNNING);
        ending.metadata.deletion_timestamp =
            serde_json::from_str(r#""2026-01-01T00:00:00Z""#).unwrap();
        let Ok(Object::Workload(workload)) = workload(&ending) else { panic!() };
        let [instance] = &workload.status.unwrap().instances[..] else { panic!() };
        assert!(instance.ending);
    }

    #[test]
    fn a_proxy_among_the_containers_or_as_a_sidecar_makes_it_meshed() {
        let sidecar = r#"{"containers":[{"name":"web"}],"initContainers":[{"name":"leno-proxy"}]}"#;
        let container = r#"{"containers":[{"name":"web"},{"name":"leno-proxy"}]}"#;
        for spec in [sidecar, container] {
            let workload = made(spec, RUNNING).unwrap();
            assert!(workload.status.unwrap().instances[0].meshed, "{spec}");
            assert_eq!(workload.spec.service_account, "default");
        }
    }

    #[test]
    fn a_pod_in_its_nodes_network_is_in_no_mesh_whatever_its_containers_are_called() {
        let spec = r#"{"hostNetwork":true,"containers":[{"name":"leno-proxy"}]}"#;
        let status =
            RUNNING.replacen('{', r#"{"hostIP":"10.0.0.4","hostIPs":[{"ip":"10.0.0.4"}],"#, 1);
        let status = made(spec, &status).unwrap().status.unwrap();
        assert!(!status.instances[0].meshed);
        let host = status.instances[0].pod.as_ref().unwrap();
        assert!(host.shared);
        assert!(host.addresses.iter().all(|ip| ip.to_string() == "10.0.0.4"));
    }

    #[test]
    fn a_pod_in_node_mode_has_a_proxy_though_it_has_no_container_of_one() {
        let settings = |text: &str| BTreeMap::from([("leno.dev/mode".to_owned(), text.to_owned())]);
        let enabled = BTreeMap::from([("leno.dev/inject".to_owned(), "enabled".to_owned())]);
        let node = NamespaceMode::new(Some(&enabled), Some(&settings("node")));
        let plain = pod(r#"{"containers":[{"name":"web"}]}"#, RUNNING);
        assert!(has_proxy(&plain, node));
        assert!(!has_proxy(&plain, NamespaceMode::default()));
        let on_host = pod(r#"{"hostNetwork":true,"containers":[{"name":"web"}]}"#, RUNNING);
        assert!(!has_proxy(&on_host, node));
        let mut own = plain;
        own.metadata.annotations = Some(settings("sidecar"));
        assert!(!has_proxy(&own, node), "it waits to be made again");
        let sidecar = pod(r#"{"containers":[{"name":"web"},{"name":"leno-proxy"}]}"#, RUNNING);
        assert!(has_proxy(&sidecar, NamespaceMode::default()));
    }

    #[test]
    fn a_pod_that_has_ended_or_has_no_address_is_no_instance() {
        let spec = r#"{"containers":[{"name":"web"}]}"#;
        let ended = RUNNING.replace("Running", "Succeeded");
        assert_eq!(made(spec, &ended), None);
        assert_eq!(made(spec, r#"{"phase":"Pending"}"#), None);
    }

    #[test]
    fn a_pod_is_made_by_what_people_have_written() {
        let owned = |metadata: &str| {
            let pod: Pod = serde_json::from_str(&format!(r#"{{"metadata":{metadata}}}"#)).unwrap();
            owner(&pod).to_string()
        };
        let by = |kind: &str, name: &str, labels: &str| {
            owned(&format!(
                r#"{{"name":"p","labels":{labels},"ownerReferences":[{{"apiVersion":"v1","uid":"u",
                    "controller":true,"kind":"{kind}","name":"{name}"}}]}}"#
            ))
        };
        let hash = r#"{"pod-template-hash":"7d9c"}"#;
        assert_eq!(by("ReplicaSet", "web-7d9c", hash), "deploy/web");
        assert_eq!(by("ReplicaSet", "web-7d9c", "{}"), "rs/web-7d9c", "it has no Deployment");
        assert_eq!(by("StatefulSet", "db", "{}"), "sts/db");
        assert_eq!(by("Job", "bill-29384756", "{}"), "cj/bill");
        assert_eq!(by("Job", "bill-2938", "{}"), "job/bill-2938");
        assert_eq!(owned(r#"{"name":"alone"}"#), "pod/alone");
    }
}
