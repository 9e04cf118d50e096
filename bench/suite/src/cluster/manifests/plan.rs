//! The namespace, the services and the workloads of one measurement.

use std::net::SocketAddr;

use serde_json::{Value, json};

use super::real_service;
use crate::application::{self, PORT};
use crate::cluster::mesh::Mesh;
use crate::cluster::names::{CONTAINER, MANAGED, PORT_NAME, RECORDS};
use crate::cluster::nodes::Placement;
use crate::load_server;
use crate::real_application::images::{Image, Images};
use crate::revision::CHURNING;
use crate::scenario::{CLIENT, NEIGHBOUR, Scenario};

/// The user ID of the pods, which has no special rights.
const USER: u32 = 65532;

/// The inputs of the objects.
#[derive(Clone, Copy)]
pub(in crate::cluster) struct Plan<'a> {
    pub(in crate::cluster) namespace: &'a str,
    pub(in crate::cluster) mesh: Mesh,
    pub(in crate::cluster) scenario: &'a Scenario,
    pub(in crate::cluster) image: &'a str,
    /// The real application instead of the suite's own services.
    pub(in crate::cluster) real: Option<&'a Images>,
    /// The place of the records.
    pub(in crate::cluster) records: &'a str,
    pub(in crate::cluster) placement: &'a Placement,
    /// The token that watchers require.
    pub(in crate::cluster) token: &'a str,
}

impl Plan<'_> {
    /// The namespace.
    pub(in crate::cluster) fn namespace(&self) -> Value {
        let mut labels = json!({
            MANAGED.0: MANAGED.1,
            // Containers of every mesh must be able to start here; the baseline's run under the
            // same rules.
            "pod-security.kubernetes.io/enforce": "privileged",
        });
        if let Some((label, value)) = &self.mesh.facts().label {
            labels[label] = json!(value);
        }
        let mut annotations = json!({RECORDS: self.records});
        if let Some((annotation, value)) = &self.mesh.facts().annotation {
            annotations[annotation] = json!(value);
        }
        json!({"apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": self.namespace, "labels": labels, "annotations": annotations}})
    }

    /// The Service objects of the scenario's services, in their order.
    pub(in crate::cluster) fn services(&self) -> Vec<Value> {
        let service = |nth: u32| {
            let name = self.scenario.service(nth);
            let mut service = self.service(&name, nth);
            service["spec"]["selector"] = json!({"app": name});
            if let Some(image) = self.image_of(&name) {
                real_service::listen(&mut service, image);
            }
            service
        };
        (0..self.scenario.services).map(service).collect()
    }

    /// The service whose endpoints come and go: all other services. It has no selector, because the
    /// suite writes its endpoints.
    pub(in crate::cluster) fn churning(&self) -> Value {
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
    pub(in crate::cluster) fn workloads(&self, addresses: &[SocketAddr]) -> Vec<Value> {
        let listen = format!("127.0.0.1:{}", load_server::PORT);
        let arguments = ["load-server", "--listen", &listen].map(str::to_owned);
        let mut all = vec![self.account(CLIENT), self.pod(CLIENT, &arguments, false)];
        if !self.scenario.neighbours.is_empty() {
            all.extend([self.account(NEIGHBOUR), self.pod(NEIGHBOUR, &arguments, false)]);
        }
        for nth in 0..self.scenario.services {
            let name = self.scenario.service(nth);
            let address = |nth: u32| addresses[nth as usize].to_string();
            let pod = match self.image_of(&name) {
                Some(image) => real_service::pod(self.pod(&name, &[], false), image),
                None => {
                    let arguments =
                        application::arguments(self.scenario, nth, application::LISTEN, address);
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

    pub(in crate::cluster) fn metadata(&self, name: &str) -> Value {
        json!({"name": name, "namespace": self.namespace, "labels": {"app": name, MANAGED.0: MANAGED.1}})
    }

    pub(in crate::cluster) fn account(&self, name: &str) -> Value {
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
