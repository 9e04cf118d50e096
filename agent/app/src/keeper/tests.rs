//! Tests the keeper with the real kernel. Each test creates a network namespace, a control group and processes.
//! Needs root. Without root a test reports that it is skipped, or fails if `LENO_REQUIRE` contains `root`.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::sync::MutexGuard;
use std::time::Duration;

use leno_capture::Way;

use super::*;
use crate::record::owner;

/// Only one test runs at a time, because pruning reads every captured pod of the machine.
static TURN: Mutex<()> = Mutex::new(());

/// The namespace, control group and processes of one pod. Dropping this removes them.
struct Node {
    _turn: MutexGuard<'static, ()>,
    folder: tempfile::TempDir,
    pod: Pod,
    netns: PathBuf,
    cgroup: PathBuf,
    processes: Vec<Child>,
}

impl Node {
    /// Creates them; `None` without root.
    fn new() -> Option<Self> {
        if !nix::unistd::geteuid().is_root() {
            let required = std::env::var("LENO_REQUIRE").is_ok_and(|all| all.contains("root"));
            assert!(!required, "needs root");
            eprintln!("skipped: needs root");
            return None;
        }
        let turn = lock(&TURN);
        let uid = format!("leno-test-{}", std::process::id());
        let cgroup = leno_capture::cgroup2_root().unwrap().join(&uid).join(format!("pod{uid}"));
        fs::create_dir_all(cgroup.join("sandbox")).unwrap();
        ip(&["netns", "add", &uid]);
        let pod = Pod {
            namespace: "shop".into(),
            name: "web-0".into(),
            uid: uid.clone(),
            workload: "web".into(),
            meshed: true,
            own_network: true,
            has_node_proxies: false,
            flows: None,
            flow_budget: None,
            ended: false,
            served: None,
            capture: None,
            datagrams: None,
            own_users: false,
            sysctls: false,
            account: "default".to_owned(),
            mode: None,
            share: None,
            promotion: None,
            namespace_promotion: None,
            probes: String::new(),
            group: None,
            withdrawn: false,
        };
        let netns = Path::new("/run/netns").join(&uid);
        let folder = tempfile::tempdir().unwrap();
        Some(Self { _turn: turn, folder, pod, netns, cgroup, processes: Vec::new() })
    }

    /// A newly started agent.
    fn agent(&self) -> Keeper {
        let host = Host {
            cgroups: "/sys/fs/cgroup".into(),
            proc: "/proc".into(),
            netns: "/run/netns".into(),
        };
        let records = CaptureRecords::open(&self.folder.path().join("pods")).unwrap();
        let keeper = Keeper::new(host, ProbeReport::probe(), records, Arc::default());
        let keeper = keeper.with_reports(true);
        keeper.take_over();
        keeper
    }

    fn with(mut self, backend: Backend) -> Self {
        self.pod.capture = Some(Ok(CaptureChoice::Only(backend)));
        self
    }

    /// Starts a process in the pod.
    fn start(&mut self) {
        let mut sleep = Command::new("ip");
        sleep.args(["netns", "exec", &self.pod.uid, "sleep", "600"]).stdin(Stdio::null());
        let child = sleep.spawn().unwrap();
        let list = self.cgroup.join("sandbox/cgroup.procs");
        fs::write(list, child.id().to_string()).unwrap();
        self.processes.push(child);
    }

    /// Has a process of the pod try to connect to an address to which there is no route.
    fn connect(&self) {
        let (group, uid) = (self.cgroup.join("sandbox/cgroup.procs"), &self.pod.uid);
        let connect = "exec 3<>/dev/tcp/192.0.2.1/80";
        let script =
            format!("echo $$ >{}; exec ip netns exec {uid} bash -c '{connect}'", group.display());
        let mut shell = Command::new("sh");
        let tried = shell.args(["-c", &script]).stderr(Stdio::null()).status().unwrap();
        assert!(!tried.success());
    }

    fn end_processes(&mut self) {
        for mut child in self.processes.drain(..) {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    fn delete_netns(&self) {
        ip(&["netns", "delete", &self.pod.uid]);
    }

    fn records(&self) -> usize {
        fs::read_dir(self.folder.path().join("pods")).unwrap().count()
    }

    /// Whether kernel programs are pinned for the pod.
    fn is_pinned(&self) -> bool {
        let workload = leno_capture::CaptureTarget {
            name: owner(&self.pod.uid),
            netns: self.netns.clone(),
            cgroup: self.cgroup.clone(),
            proxy_cgroup: self.cgroup.clone(),
            proxy_process: None,
            fail_closed: true,
            excluded: Vec::new(),
            proxy_uid: 2102,
            datagrams: Default::default(),
        };
        Captured::adopt(&workload).unwrap().is_some()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.end_processes();
        leno_capture::prune(|name| name != owner(&self.pod.uid)).unwrap();
        if self.netns.exists() {
            self.delete_netns();
        }
        let parent = self.cgroup.parent().unwrap();
        for directory in [&self.cgroup.join("sandbox"), &self.cgroup, parent] {
            if let Err(error) = fs::remove_dir(directory) {
                eprintln!("rmdir {}: {error}", directory.display());
            }
        }
    }
}

fn ip(arguments: &[&str]) {
    assert!(Command::new("ip").args(arguments).status().unwrap().success(), "ip {arguments:?}");
}

fn says(keeper: &Keeper, line: &str) -> bool {
    keeper.metrics().lines().any(|found| found == line)
}

#[test]
fn a_captured_pod_is_taken_over_and_released_with_its_sandbox() {
    for backend in [Backend::Ebpf, Backend::Nftables] {
        let Some(node) = Node::new() else { return };
        let node = node.with(backend);
        let first = node.agent();
        assert_eq!(first.add(&node.pod, &node.netns, "sandbox").unwrap(), backend);
        assert!(leno_capture::is_marked(&node.netns).unwrap());
        assert_eq!(node.is_pinned(), backend == Backend::Ebpf);
        drop(first);

        let next = node.agent();
        assert!(next.is_captured(&node.pod.uid));
        let series =
            format!("leno_agent_captures_total{{backend=\"{backend}\",origin=\"taken_over\"}} 1");
        assert!(says(&next, &series), "{series}");
        assert!(says(&next, &format!("leno_agent_pods_captured{{backend=\"{backend}\"}} 1")));
        let held = next.held().remove(&node.pod.uid).unwrap().unwrap();
        assert_eq!((held.backend, held.origin), (backend, CaptureOrigin::TakenOver));
        assert!(held.since_unix_s.is_some() && held.passes.inbound_ports == [15020], "{held:?}");
        assert_eq!(next.connections(&node.pod.uid).unwrap()["inbound_captured"], 0);
        next.prune();
        next.delete(&node.pod.uid, "an earlier sandbox of the same pod");
        assert!(next.is_captured(&node.pod.uid));
        next.delete(&node.pod.uid, "sandbox");
        assert!(!next.is_captured(&node.pod.uid));
        assert_eq!((node.records(), node.is_pinned()), (0, false));
    }
}

#[test]
fn a_pod_whose_namespace_is_gone_is_forgotten_also_by_the_next_agent() {
    for restart in [false, true] {
        let Some(node) = Node::new() else { return };
        let node = node.with(Backend::Ebpf);
        let mut agent = node.agent();
        agent.add(&node.pod, &node.netns, "sandbox").unwrap();
        node.delete_netns();
        if restart {
            agent = node.agent();
        }
        agent.prune();
        assert!(!agent.is_captured(&node.pod.uid));
        assert_eq!((node.records(), node.is_pinned()), (0, false), "restart: {restart}");
    }
}

#[test]
fn a_sandbox_that_is_made_again_is_captured_again() {
    let Some(node) = Node::new() else { return };
    let node = node.with(Backend::Ebpf);
    let agent = node.agent();
    agent.add(&node.pod, &node.netns, "first").unwrap();
    node.delete_netns();
    ip(&["netns", "add", &node.pod.uid]);
    agent.add(&node.pod, &node.netns, "second").unwrap();
    assert!(leno_capture::is_marked(&node.netns).unwrap());
    agent.delete(&node.pod.uid, "first");
    assert!(agent.is_captured(&node.pod.uid), "the first one's end is late");
}

#[test]
fn a_pod_that_runs_already_is_found_by_its_processes() {
    let Some(mut node) = Node::new() else { return };
    let agent = node.agent();
    agent.reconcile(&node.pod).unwrap();
    assert!(!agent.is_captured(&node.pod.uid), "nothing runs in it yet");
    node.start();
    // `ip netns exec` enters the namespace some time after it was started, so this waits.
    let entered =
        || NetnsId::of(&node.netns) == agent.host.netns_of(&node.pod.uid).map(|(_, id)| id);
    while !entered() {
        std::thread::yield_now();
    }
    agent.reconcile(&node.pod).unwrap();
    assert!(says(&agent, "leno_agent_captures_total{backend=\"ebpf\",origin=\"reconciled\"} 1"));
    let mut ended = node.pod.clone();
    ended.ended = true;
    agent.reconcile(&ended).unwrap();
    assert!(agent.is_captured(&node.pod.uid), "its processes may go on for a while");
    // Simulates a pod whose own kernel parameters the kubelet writes after it has called the plugin.
    node.pod.sysctls = true;
    leno_capture::unmark(&node.netns).unwrap();
    agent.reconcile(&node.pod).unwrap();
    assert!(leno_capture::is_marked(&node.netns).unwrap());
}

#[test]
fn the_ways_that_are_open_to_a_captured_pod_are_those_of_its_processes() {
    for backend in [Backend::Ebpf, Backend::Nftables, Backend::Iptables] {
        let Some(node) = Node::new() else { return };
        let mut node = node.with(backend);
        let agent = node.agent();
        let uid = node.pod.uid.clone();
        assert_eq!(agent.open_ways(&uid), None, "it is not captured");
        agent.add(&node.pod, &node.netns, "sandbox").unwrap();
        let open = |way| {
            let open = agent.open_ways(&uid).unwrap();
            assert_eq!(open.unknown, [""; 0], "{backend}");
            open.ways.into_iter().find(|one| one.way == way).map(|one| one.by)
        };
        assert_eq!(open(Way::Datagrams), Some(Vec::new()), "{backend}");
        assert_eq!(open(Way::RawSockets), None, "{backend}: nothing runs in it yet");
        node.start();
        let entered = || NetnsId::of(&node.netns) == agent.host.netns_of(&uid).map(|(_, id)| id);
        while !entered() {
            std::thread::yield_now();
        }
        let process = format!("{} ", node.processes[0].id());
        // With every backend, a pod's proxy is recognised by its user.
        for way in [Way::RawSockets, Way::NetworkSettings, Way::ProxyUser] {
            let by = open(way).unwrap_or_default();
            assert!(matches!(&by[..], [one] if one.starts_with(&process)), "{backend}: {by:?}");
        }
        assert_eq!(open(Way::ControlGroups).is_some(), backend == Backend::Ebpf);
    }
}

#[test]
fn a_pod_gets_what_it_can_have_or_the_reason() {
    let Some(mut node) = Node::new() else { return };
    let agent = node.agent();
    node.pod.own_users = true;
    assert_eq!(agent.add(&node.pod, &node.netns, "a").unwrap(), Backend::Nftables);
    node.pod.capture = Some(Ok(CaptureChoice::Only(Backend::Ebpf)));
    let why = agent.add(&node.pod, &node.netns, "b").unwrap_err().to_string();
    assert!(why.contains("hostUsers"), "{why}");
    assert_eq!(node.records(), 0);
    node.pod.capture = Some("tproxy".parse::<CaptureChoice>());
    let why = agent.add(&node.pod, &node.netns, "c").unwrap_err().to_string();
    assert!(why.contains("tproxy"), "{why}");
    assert!(says(&agent, "leno_agent_capture_failures_total{reason=\"annotation\"} 1"));
    assert!(says(&agent, "leno_agent_pods_failing 1"));
    let failure = agent.failures().remove(&node.pod.uid).unwrap();
    assert_eq!((failure.times, failure.reason), (2, FailureReason::Annotation));
    assert!(failure.why.contains("tproxy"), "{failure:?}");
    assert!(agent.held().is_empty() && agent.connections(&node.pod.uid).is_none());
    agent.reconcile(&node.pod).unwrap();
    assert_eq!(agent.failures().len(), 1, "nothing of it runs, and the plugin's word holds");
    node.pod.capture = Some(Ok(CaptureChoice::Only(Backend::Nftables)));
    agent.add(&node.pod, &node.netns, "d").unwrap();
    assert!(agent.failures().is_empty());
    agent.delete(&node.pod.uid, "d");
}

#[test]
fn a_node_that_leaves_the_mesh_has_nothing_of_it() {
    let Some(node) = Node::new() else { return };
    let node = node.with(Backend::Nftables);
    node.agent().add(&node.pod, &node.netns, "sandbox").unwrap();
    assert_eq!(node.agent().release_all(), (1, Vec::new()));
    assert!(!leno_capture::is_marked(&node.netns).unwrap());
    assert_eq!(node.records(), 0);
}

#[test]
fn what_cannot_be_released_is_said_and_stays_recorded() {
    let Some(node) = Node::new() else { return };
    let node = node.with(Backend::Ebpf);
    let agent = node.agent();
    agent.add(&node.pod, &node.netns, "sandbox").unwrap();
    let mut record = agent.records.of(&node.pod.uid).unwrap();
    record.backend = "of the next version".to_owned();
    agent.records.write(&record).unwrap();
    let (released, left) = node.agent().release_all();
    assert_eq!((released, node.records(), node.is_pinned()), (0, 1, true));
    assert!(left[0].contains("of the next version"), "{left:?}");
    // A missing control group is not an error, because it means that the pod has just ended.
    record.backend = "ebpf".to_owned();
    record.cgroup = Some("/nonexistent".into());
    agent.records.write(&record).unwrap();
    assert_eq!(node.agent().release_all(), (1, Vec::new()));
    assert_eq!((node.records(), node.is_pinned()), (0, false));
}

#[test]
fn an_agent_that_ended_before_the_mark_is_followed_by_one_that_makes_it() {
    for backend in [Backend::Ebpf, Backend::Nftables] {
        let Some(node) = Node::new() else { return };
        let node = node.with(backend);
        node.agent().add(&node.pod, &node.netns, "sandbox").unwrap();
        leno_capture::unmark(&node.netns).unwrap();
        let next = node.agent();
        assert!(leno_capture::is_marked(&node.netns).unwrap(), "{backend}");
        assert!(next.is_captured(&node.pod.uid));
    }
}

#[test]
fn a_pod_that_is_known_by_a_process_stays_captured_when_that_ends() {
    let Some(mut node) = Node::new() else { return };
    let mut agent = node.agent();
    // Simulates a node whose runtime keeps no namespace files where the agent searches for them.
    agent.host.netns = node.folder.path().into();
    for number in 1..=2 {
        node.start();
        let id = NetnsId::of(&node.netns);
        let pid = node.processes.last().unwrap().id();
        while NetnsId::of(Path::new(&format!("/proc/{pid}/ns/net"))) != id {
            std::thread::yield_now();
        }
        if number == 1 {
            agent.reconcile(&node.pod).unwrap();
        }
    }
    let mut first = node.processes.remove(0);
    first.kill().unwrap();
    first.wait().unwrap();
    agent.prune();
    assert!(node.is_pinned());
    assert_eq!(node.records(), 1);
    agent.reconcile(&node.pod).unwrap();
    assert!(agent.is_captured(&node.pod.uid));
    assert!(says(&agent, "leno_agent_captures_total{backend=\"ebpf\",origin=\"reconciled\"} 1"));
    let kept = agent.records.of(&node.pod.uid).unwrap();
    assert!(kept.is_alive(), "{kept:?}");
    agent.delete(&node.pod.uid, "another sandbox");
    assert!(node.is_pinned());
    node.end_processes();
    agent.prune();
    assert_eq!((node.records(), node.is_pinned()), (0, false));
}

#[test]
fn the_mark_of_another_program_is_removed_before_a_capture() {
    let Some(mut node) = Node::new() else { return };
    let agent = node.agent();
    leno_capture::mark(&node.netns).unwrap();
    node.pod.capture = Some(Ok(CaptureChoice::Only(Backend::Ebpf)));
    let cgroup = std::mem::replace(&mut node.pod.uid, "nobody".to_owned());
    agent.add(&node.pod, &node.netns, "sandbox").unwrap_err();
    node.pod.uid = cgroup;
    assert!(!leno_capture::is_marked(&node.netns).unwrap());
}

/// Regression: the connections of a running pod were refused from its capture until its broker listened, and waited until its
/// node proxy had a certificate.
#[test]
fn a_running_pod_keeps_its_connections_until_a_node_proxy_accepts_them() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    for backend in [Backend::Ebpf, Backend::Nftables] {
        let Some(node) = Node::new() else { return };
        let mut node = node.with(backend);
        node.pod.group = Some("web".to_owned());
        node.start();
        let uid = node.pod.uid.clone();
        let brokers = crate::brokers::tests::of_runtime(runtime.handle());
        let agent = node.agent().with_brokers(Arc::clone(&brokers));
        while agent.host.netns_of(&uid).is_none_or(|(_, id)| Some(id) != NetnsId::of(&node.netns)) {
            std::thread::yield_now();
        }
        agent.reconcile(&node.pod).unwrap_err();
        assert!(agent.is_captured(&uid));
        assert!(agent.complete(&uid).unwrap_err().contains("does not accept its connections yet"));
        let counted = |agent: &Keeper, counter: &str| {
            let connections = agent.connections(&uid).unwrap();
            connections.get(counter).copied()
        };
        node.connect();
        match backend {
            Backend::Ebpf => assert_eq!(counted(&agent, "outbound_passed_open"), Some(1)),
            _ => assert!(agent.connections(&uid).unwrap().is_empty(), "there are no rules"),
        }
        // An agent that is updated meanwhile leaves it so.
        drop(agent);
        let agent = node.agent().with_brokers(Arc::clone(&brokers));
        node.connect();
        match backend {
            Backend::Ebpf => assert_eq!(counted(&agent, "outbound_passed_open"), Some(2)),
            _ => assert!(agent.connections(&uid).unwrap().is_empty(), "there are no rules"),
        }
        let _supervisor =
            runtime.block_on(crate::brokers::tests::serving_supervisor(&brokers, &uid));
        agent.complete(&uid).unwrap();
        agent.reconcile(&node.pod).unwrap();
        node.connect();
        match backend {
            Backend::Ebpf => assert_eq!(counted(&agent, "outbound_refused"), Some(1)),
            _ => assert!(!agent.connections(&uid).unwrap().is_empty(), "there are rules"),
        }
        drop(agent);
        let agent = node.agent();
        let kept = agent.records.of(&uid).unwrap();
        assert!(!kept.entering, "{kept:?}");
    }
}

/// Has the step of a pod that leaves node mode begun this long ago.
fn age(agent: &Keeper, uid: &str, by: Duration) {
    let place = agent.place(uid);
    let mut place = lock(&place);
    let leaving = &mut place.0.as_mut().unwrap().leaving;
    let (Leaving::Heard(since) | Leaving::Passing(since) | Leaving::Finishing(since)) =
        leaving.as_mut().unwrap();
    *since = since.checked_sub(by).unwrap();
}

fn stage(agent: &Keeper, uid: &str) -> Option<&'static str> {
    let place = agent.place(uid);
    let place = lock(&place);
    Some(match place.0.as_ref()?.leaving {
        None => "stays",
        Some(Leaving::Heard(_)) => "heard",
        Some(Leaving::Passing(_)) => "passing",
        Some(Leaving::Finishing(_)) => "finishing",
    })
}

#[test]
fn a_pod_that_its_namespace_withdraws_is_released_once_other_proxies_have_heard_of_it() {
    for (backend, restart) in
        [(Backend::Ebpf, false), (Backend::Ebpf, true), (Backend::Nftables, false)]
    {
        let Some(node) = Node::new() else { return };
        let mut node = node.with(backend);
        node.start();
        let uid = node.pod.uid.clone();
        let mut agent = node.agent();
        agent.add(&node.pod, &node.netns, "sandbox").unwrap();
        let reported = |served| Pod {
            meshed: false,
            withdrawn: true,
            served: Some(served),
            ..node.pod.clone()
        };
        let step = |agent: &Keeper, served: bool| {
            agent.reconcile(&reported(served)).unwrap();
            stage(agent, &uid)
        };
        assert_eq!(step(&agent, true), Some("stays"), "other proxies send mTLS");
        assert_eq!(step(&agent, false), Some("heard"));
        // The label comes back.
        agent.reconcile(&node.pod).unwrap();
        assert_eq!(stage(&agent, &uid), Some("stays"));
        assert_eq!(step(&agent, false), Some("heard"));
        assert_eq!(step(&agent, false), Some("heard"), "not all may have heard of it");
        node.connect();
        let refused = |agent: &Keeper| agent.connections(&uid).unwrap().remove("outbound_refused");
        age(&agent, &uid, leave::HEARD);
        assert_eq!(step(&agent, false), Some("passing"));
        let before = refused(&agent);
        node.connect();
        match backend {
            Backend::Ebpf => assert_eq!((before, refused(&agent)), (Some(1), Some(1))),
            _ => assert!(agent.connections(&uid).unwrap().is_empty(), "there are no rules"),
        }
        assert_eq!(step(&agent, false), Some("passing"), "its queues are not empty");
        if restart {
            drop(agent);
            agent = node.agent();
        } else {
            age(&agent, &uid, leave::ACCEPTED);
            assert_eq!(step(&agent, false), Some("finishing"));
            assert!(agent.is_captured(&uid), "for what the proxy finishes");
            age(&agent, &uid, leave::FINISHED);
            assert_eq!(step(&agent, false), None);
        }
        assert!(!agent.is_captured(&uid));
        assert_eq!((node.records(), node.is_pinned()), (0, false));
        assert_eq!(step(&agent, false), None, "it is released once");
    }
}

#[test]
fn a_pod_that_comes_back_while_its_connections_pass_is_captured_again() {
    for steps in [1, 2] {
        let Some(mut node) = Node::new() else { return };
        node.start();
        let uid = node.pod.uid.clone();
        let agent = node.agent();
        agent.add(&node.pod, &node.netns, "sandbox").unwrap();
        let withdrawn =
            Pod { meshed: false, withdrawn: true, served: Some(false), ..node.pod.clone() };
        agent.reconcile(&withdrawn).unwrap();
        for by in [leave::HEARD, leave::ACCEPTED].into_iter().take(steps) {
            age(&agent, &uid, by);
            agent.reconcile(&withdrawn).unwrap();
        }
        assert_ne!(stage(&agent, &uid), Some("stays"));
        agent.reconcile(&node.pod).unwrap();
        assert_eq!(stage(&agent, &uid), Some("stays"));
        let kept = agent.records.of(&uid).unwrap();
        assert!(!kept.leaving && node.is_pinned(), "{kept:?}");
    }
}
