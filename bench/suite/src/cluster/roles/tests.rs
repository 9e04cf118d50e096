//! Checks which containers of which pods are measured, and in which role.

use serde_json::json;

use super::*;

fn roles(mesh: Mesh) -> Roles {
    Roles {
        namespace: "leno-bench-1".into(),
        mesh,
        system: mesh.facts().namespace.clone(),
        beside: BTreeSet::new(),
        flooded: Some("s1".into()),
        nodes: BTreeSet::from(["n1".to_owned()]),
        carriers: Carriers::default(),
    }
}

#[test]
fn each_container_of_a_measurement_has_the_role_of_its_pod() {
    let roles = roles(Mesh::Leno);
    for (namespace, pod, container, role) in [
        ("leno-bench-1", "client", "bench", Some(Role::Generator)),
        ("leno-bench-1", "client", "leno-proxy", Some(Role::Proxy)),
        ("leno-bench-1", "s0", "bench", Some(Role::Application)),
        ("leno-bench-1", "s0", "leno-proxy", Some(Role::Proxy)),
        ("leno-bench-1", "s1", "leno-proxy", Some(Role::Neighbour)),
        ("leno-bench-1", "neighbour", "bench", Some(Role::Neighbour)),
        ("leno-bench-1", "watch-0", "bench", None),
        ("leno-system", "leno-agent-abcde", "agent", Some(Role::Agent)),
        ("leno-system", "leno-controller-1-a", "controller", Some(Role::Control)),
        ("shop", "web", "leno-proxy", None),
    ] {
        let found = roles.of("n1", (namespace, pod, container));
        assert_eq!(found, role, "{namespace}/{pod}/{container}");
    }
}

#[test]
fn proxies_of_nodes_are_proxies_where_they_carry_something() {
    let mut roles = roles(Mesh::IstioAmbient);
    let places = [("client", "n1"), ("neighbour", "n2"), ("s0", "n3"), ("s1", "n3")];
    let places = places.map(|(workload, node)| (workload.to_owned(), node.to_owned()));
    roles.carriers = Carriers::of(places.into(), Some("s1"));
    assert_eq!(roles.carriers.shared(), ["n3"]);
    let of = |node, pod, container| roles.of(node, ("istio-system", pod, container));
    assert_eq!(of("n1", "ztunnel-x2x", "istio-proxy"), Some(Role::Proxy));
    assert_eq!(of("n2", "ztunnel-x2y", "istio-proxy"), Some(Role::Neighbour));
    assert_eq!(of("n3", "ztunnel-x2z", "istio-proxy"), Some(Role::Proxy));
    assert_eq!(of("n4", "ztunnel-x2a", "istio-proxy"), None, "nothing is carried there");
    assert_eq!(of("n4", "istio-cni-node-x", "install-cni"), Some(Role::Agent));
    assert_eq!(of("n4", "istiod-1", "discovery"), Some(Role::Control));
    assert_eq!(roles.of("n1", ("kube-system", "kube-proxy", "kube-proxy")), None);
    // The installation may be configured to put ztunnel in a namespace with other pods.
    roles.beside = BTreeSet::from(["kube-system".to_owned()]);
    let of = |pod, container| roles.of("n1", ("kube-system", pod, container));
    assert_eq!(of("ztunnel-x2x", "istio-proxy"), Some(Role::Proxy));
    assert_eq!(of("kube-proxy-x", "kube-proxy"), None);
}

#[test]
fn the_supervisor_of_a_node_is_a_proxy_where_pods_are_in_node_mode() {
    for (mesh, role) in
        [(Mesh::Leno, Role::Agent), (Mesh::LenoNode, Role::Proxy), (Mesh::LenoShared, Role::Proxy)]
    {
        let mut roles = roles(mesh);
        let places = [("client", "n1"), ("s0", "n1")];
        let places = places.map(|(workload, node)| (workload.to_owned(), node.to_owned()));
        roles.carriers = Carriers::of(places.into(), None);
        let of = |pod, container| roles.of("n1", ("leno-system", pod, container));
        assert_eq!(of("leno-node-abcde", "supervisor"), Some(role), "{mesh:?}");
        assert_eq!(of("leno-agent-abcde", "agent"), Some(Role::Agent), "{mesh:?}");
        assert_eq!(of("leno-controller-1-a", "controller"), Some(Role::Control), "{mesh:?}");
    }
}

#[test]
fn a_container_is_watched_while_it_runs_on_a_node_that_is() {
    let roles = roles(Mesh::Leno);
    let pod = |node: &str, state: &str, id: &str| -> Pod {
        let status = json!({"name": "leno-proxy", "image": "", "imageID": "", "ready": true, "restartCount": 0,
            "containerID": id, "state": {state: {"exitCode": 1}}});
        serde_json::from_value(json!({"metadata": {"namespace": "leno-bench-1", "name": "client"},
            "spec": {"nodeName": node, "containers": []},
            "status": {"initContainerStatuses": [status]}}))
        .unwrap()
    };
    let found = roles.watched(&pod("n1", "running", "cri-o://ab"));
    let name = "leno-bench-1/client/leno-proxy".to_owned();
    let wanted = Component { role: Role::Proxy, name, node: "n1".into(), id: "ab".into() };
    assert_eq!(found, [wanted]);
    assert_eq!(roles.watched(&pod("n2", "running", "cri-o://ab")), [], "n2 has no watcher");
    assert_eq!(roles.watched(&pod("n1", "terminated", "cri-o://ab")), []);
    assert_eq!(roles.watched(&pod("n1", "running", "")), []);
}
