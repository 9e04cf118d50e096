//! The objects of one measurement: a namespace; an account and a pod for each workload, and a
//! service for those that are called; and a watcher pod on each node.
//!
//! Workloads are pods and not Deployments, so that the client that creates one receives the error
//! if something prevents it, such as a webhook that does not answer. The workload pods satisfy Pod
//! Security `restricted`. The namespace does not enforce it, because meshes add containers with
//! more rights to the pods, and watchers need all rights.

mod real;
mod watch;

use std::net::SocketAddr;

use serde_json::{Value, json};

use super::mesh::Mesh;
use super::nodes::Placement;
use crate::application::{self, PORT};
use crate::lab::{CLIENT, NEIGHBOUR};
use crate::real::{Image, Images};
use crate::revision::CHURNING;
use crate::scenario::Scenario;
use crate::station;

pub(super) use watch::{is_watcher, watchers};

/// The label of all objects that the suite creates, by which an interrupted run is found.
pub(super) const MANAGED: (&str, &str) = ("app.kubernetes.io/managed-by", "leno-bench");
/// The annotation that names the place of the run's records, for users who find its namespace.
pub(super) const RECORDS: &str = "leno.dev/bench-records";
/// The suite's own container in each pod.
pub(super) const CONTAINER: &str = "bench";
/// The name of the port of each service.
pub(super) const PORT_NAME: &str = "bench";
/// The user ID of the pods, which has no special rights.
const USER: u32 = 65532;

/// The inputs of the objects.
#[derive(Clone, Copy)]
pub(super) struct Plan<'a> {
    pub(super) namespace: &'a str,
    pub(super) mesh: Mesh,
    pub(super) scenario: &'a Scenario,
    pub(super) image: &'a str,
    /// The real application instead of the suite's own services.
    pub(super) real: Option<&'a Images>,
    /// The place of the records.
    pub(super) records: &'a str,
    pub(super) placement: &'a Placement,
    /// The token that watchers require.
    pub(super) token: &'a str,
}

impl Plan<'_> {
    /// The namespace.
    pub(super) fn namespace(&self) -> Value {
        let mut labels = json!({
            MANAGED.0: MANAGED.1,
            // Containers of every mesh must be able to start here; the baseline's run under the
            // same rules.
            "pod-security.kubernetes.io/enforce": "privileged",
        });
        if let Some((label, value)) = self.mesh.label() {
            labels[label] = json!(value);
        }
        let mut annotations = json!({RECORDS: self.records});
        if let Some((annotation, value)) = self.mesh.annotation() {
            annotations[annotation] = json!(value);
        }
        json!({"apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": self.namespace, "labels": labels, "annotations": annotations}})
    }

    /// The Service objects of the scenario's services, in their order.
    pub(super) fn services(&self) -> Vec<Value> {
        let service = |nth: u32| {
            let name = self.scenario.service(nth);
            let mut service = self.service(&name, nth);
            service["spec"]["selector"] = json!({"app": name});
            if let Some(image) = self.image_of(&name) {
                real::listen(&mut service, image);
            }
            service
        };
        (0..self.scenario.services).map(service).collect()
    }

    /// The service whose endpoints come and go: all other services. It has no selector, because the
    /// suite writes its endpoints.
    pub(super) fn churning(&self) -> Value {
        self.service(CHURNING, 0)
    }

    /// A service with the protocol of one of the scenario's services. It is IPv4 only, as in the
    /// lab, so that every mesh carries the same traffic.
    fn service(&self, name: &str, nth: u32) -> Value {
        json!({"apiVersion": "v1", "kind": "Service", "metadata": self.metadata(name),
        "spec": {
            "ipFamilyPolicy": "SingleStack",
            "ipFamilies": ["IPv4"],
            "ports": [{"name": PORT_NAME, "port": PORT, "targetPort": PORT,
                "appProtocol": self.scenario.app_protocol(nth)}],
        }})
    }

    /// The workloads: the load generators, and the services with the addresses of the services they
    /// call.
    pub(super) fn workloads(&self, addresses: &[SocketAddr]) -> Vec<Value> {
        let station = ["station", "--listen"].map(str::to_owned).to_vec();
        let station = [station, vec![format!("127.0.0.1:{}", station::PORT)]].concat();
        let mut all = vec![self.account(CLIENT), self.pod(CLIENT, &station, false)];
        if self.scenario.neighbour.is_some() {
            all.extend([self.account(NEIGHBOUR), self.pod(NEIGHBOUR, &station, false)]);
        }
        for nth in 0..self.scenario.services {
            let name = self.scenario.service(nth);
            let address = |nth: u32| addresses[nth as usize].to_string();
            let pod = match self.image_of(&name) {
                Some(image) => self.real(&name, image),
                None => {
                    let arguments = application::arguments(self.scenario, nth, address);
                    self.pod(&name, &arguments, true)
                }
            };
            all.extend([self.account(&name), pod]);
        }
        all
    }

    fn image_of(&self, service: &str) -> Option<&Image> {
        self.real?.services.get(service)
    }

    fn metadata(&self, name: &str) -> Value {
        json!({"name": name, "namespace": self.namespace, "labels": {"app": name, MANAGED.0: MANAGED.1}})
    }

    fn account(&self, name: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": self.metadata(name)})
    }

    fn pod(&self, name: &str, arguments: &[String], listens: bool) -> Value {
        let mut container = json!({
            "name": CONTAINER,
            "image": self.image,
            "imagePullPolicy": "IfNotPresent",
            "args": arguments,
            "securityContext": {
                "allowPrivilegeEscalation": false,
                "readOnlyRootFilesystem": true,
                "capabilities": {"drop": ["ALL"]},
            },
        });
        if listens {
            container["ports"] = json!([{"name": PORT_NAME, "containerPort": PORT}]);
            container["readinessProbe"] = json!({"tcpSocket": {"port": PORT}, "periodSeconds": 1});
        }
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": self.metadata(name),
        "spec": {
            "serviceAccountName": name,
            "nodeSelector": {"kubernetes.io/hostname": self.placement.host_of(name)},
            "enableServiceLinks": false,
            "terminationGracePeriodSeconds": 1,
            "securityContext": {
                "runAsNonRoot": true,
                "runAsUser": USER,
                "runAsGroup": USER,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
        }})
    }
}

/// The workloads of a scenario; those that generate load are first.
pub(super) fn workloads_of(scenario: &Scenario) -> Vec<String> {
    let mut all = vec![CLIENT.to_owned()];
    all.extend(scenario.neighbour.map(|_| NEIGHBOUR.to_owned()));
    all.extend((0..scenario.services).map(|nth| scenario.service(nth)));
    all
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::cluster::nodes::tests::two_nodes;

    /// All objects of a small scenario with calls, under a mesh.
    fn objects(mesh: Mesh, scenario: &str) -> Vec<Value> {
        objects_of(mesh, scenario, None)
    }

    pub(in crate::cluster) fn objects_of(
        mesh: Mesh,
        scenario: &str,
        real: Option<&Images>,
    ) -> Vec<Value> {
        let scenario = crate::scenario::find(scenario).unwrap();
        let placement = Placement::of(&two_nodes(), &scenario);
        let plan = Plan {
            namespace: "leno-bench-1a2b3",
            mesh,
            scenario: &scenario,
            image: "registry.example/leno:1",
            real,
            records: "/bench (on here)",
            placement: &placement,
            token: "0123456789abcdef",
        };
        let address = |nth: u32| SocketAddr::from(([10, 96, 0, 1 + nth as u8], PORT));
        let addresses: Vec<SocketAddr> = (0..scenario.services).map(address).collect();
        let mut all = vec![plan.namespace()];
        all.extend(plan.services());
        let nodes = placement.names().into_values().collect::<BTreeSet<_>>();
        all.extend(plan.watchers(&watchers(&nodes)));
        all.extend(plan.workloads(&addresses));
        all
    }

    #[test]
    fn the_objects_are_those_of_the_golden_file() {
        let text = serde_json::to_string_pretty(&objects(Mesh::Leno, "faces")).unwrap() + "\n";
        if std::env::var_os("LENO_GOLDEN").is_some() {
            std::fs::write("src/cluster/faces.json", &text).unwrap();
        }
        assert_eq!(text, include_str!("faces.json"), "LENO_GOLDEN=1 writes it anew");
    }

    #[test]
    fn every_mesh_is_told_in_its_own_way_and_nothing_else_differs() {
        let none = objects(Mesh::None, "http-1k");
        for (mesh, place, key, value) in [
            (Mesh::Leno, "labels", "leno.dev/inject", "enabled"),
            (Mesh::Istio, "labels", "istio-injection", "enabled"),
            (Mesh::IstioAmbient, "labels", "istio.io/dataplane-mode", "ambient"),
            (Mesh::Linkerd, "annotations", "linkerd.io/inject", "enabled"),
        ] {
            let mut meshed = objects(mesh, "http-1k");
            let told = meshed[0]["metadata"][place].as_object_mut().unwrap().remove(key);
            assert_eq!(told, Some(json!(value)), "{mesh:?}");
            // Leno's namespaces decide whether their pods may decline.
            meshed.retain(|object| object["kind"] != "PodExemption");
            assert_eq!(meshed, none, "{mesh:?}");
        }
    }

    #[test]
    fn whoever_floods_has_a_pod_of_its_own() {
        let all = objects(Mesh::None, "neighbour");
        let pods = all.iter().filter(|one| one["kind"] == "Pod").count();
        assert_eq!((pods, all.len()), (4 + 2, 1 + 2 + 8 + 4), "two of them watch the nodes");
        let scenario = crate::scenario::find("neighbour").unwrap();
        assert_eq!(workloads_of(&scenario), ["client", "neighbour", "s0", "s1"]);
        assert!(!workloads_of(&scenario).iter().any(|name| is_watcher(name)));
    }
}
