//! Results from two or more readings that are made for the test.

use k8s_openapi::api::core::v1::Pod;
use leno_measure::usage::Cpu;
use serde_json::json;

use super::*;
use crate::cluster::mesh::Mesh;
use crate::cluster::roles::{Carriers, Roles};
use crate::kernel_counters::Machine;
use crate::record::ContextSwitches;

/// One second of a kernel's clock, in microseconds.
const SECOND: u64 = 1_000_000;

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

/// Containers as `namespace/pod/container`, each with its ID, CPU in ms (a quarter of it in user
/// mode) and memory in KiB.
type Pods<'a> = &'a [(&'a str, &'a str, u64, u64)];

/// A reading of containers on node `n1` at a given second.
fn reading(roles: &Roles, second: u64, pods: Pods<'_>) -> Reading {
    let mut look =
        NodeCounters { boot_id: "k".into(), at_us: second * SECOND, ..NodeCounters::default() };
    let mut watched = Vec::new();
    for (name, id, ms, kib) in pods {
        let [namespace, pod, container] = name.split('/').collect::<Vec<_>>()[..] else {
            panic!("{name}")
        };
        let status = json!({"metadata": {"namespace": namespace, "name": pod},
            "spec": {"nodeName": "n1", "containers": []},
            "status": {"containerStatuses": [{"name": container, "image": "", "imageID": "", "ready": true,
                "restartCount": 0, "containerID": format!("containerd://{id}"), "state": {"running": {}}}]}});
        watched.extend(roles.watched(&serde_json::from_value(status).unwrap()));
        let process = Process {
            pid: 7,
            began_us: if id.starts_with("new") { 15 * SECOND } else { 0 },
            cpu: Cpu { user_us: ms * 250, system_us: ms * 750 },
            switches: ContextSwitches { voluntary: *ms, involuntary: 1 },
            rss_kib: *kib,
            program_bytes: 1000 + kib,
        };
        look.containers.insert((*id).to_owned(), vec![process]);
    }
    let busy_ms = (second * 1500) as f64;
    look.whole = Some(KernelCounters {
        machine: Machine { busy_ms, interrupts_ms: 1.0, steal_ms: busy_ms / 10.0, processors: 2 },
        kernel_threads_ms: Some(second as f64),
        programs: BTreeMap::from([(1, (second, second * 1_000_000)), (second as u32, (5, 1))]),
    });
    let mut reading = Reading::default();
    reading.add("n1", look, &watched);
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
                ("leno-bench-1/client/bench", "1", 10 * factor, 1),
                ("leno-bench-1/client/leno-proxy", "2", 20 * factor, 100 * factor),
                ("leno-bench-1/s0/bench", "3", 30 * factor, 1),
                ("leno-bench-1/s0/leno-proxy", "4", 40 * factor, 100),
                ("leno-bench-1/s1/leno-proxy", "5", 50 * factor, 1000),
                ("leno-bench-1/neighbour/bench", "6", 60 * factor, 1000),
                ("leno-system/leno-agent-abcde/agent", "7", 70 * factor, 1000),
                ("leno-system/leno-controller-1-a/controller", "8", 80 * factor, 50),
                ("leno-bench-1/watch-0/bench", "9", 80 * factor, 1000),
                ("shop/web/leno-proxy", "10", 90 * factor, 1000),
            ],
        )
    };
    let (before, after) = (at(10, 1), at(20, 3));
    let UsageByRole { used, programs, broken } = between(&[&before, &after]);
    assert_eq!(broken, [""; 0]);
    let cpu = used.cpu;
    assert_eq!((cpu.generator, cpu.proxies, cpu.application), (20.0, 120.0, 60.0));
    assert_eq!((cpu.neighbour, cpu.agent, cpu.control), (220.0, 140.0, 160.0));
    assert_eq!(used.proxy_user_ms, 30.0, "user and system are told apart");
    assert_eq!(used.switches, ContextSwitches { voluntary: 120, involuntary: 0 });
    assert_eq!((cpu.machine, cpu.steal, cpu.interrupts), (15_000.0, 1500.0, 0.0));
    assert_eq!((cpu.kernel_threads, used.wall), (Some(10.0), Duration::from_secs(10)));
    assert_eq!(used.elsewhere_ms, 0.0);
    assert_eq!(used.processors, Some(2.0), "of the kernel");
    assert_eq!(programs, KernelPrograms { runs: 10 + 5, ms: 10.0 + 1e-6 });
    assert_eq!((after.proxies(), after.memory_kib()), (2, (400, 50)));
    assert_eq!(after.program_bytes(), Some(1300), "the largest of a proxy");
    let line = lines(&before, &[(Duration::from_secs(2), &after, true)]);
    assert_eq!(line, "2000,400,50,120.0,60.0\n", "since the first");
    assert_eq!(after.proxies_cpus_since(&before), 0.012, "120 ms in 10 s");
}

#[test]
fn nodes_of_one_kernel_count_it_once_and_those_of_two_add_up() {
    let whole = |ms: f64| KernelCounters {
        machine: Machine { busy_ms: ms, processors: 2, ..Machine::default() },
        ..KernelCounters::default()
    };
    let of = |boot_ids: [&str; 2], second: u64| {
        let mut reading = Reading::default();
        for (node, boot_id) in ["n1", "n2"].into_iter().zip(boot_ids) {
            let whole = Some(whole(second as f64 * 100.0));
            let (boot_id, at_us) = (boot_id.to_owned(), second * SECOND);
            reading.add(
                node,
                NodeCounters { boot_id, at_us, whole, ..NodeCounters::default() },
                &[],
            );
        }
        reading
    };
    let used = |ids| between(&[&of(ids, 10), &of(ids, 20)]).used;
    let (one, two) = (used(["k", "k"]), used(["k", "l"]));
    assert_eq!((one.cpu.machine, one.processors), (1000.0, Some(2.0)));
    assert_eq!((two.cpu.machine, two.processors), (2000.0, Some(4.0)));
    assert_eq!((one.wall, two.wall), (Duration::from_secs(10), Duration::from_secs(10)));
}

#[test]
fn threads_of_kernels_that_one_node_does_not_see_are_none() {
    let of = |node: &str, second: u64, kernel_threads_ms| {
        let machine = Machine { processors: 2, ..Machine::default() };
        let whole =
            Some(KernelCounters { machine, kernel_threads_ms, ..KernelCounters::default() });
        let (boot_id, at_us) = (node.to_owned(), second * SECOND);
        let mut reading = Reading::default();
        reading.add(node, NodeCounters { boot_id, at_us, whole, ..NodeCounters::default() }, &[]);
        reading
    };
    let threads = |other: Option<f64>| {
        let (mut before, mut after) = (of("n1", 10, Some(5.0)), of("n1", 20, Some(9.0)));
        before.extend(of("n2", 10, other));
        after.extend(of("n2", 20, other.map(|ms| ms + 2.0)));
        between(&[&before, &after]).used.cpu.kernel_threads
    };
    assert_eq!((threads(Some(1.0)), threads(None)), (Some(6.0), None));
}

/// A reading of one proxy on node `n1`, with or without the whole kernel.
fn of_proxy(second: u64, id: &str, cpu: Cpu, is_whole: bool) -> Reading {
    let mut reading =
        reading(&roles(Mesh::Leno), second, &[("leno-bench-1/client/leno-proxy", id, 0, 100)]);
    reading.containers.get_mut(id).unwrap().processes[0].cpu = cpu;
    if !is_whole {
        reading.kernels.clear();
    }
    reading
}

#[test]
fn a_tick_of_user_time_is_not_counted_beside_what_the_sum_has_grown() {
    let at = |second, user_us, system_us| of_proxy(second, "1", Cpu { user_us, system_us }, true);
    // The run times are 153.2 ms and 155.2 ms; a clock tick has just been assigned to user time.
    let (before, after) = (at(10, 100_000, 53_200), at(13, 110_000, 45_200));
    let used = between(&[&before, &after]).used;
    assert_eq!((used.cpu.proxies, used.proxy_user_ms), (2.0, 2.0));
    assert_eq!(after.proxies_cpus_since(&before), 2.0 / 3000.0);
}

#[test]
fn what_was_used_where_the_machine_is_not_looked_at_is_told_apart() {
    let at = |second, system_us, is_whole| {
        of_proxy(second, "1", Cpu { user_us: 0, system_us }, is_whole)
    };
    let used = |is_whole| between(&[&at(10, 0, is_whole), &at(20, 5000, is_whole)]).used;
    assert_eq!((used(true).cpu.proxies, used(true).elsewhere_ms), (5.0, 0.0));
    assert_eq!((used(false).cpu.proxies, used(false).elsewhere_ms), (5.0, 5.0));
    assert_eq!(used(false).cpu.kernel_threads, None);
}

#[test]
fn samples_of_cpu_never_run_backwards_where_a_proxy_is_killed_or_a_thread_ends() {
    let at =
        |second, id, ms: u64| of_proxy(second, id, Cpu { user_us: 0, system_us: ms * 1000 }, true);
    let before = at(10, "1", 500);
    let readings = [at(11, "1", 520), at(12, "1", 518), at(16, "new", 3), at(17, "new", 8)];
    let mut silent = at(13, "1", 525);
    silent.containers.clear();
    let seconds = |nth: u64| Duration::from_secs(nth);
    let all = [
        (seconds(1), &readings[0], true),
        (seconds(2), &readings[1], true),
        (seconds(3), &silent, false),
        (seconds(6), &readings[2], true),
        (seconds(7), &readings[3], true),
    ];
    let text = lines(&before, &all);
    let wanted = [
        "1000,100,0,20.0,0.0",
        "2000,100,0,20.0,0.0",
        "6000,100,0,23.0,0.0",
        "7000,100,0,28.0,0.0",
    ];
    assert_eq!(text.lines().collect::<Vec<_>>(), wanted);
    let last = &readings[3];
    let used = between(&[&before, &readings[0], &readings[1], &readings[2], last]).used;
    assert_eq!(used.cpu.proxies, 28.0, "as the last line");
}

#[test]
fn memory_under_load_is_the_median_and_the_most_of_all_proxies_together() {
    let roles = roles(Mesh::Leno);
    let at = |client, s0| {
        let pods = [
            ("leno-bench-1/client/leno-proxy", "1", 1, client),
            ("leno-bench-1/s0/leno-proxy", "2", 1, s0),
            ("leno-system/leno-controller-1-a/controller", "3", 1, 7),
        ];
        reading(&roles, 10, &pods)
    };
    let idle = at(100, 50);
    let during = [at(300, 70), at(200, 90), at(200, 80)];
    let during: Vec<&Reading> = during.iter().collect();
    let (proxies, control) = memory(&idle, &during);
    assert_eq!((proxies.idle, proxies.load, proxies.peak), (150, 290, 370));
    assert_eq!((control.idle, control.peak), (7, 7));
    assert_eq!(memory(&idle, &[]).0, RssKib { idle: 150, load: 0, peak: 0 });
}

#[test]
fn a_container_that_ends_or_begins_meanwhile_is_said_and_counts_as_far_as_it_was_seen() {
    let roles = roles(Mesh::Leno);
    let proxy = "leno-bench-1/client/leno-proxy";
    let before = reading(&roles, 10, &[(proxy, "1", 20, 1)]);
    let during = reading(&roles, 14, &[(proxy, "1", 29, 1)]);
    let since = |pods: Pods<'_>| {
        let after = reading(&roles, 20, pods);
        let UsageByRole { used, broken, .. } = between(&[&before, &during, &after]);
        (used.cpu.proxies, broken.join("; "))
    };
    assert_eq!(since(&[(proxy, "1", 30, 1)]), (10.0, String::new()));
    assert_eq!(since(&[]), (9.0, format!("{proxy} has ended meanwhile")));
    let restarted = format!("{proxy} was restarted meanwhile");
    assert_eq!(since(&[(proxy, "new", 2, 1)]), (9.0 + 2.0, restarted));
    let other = "leno-bench-1/s0/leno-proxy";
    // The sum of the proxy has fallen to 20 because a thread has ended.
    let (used, begun) = since(&[(proxy, "1", 20, 1), (other, "new", 1, 1)]);
    assert!(used == 9.0 + 1.0 && begun == format!("{other} has begun meanwhile"), "{used} {begun}");
    // A process that ran before but was seen late does not count with its whole life.
    let (used, _) = since(&[(proxy, "1", 29, 1), (other, "2", 5000, 1)]);
    assert_eq!(used, 9.0);
    // Control planes have tasks that come and go.
    let task = ("leno-system/leno-controller-1-a/controller", "new", 3, 1);
    assert_eq!(since(&[(proxy, "1", 29, 1), task]), (9.0, String::new()));
}

#[test]
fn a_node_that_says_nothing_at_the_end_counts_as_far_as_it_was_seen() {
    let roles = roles(Mesh::Leno);
    let proxy = "leno-bench-1/client/leno-proxy";
    let at = |second, ms| reading(&roles, second, &[(proxy, "1", ms, 1)]);
    let (before, during, nothing) = (at(10, 20), at(14, 90), Reading::default());
    let UsageByRole { used, broken, .. } = between(&[&before, &during, &nothing]);
    assert_eq!((used.cpu.proxies, broken), (70.0, vec![]), "no report shows that it ended");
    // A later report of another node does not replace that of the first.
    let mut later = at(20, 100);
    later.extend(at(21, 100));
    assert_eq!(between(&[&before, &later]).used.wall, Duration::from_secs(10));
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
    let wanted = Watched { role: Role::Proxy, name, node: "n1".into(), id: "ab".into() };
    assert_eq!(found, [wanted]);
    assert_eq!(roles.watched(&pod("n2", "running", "cri-o://ab")), [], "n2 has no watcher");
    assert_eq!(roles.watched(&pod("n1", "terminated", "cri-o://ab")), []);
    assert_eq!(roles.watched(&pod("n1", "running", "")), []);
}
