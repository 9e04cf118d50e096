//! Answers of kubelets that are made up here, and what is made of two or more of them.

use super::*;

fn roles(mesh: Mesh) -> Roles {
    Roles {
        namespace: "leno-bench-1".into(),
        mesh,
        system: mesh.namespace().map(str::to_owned),
        beside: BTreeSet::new(),
        flooded: Some("s1".into()),
        nodes: BTreeSet::new(),
        carriers: Carriers::default(),
        cpus: BTreeMap::from([("n1".into(), 2)]),
    }
}

/// A kubelet's answer: pods as `namespace/pod/container`, each with CPU in ms and memory in KiB.
fn reading(roles: &Roles, second: u32, pods: &[(&str, u64, u64)]) -> Reading {
    let cpu = |ms: u64| {
        format!(
            r#"{{"time": "2026-01-01T00:00:{second:02}Z", "usageCoreNanoSeconds": {}}}"#,
            ms * 1_000_000
        )
    };
    let pods: Vec<String> = pods
        .iter()
        .map(|(name, ms, kib)| {
            let [namespace, pod, container] = name.split('/').collect::<Vec<_>>()[..] else {
                panic!("{name}")
            };
            format!(
                r#"{{"podRef": {{"name": "{pod}", "namespace": "{namespace}", "uid": "u"}}, "containers": [
                {{"name": "{container}", "startTime": "{}Z", "cpu": {},
                "memory": {{"time": "2026-01-01T00:00:{second:02}Z", "workingSetBytes": {}}}}}]}}"#,
                // What begins anew has no memory yet.
                if *kib == 0 { "2026-01-01T00:00:15" } else { "2025-12-31T00:00:00" },
                cpu(*ms),
                kib * 1024
            )
        })
        .collect();
    let machine = cpu(u64::from(second) * 1500);
    let text = format!(
        r#"{{"node": {{"nodeName": "n1", "cpu": {machine}, "memory": {{}}}}, "pods": [{}]}}"#,
        pods.join(",")
    );
    let mut reading = Reading::default();
    roles.add(&serde_json::from_str(&text).unwrap(), &mut reading);
    reading
}

#[test]
fn what_is_used_between_two_looks_is_kept_apart_by_who_used_it() {
    let roles = roles(Mesh::Leno);
    let at = |second, factor: u64| {
        reading(
            &roles,
            second,
            &[
                ("leno-bench-1/client/bench", 10 * factor, 1),
                ("leno-bench-1/client/leno-proxy", 20 * factor, 100 * factor),
                ("leno-bench-1/s0/bench", 30 * factor, 1),
                ("leno-bench-1/s0/leno-proxy", 40 * factor, 100),
                ("leno-bench-1/s1/leno-proxy", 50 * factor, 1000),
                ("leno-bench-1/neighbour/bench", 60 * factor, 1000),
                ("leno-system/leno-agent-abcde/agent", 70 * factor, 1000),
                ("leno-system/leno-controller-1-a/controller", 80 * factor, 50),
                ("shop/web/leno-proxy", 90 * factor, 1000),
            ],
        )
    };
    let (before, after) = (at(10, 1), at(20, 3));
    let (used, broken) = after.since(&before, &[], &roles.cpus);
    assert_eq!(broken, [""; 0]);
    let cpu = used.cpu;
    assert_eq!((cpu.generator, cpu.proxies, cpu.application), (20.0, 120.0, 60.0));
    assert_eq!((cpu.neighbour, cpu.agent, cpu.control), (220.0, 140.0, 160.0));
    assert_eq!((cpu.machine, used.wall), (15_000.0, Duration::from_secs(10)));
    assert_eq!(used.processors, Some(2.0), "of the node that was asked");
    assert_eq!((after.proxies(), after.memory_kib()), (2, (400, 50)));
    assert_eq!(after.line(Duration::from_secs(2)), "2000,400,50,180.0,90.0\n");
    assert_eq!(before.stale(&before).len(), 9, "eight containers and the node");
    assert_eq!(after.stale(&before), [""; 0]);
    let wanted = ["client/leno-proxy".to_owned(), "s2/bench".to_owned()];
    assert_eq!(after.lacks(&wanted), ["s2/bench"]);
}

#[test]
fn memory_under_load_is_that_of_looks_during_it_each_once() {
    let roles = roles(Mesh::Leno);
    let at = |second, client, s0| {
        let pods =
            [("leno-bench-1/client/leno-proxy", 1, client), ("leno-bench-1/s0/leno-proxy", 1, s0)];
        reading(&roles, second, &pods)
    };
    let idle = at(10, 100, 50);
    // As it was before the load began, and before the one look that was made meanwhile.
    let stale = at(20, 1, 1);
    let during = [
        stale.clone(),
        stale.clone(),
        at(31, 300, 70),
        at(31, 300, 70),
        at(41, 200, 80),
        at(41, 200, 80),
    ];
    let (proxies, _, unseen) = memory(&idle, &during, &at(55, 900, 900));
    assert_eq!((proxies.idle, proxies.load, proxies.peak, unseen), (150, 250 + 75, 300 + 80, 0));
    let (proxies, _, unseen) = memory(&idle, &[stale.clone(), stale], &at(55, 300, 90));
    assert_eq!((proxies.load, proxies.peak, unseen), (390, 390, 2));
}

#[test]
fn a_container_that_ends_or_begins_meanwhile_is_said() {
    let roles = roles(Mesh::Leno);
    let one = ("leno-bench-1/client/leno-proxy", 20, 1);
    let before = reading(&roles, 10, &[one]);
    let since = |pods: &[(&str, u64, u64)]| {
        let (used, broken) = reading(&roles, 20, pods).since(&before, &[], &roles.cpus);
        (used.cpu.proxies, broken.join("; "))
    };
    assert_eq!(since(&[]), (0.0, "leno-bench-1/client/leno-proxy has ended meanwhile".into()));
    let restarted = "leno-bench-1/client/leno-proxy was restarted meanwhile";
    assert_eq!(since(&[("leno-bench-1/client/leno-proxy", 2, 1)]), (2.0, restarted.into()));
    let busy = ("leno-bench-1/client/leno-proxy", 30, 0);
    assert_eq!(since(&[busy]), (30.0, restarted.into()), "by when it began");
    let (used, begun) = since(&[one, ("leno-bench-1/s0/leno-proxy", 1, 0)]);
    assert!(used == 1.0 && begun.ends_with("s0/leno-proxy has begun meanwhile"), "{used} {begun}");
}

#[test]
fn what_is_missing_at_first_is_not_charged_for_its_whole_life() {
    let roles = roles(Mesh::Leno);
    let before = reading(&roles, 10, &[]);
    let all = |ms| {
        [
            ("leno-bench-1/s0/leno-proxy", ms, 1),
            ("leno-system/leno-controller-1-a/controller", ms, 1),
        ]
    };
    let between = [reading(&roles, 12, &[]), reading(&roles, 14, &all(5000))];
    let (used, broken) = reading(&roles, 20, &all(5070)).since(&before, &between, &roles.cpus);
    assert_eq!((used.cpu.proxies, used.cpu.control), (70.0, 70.0), "from first sight");
    let missing = "leno-bench-1/s0/leno-proxy was not in the first figures of its kubelet";
    assert_eq!(broken, [missing]);
    let (used, _) = reading(&roles, 20, &all(5070)).since(&before, &[], &roles.cpus);
    assert_eq!((used.cpu.proxies, used.cpu.control), (0.0, 0.0), "nobody has seen more");
}

#[test]
fn what_idle_proxies_use_is_known_by_two_looks_of_when_all_was_quiet() {
    let roles = roles(Mesh::Leno);
    let at = |second, ms| {
        let proxies =
            [("leno-bench-1/client/leno-proxy", ms, 1), ("leno-bench-1/s0/leno-proxy", 2 * ms, 1)];
        reading(&roles, second, &proxies)
    };
    assert_eq!(at(20, 300).proxies_cpus_since(&at(10, 100)), 0.06, "0.2 s and 0.4 s in 10 s");
    assert_eq!(at(10, 300).proxies_cpus_since(&at(10, 100)), 0.0);
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
    // Where the installation was told to put it, among others.
    roles.beside = BTreeSet::from(["kube-system".to_owned()]);
    let of = |pod, container| roles.of("n1", ("kube-system", pod, container));
    assert_eq!(of("ztunnel-x2x", "istio-proxy"), Some(Role::Proxy));
    assert_eq!(of("kube-proxy-x", "kube-proxy"), None);
}
