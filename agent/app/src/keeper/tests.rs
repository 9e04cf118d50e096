//! Tests the keeper with the real kernel. Each test creates a network namespace, a control group and processes.
//! Needs root. Without root a test reports that it is skipped, or fails if `LENO_REQUIRE` contains `root`.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::sync::MutexGuard;

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
