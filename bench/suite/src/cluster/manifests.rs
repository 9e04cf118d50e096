//! The objects of one measurement: a namespace; an account and a pod for each workload, and a service for those that
//! are called; and a watcher pod on each node.
//!
//! Workloads are pods and not Deployments, so that the client that creates a pod receives the error if something
//! prevents it, such as a webhook that does not answer. The pods of workloads satisfy Pod Security `restricted`. The
//! namespace does not enforce it, because meshes add containers with more rights to the pods, and because watchers need
//! all rights: they can see, inspect and kill the processes of their node, and are not part of any mesh.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use minijinja::value::Serde;
use minijinja::{Environment, UndefinedBehavior, Value as Part, context};
use serde_json::Value;

use super::mesh::Mesh;
use super::nodes::Placement;
use crate::application::{self, PORT};
use crate::pod_program::POD;
use crate::real_application::images::Images;
use crate::revision::CHURNING;
use crate::scenario::{CLIENT, NEIGHBOUR, Scenario};

const OBJECTS: &str = include_str!("../../data/cluster.yaml");
/// The user ID of the pods, which has no special rights.
const USER: u32 = 65532;
/// What the names of watchers begin with. No workload has such a name.
const WATCHER: &str = "watch-";

pub(super) fn is_watcher(pod: &str) -> bool {
    pod.starts_with(WATCHER)
}

/// The names of the watcher pods, by node.
pub(super) fn watchers<'a>(
    nodes: impl IntoIterator<Item = &'a String>,
) -> BTreeMap<String, String> {
    let nodes = nodes.into_iter().enumerate();
    nodes.map(|(nth, node)| (node.clone(), format!("{WATCHER}{nth}"))).collect()
}

#[derive(Clone, Copy)]
pub(super) struct Plan<'a> {
    pub(super) namespace: &'a str,
    pub(super) mesh: Mesh,
    pub(super) scenario: &'a Scenario,
    pub(super) image: &'a str,
    /// The real application instead of the suite's own services.
    pub(super) real: Option<&'a Images>,
    pub(super) records: &'a str,
    pub(super) placement: &'a Placement,
}

impl Plan<'_> {
    pub(super) fn namespace(&self) -> Value {
        self.object("namespace", context! {})
    }

    /// The Service objects of the scenario's services, in their order.
    pub(super) fn services(&self) -> Vec<Value> {
        (0..self.scenario.services)
            .map(|nth| self.service(&self.scenario.service(nth), nth))
            .collect()
    }

    /// The service whose endpoints come and go, because its endpoints are all other services. It has no selector,
    /// because the suite writes its endpoints.
    pub(super) fn churning(&self) -> Value {
        self.service(CHURNING, 0)
    }

    fn service(&self, name: &str, nth: u32) -> Value {
        let (selects, app_protocol) = (name != CHURNING, self.scenario.app_protocol(nth));
        self.object(
            "service",
            context! { name, selects, app_protocol, real => self.image_of(name) },
        )
    }

    /// The workloads: the load generators, and the services with the addresses of the services they
    /// call.
    pub(super) fn workloads(&self, addresses: &[SocketAddr]) -> Vec<Value> {
        let generators = [CLIENT, NEIGHBOUR].into_iter();
        let generators = generators.take(1 + usize::from(!self.scenario.neighbours.is_empty()));
        let mut all: Vec<Value> = generators
            .flat_map(|name| {
                let host = self.placement.host_of(name);
                self.objects("workload", context! { name, host, args => [POD], answers => true })
            })
            .collect();
        for nth in 0..self.scenario.services {
            let name = self.scenario.service(nth);
            let address = |nth: u32| addresses[nth as usize].to_string();
            let args = application::arguments(self.scenario, nth, application::LISTEN, address);
            let (host, real) = (self.placement.host_of(&name), self.image_of(&name));
            let of = context! { name, host, args, real, listens => true };
            all.extend(self.objects("workload", of));
        }
        all
    }

    /// Returns the watchers, each with its service account. In a mesh of Leno, an object that exempts them from having
    /// a proxy comes first.
    pub(super) fn watchers(&self, watchers: &BTreeMap<String, String>) -> Vec<Value> {
        let exemption = self.mesh.is_leno().then(|| self.object("exemption", context! {}));
        let watchers = watchers.iter().flat_map(|(node, name)| {
            self.objects("watcher", context! { name, node, args => [POD] })
        });
        exemption.into_iter().chain(watchers).collect()
    }

    fn image_of(&self, service: &str) -> Option<Part> {
        self.real?.services.get(service).map(|image| Serde(image).into())
    }

    fn object(&self, part: &str, of: Part) -> Value {
        self.objects(part, of).swap_remove(0)
    }

    /// Renders one part of the template with the values of `of`, and returns its objects.
    fn objects(&self, part: &str, of: Part) -> Vec<Value> {
        let facts = self.mesh.facts();
        let mut environment = Environment::new();
        environment.set_undefined_behavior(UndefinedBehavior::Chainable);
        let json = |value: Part| serde_json::to_string(&value).expect("it has only text keys");
        environment.add_filter("json", json);
        let values = context! {
            part,
            of,
            namespace => self.namespace,
            records => self.records,
            label => &facts.label,
            annotations => &facts.annotations,
            image => self.image,
            port => PORT,
            user => USER,
        };
        let text = environment.render_str(OBJECTS, values).expect("a test renders every part");
        leno_operate::documents(&text).expect("a test reads every part")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;
    use crate::cluster::nodes::tests::two_nodes;
    use crate::golden;
    use crate::real_application::images;

    /// All objects of a small scenario with calls, under a mesh.
    fn objects(mesh: Mesh, scenario: &str) -> Vec<Value> {
        objects_of(mesh, scenario, None)
    }

    fn objects_of(mesh: Mesh, scenario: &str, real: Option<&Images>) -> Vec<Value> {
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

    /// Objects in each form: for the suite's own services, and for services of real applications, which keep the rights
    /// of their image or have fewer.
    #[test]
    fn one_object_of_each_form_equals_the_golden_file() {
        let mut all = objects(Mesh::Leno, "faces");
        all.retain(|one| match one["metadata"]["name"].as_str().unwrap() {
            "watch-0" | "client" => one["kind"] == "Pod",
            name => ["leno-bench-1a2b3", "face", "watchers"].contains(&name),
        });
        let faces = "{scenario: faces, services: {face: {image: a, user: 7, command: [/face], args: [-port, \"80\"], \
                     port: 80}, smiley: {image: b}, color: {image: c, privileges: image}}}";
        for (images, services) in [
            (images::printed("teastore").unwrap(), &["persistence", "db"][..]),
            (faces, &["face", "smiley", "color"][..]),
        ] {
            let images: Images = serde_saphyr::from_str(images).unwrap();
            let real = objects_of(Mesh::None, &images.scenario, Some(&images)).into_iter();
            all.extend(real.filter(|one| {
                let is_one = services.contains(&one["metadata"]["name"].as_str().unwrap());
                is_one && one["kind"] != "ServiceAccount"
            }));
        }
        let documents = all.iter().map(|one| serde_saphyr::to_string(one).unwrap());
        golden::check("cluster.golden.yaml", &documents.collect::<Vec<_>>().join("---\n"));
    }

    #[test]
    fn objects_of_meshes_differ_only_in_what_enables_them() {
        let none = objects(Mesh::None, "http-1k");
        let injected = ("labels", "leno.dev/inject", "enabled");
        let (mode, share) = (("annotations", "leno.dev/mode", "node"), "leno.dev/share");
        for (mesh, enabling) in [
            (Mesh::Leno, vec![injected]),
            (Mesh::LenoNode, vec![injected, mode, ("annotations", share, "node")]),
            (Mesh::LenoShared, vec![injected, mode, ("annotations", share, "service-account")]),
            (Mesh::Istio, vec![("labels", "istio-injection", "enabled")]),
            (Mesh::IstioAmbient, vec![("labels", "istio.io/dataplane-mode", "ambient")]),
            (Mesh::Linkerd, vec![("annotations", "linkerd.io/inject", "enabled")]),
        ] {
            let mut meshed = objects(mesh, "http-1k");
            for (place, key, value) in enabling {
                let told = meshed[0]["metadata"][place].as_object_mut().unwrap().remove(key);
                assert_eq!(told, Some(json!(value)), "{mesh:?}");
            }
            // In a mesh of Leno, the namespace's exemption decides whether its pods may go without a proxy.
            meshed.retain(|object| object["kind"] != "PodExemption");
            assert_eq!(meshed, none, "{mesh:?}");
        }
    }

    #[test]
    fn a_flooding_client_has_a_pod_of_its_own() {
        let all = objects(Mesh::None, "neighbour");
        let pods = all.iter().filter(|one| one["kind"] == "Pod").count();
        assert_eq!((pods, all.len()), (4 + 2, 1 + 2 + 8 + 4), "two of them watch the nodes");
        let scenario = crate::scenario::find("neighbour").unwrap();
        assert_eq!(scenario.workloads(), ["client", "neighbour", "s0", "s1"]);
        assert!(!scenario.workloads().iter().any(|name| is_watcher(name)));
    }
}
