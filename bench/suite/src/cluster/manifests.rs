//! The objects of one measurement: a namespace; an account and a pod for each workload, and a
//! service for those that are called; and a watcher pod on each node.
//!
//! Workloads are pods and not Deployments, so that the client that creates one receives the error
//! if something prevents it, such as a webhook that does not answer. The workload pods satisfy Pod
//! Security `restricted`. The namespace does not enforce it, because meshes add containers with
//! more rights to the pods, and watchers need all rights.

pub(super) mod plan;
mod real_service;
pub(super) mod watchers;

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeSet;
    use std::net::SocketAddr;

    use serde_json::{Value, json};

    use super::plan::Plan;
    use super::watchers::{is_watcher, watchers};
    use crate::application::PORT;
    use crate::cluster::mesh::Mesh;
    use crate::cluster::nodes::Placement;
    use crate::cluster::nodes::tests::two_nodes;
    use crate::real_application::images::{self, Images};

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

    /// One object of each form: those of the suite's own services, and of services of a real application, with the rights
    /// of their image.
    #[test]
    fn one_object_of_each_form_is_that_of_the_golden_file() {
        let images = images::printed("teastore").unwrap();
        let images: Images = serde_saphyr::from_str(images).unwrap();
        let mut all = objects(Mesh::Leno, "faces");
        all.retain(|one| match one["metadata"]["name"].as_str().unwrap() {
            "watch-0" | "client" => one["kind"] == "Pod",
            name => ["leno-bench-1a2b3", "face", "watchers"].contains(&name),
        });
        let real = objects_of(Mesh::Leno, "teastore", Some(&images)).into_iter();
        all.extend(real.filter(|one| {
            let name = one["metadata"]["name"].as_str().unwrap();
            ["persistence", "db"].contains(&name) && one["kind"] != "ServiceAccount"
        }));
        let documents: Vec<String> =
            all.iter().map(|one| serde_saphyr::to_string(one).unwrap()).collect();
        let text = documents.join("---\n");
        if std::env::var_os("LENO_UPDATE").is_some() {
            std::fs::write("src/cluster/manifests/golden.yaml", &text).unwrap();
        }
        assert_eq!(text, include_str!("manifests/golden.yaml"), "LENO_UPDATE=1 writes it again");
    }

    #[test]
    fn objects_of_meshes_differ_only_in_the_label_that_enables_them() {
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
    fn a_flooding_client_has_a_pod_of_its_own() {
        let all = objects(Mesh::None, "neighbour");
        let pods = all.iter().filter(|one| one["kind"] == "Pod").count();
        assert_eq!((pods, all.len()), (4 + 2, 1 + 2 + 8 + 4), "two of them watch the nodes");
        let scenario = crate::scenario::find("neighbour").unwrap();
        assert_eq!(scenario.workloads(), ["client", "neighbour", "s0", "s1"]);
        assert!(!scenario.workloads().iter().any(|name| is_watcher(name)));
    }
}
