//! A pod as a workload with one instance.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Container, Pod};
use leno_resources::{
    DEFAULT_NAMESPACE, InstanceStatus, Kind, MAX_PORTS, Metadata, Object, ObjectKey, Workload,
    WorkloadPort, WorkloadSpec, WorkloadStatus,
};

use super::NoObject;

/// The name of the container that is the proxy; a pod with one is in the mesh.
pub const PROXY_CONTAINER: &str = "leno-proxy";

/// What is before the pod's name in the name of its workload. No object of the API server can be called
/// so: a pod and a `Workload` of the same name are two.
const POD: &str = "pod/";

/// The workload that a pod is. A pod that has ended, that has no address yet or that shares its
/// node's is none.
pub(super) fn workload(pod: &Pod) -> Result<Object, NoObject> {
    let name = pod.metadata.name.clone().unwrap_or_default();
    let namespace = pod.metadata.namespace.clone();
    let namespace = namespace.unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned());
    let workload = format!("{POD}{name}");
    let absent = || {
        let (namespace, name) = (namespace.clone(), workload.clone());
        NoObject::Absent(ObjectKey { kind: Kind::Workload, namespace, name })
    };
    let (Some(spec), Some(status)) = (&pod.spec, &pod.status) else { return Err(absent()) };
    let ended = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
    let addresses: Vec<IpAddr> =
        status.pod_ips.iter().flatten().filter_map(|given| given.ip.parse().ok()).collect();
    if ended || spec.host_network == Some(true) || addresses.is_empty() {
        return Err(absent());
    }
    let conditions = status.conditions.iter().flatten();
    let ready = conditions.clone().any(|c| c.type_ == "Ready" && c.status == "True");
    // A sidecar is among the init containers, or, in clusters before 1.29, among the others.
    let proxied = |container: &Container| container.name == PROXY_CONTAINER;
    let meshed = spec.containers.iter().chain(spec.init_containers.iter().flatten()).any(proxied);
    let text = |map: &Option<BTreeMap<String, String>>| map.clone().unwrap_or_default();
    Ok(Object::Workload(Box::new(Workload {
        metadata: Metadata {
            name: workload,
            namespace,
            labels: text(&pod.metadata.labels),
            annotations: text(&pod.metadata.annotations),
        },
        spec: WorkloadSpec {
            service_account: spec.service_account_name.clone().unwrap_or_else(|| "default".into()),
            replicas: 1,
            command: Vec::new(),
            env: BTreeMap::new(),
            working_dir: None,
            ports: spec.containers.iter().flat_map(ports).take(MAX_PORTS).collect(),
        },
        status: Some(WorkloadStatus {
            instances: vec![InstanceStatus { name, addresses, meshed, ready }],
        }),
    })))
}

/// The TCP ports that a container names.
fn ports(container: &Container) -> impl Iterator<Item = WorkloadPort> {
    let all = container.ports.iter().flatten();
    let tcp = all.filter(|port| port.protocol.as_deref().is_none_or(|name| name == "TCP"));
    tcp.filter_map(|port| {
        let number = u16::try_from(port.container_port).ok().filter(|number| *number > 0)?;
        let name = port.name.clone().unwrap_or_default();
        Some(WorkloadPort { name, port: number, app_protocol: None })
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
            Err(NoObject::Absent(key)) => {
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
        assert!(instance.ready && !instance.meshed);
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
    fn a_pod_without_an_address_of_its_own_is_no_instance() {
        let spec = r#"{"containers":[{"name":"web"}]}"#;
        let host = r#"{"hostNetwork":true,"containers":[{"name":"web"}]}"#;
        let ended = RUNNING.replace("Running", "Succeeded");
        assert_eq!(made(host, RUNNING), None);
        assert_eq!(made(spec, &ended), None);
        assert_eq!(made(spec, r#"{"phase":"Pending"}"#), None);
    }
}
