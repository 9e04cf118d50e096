//! Tests the accounting with the real kernel, for a network namespace with an interface to the present one. Needs
//! root. Without root a test reports that it is skipped, or fails if `LENO_REQUIRE` contains `root`.

use std::process::Command;
use std::slice::from_ref;

use leno_flows::{CpuBudget, FlowSizes};

use super::*;

/// A pod's network namespace. Dropping this removes it.
struct Sandbox {
    name: String,
    /// The name of the outer end of its interface.
    outer: String,
}

impl Sandbox {
    fn new() -> Self {
        let id = std::process::id();
        let one = Self { name: format!("leno-test-flows-{id}"), outer: format!("lf{id}") };
        ip(&["netns", "add", &one.name]);
        ip(&[
            "link", "add", &one.outer, "type", "veth", "peer", "name", "eth0", "netns", &one.name,
        ]);
        ip(&["link", "set", &one.outer, "up"]);
        ip(&["-n", &one.name, "addr", "add", "10.79.0.1/24", "dev", "eth0"]);
        ip(&["-n", &one.name, "link", "set", "eth0", "up"]);
        one
    }

    fn netns(&self) -> PathBuf {
        Path::new("/run/netns").join(&self.name)
    }

    fn place(&self) -> Option<(PathBuf, NetnsId)> {
        Some((self.netns(), NetnsId::of(&self.netns())?))
    }

    /// Sends to an address that no host has. The kernel then sends a frame that asks which host has it.
    fn send(&self) {
        let text = "for i in 1 2 3; do echo > /dev/udp/10.79.0.9/9; done 2>&1; ip neigh flush all";
        let mut inside = Command::new("ip");
        inside.args(["netns", "exec", &self.name, "bash", "-c", text]);
        assert!(inside.status().unwrap().success());
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        // Fails if a test has already removed the namespace.
        let _gone = Command::new("ip").args(["netns", "delete", &self.name]).status();
    }
}

fn ip(arguments: &[&str]) {
    assert!(Command::new("ip").args(arguments).status().unwrap().success(), "ip {arguments:?}");
}

fn pod(flows: Option<&str>) -> Pod {
    let pod = r#"{"metadata":{"name":"web-7d9-x","namespace":"shop","uid":"u",
        "labels":{"pod-template-hash":"7d9"},
        "ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"web-7d9","uid":"r","controller":true}]},
        "spec":{"containers":[{"name":"leno-proxy"}]}}"#;
    let mut pod = Pod::new(&serde_json::from_str(pod).unwrap());
    pod.flows = flows.map(str::parse);
    pod
}

fn agent(node: &str, source: FlowMetricsSource) -> Flows {
    let settings =
        LedgerSettings { source, sizes: FlowSizes::default(), budget: Some(CpuBudget::default()) };
    Flows::start(node, Some(&leno_capture::cgroup2_root().unwrap()), settings)
}

/// How many frames the workload has sent, according to the agent's metrics.
fn frames(flows: &Flows) -> u64 {
    let text = flows.metrics();
    let lines = text.lines().filter(|line| {
        line.starts_with("leno_flow_segments_total{namespace=\"shop\",workload=\"web\",")
            && line.contains("socket=\"wire\"")
            && line.contains("direction=\"sent\"")
    });
    lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
}

/// Waits until more than `before` frames are counted.
fn more_than(flows: &Flows, before: u64, sandbox: &Sandbox) -> u64 {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    loop {
        sandbox.send();
        let now = frames(flows);
        if now > before {
            return now;
        }
        assert!(std::time::Instant::now() < deadline, "{before} frames: {}", flows.metrics());
    }
}

/// The requests of a pod in node mode are counted by processes of other pods, which appear and disappear.
fn reads_node_proxies(agent: &Flows, sandbox: &Sandbox) {
    let labelled = |uid: &str, labels: &str| {
        let text = format!(
            r#"{{"metadata":{{"name":"{uid}","namespace":"shop","uid":"{uid}","labels":{{{labels}}}}},"spec":{{"containers":[]}}}}"#
        );
        Pod::new(&serde_json::from_str(&text).unwrap()).within(None)
    };
    let in_node_mode = labelled("n", r#""leno.dev/inject":"enabled","leno.dev/mode":"node""#);
    let supervisor = labelled("s", r#""app.kubernetes.io/name":"leno-node""#);
    let folder = tempfile::tempdir().unwrap();
    let (own, shared) = (PathBuf::from("/own"), folder.path().to_owned());
    let read = || {
        agent.follow(&in_node_mode, || sandbox.place(), || Some(own.clone()));
        lock(&agent.0.as_ref().unwrap().pods)["n"].proxies.clone()
    };
    assert_eq!(read(), from_ref(&own));
    agent.follow(&supervisor, || None, || Some(shared.clone()));
    assert_eq!(read(), [own.clone(), shared.clone()]);
    agent.follow(&pod(None), || sandbox.place(), || Some(own.clone()));
    assert_eq!(lock(&agent.0.as_ref().unwrap().pods)["u"].proxies, from_ref(&own), "a sidecar");
    drop(folder);
    agent.round();
    assert_eq!(read(), from_ref(&own));
}

#[test]
fn pods_are_accounted_for_by_what_made_them_from_one_agent_to_the_next() {
    if !nix::unistd::geteuid().is_root() {
        let required = std::env::var("LENO_REQUIRE").is_ok_and(|all| all.contains("root"));
        assert!(!required, "needs root");
        eprintln!("skipped: needs root");
        return;
    }
    let sandbox = Sandbox::new();
    let node = format!("test-{}.example.com", std::process::id());
    let first = agent(&node, FlowMetricsSource::Sockets);
    first.follow(&pod(Some("all")), || sandbox.place(), || None);
    assert_eq!(frames(&first), 0, "an annotation that is not understood leaves the default");
    let why = lock(&first.0.as_ref().unwrap().pods)["u"].failed.clone().unwrap();
    assert!(why.contains("\"all\" is not a source of flow metrics"), "{why}");
    first.follow(&pod(Some("packets")), || sandbox.place(), || None);
    let counted = more_than(&first, 0, &sandbox);
    let page: serde_json::Value =
        serde_json::from_str(&first.page(super::listed).unwrap().unwrap()).unwrap();
    let listed = page["flows"].as_array().unwrap();
    let is_of_web =
        |flow: &serde_json::Value| flow["workload"] == "web" && flow["socket"] == "wire";
    assert!(listed.iter().any(is_of_web), "{page}");
    let read: Vec<leno_flows::FlowConnection> =
        serde_json::from_value(page["flows"].clone()).unwrap();
    assert_eq!(
        serde_json::to_value(&read).unwrap(),
        page["flows"],
        "as leno flows --node reads it"
    );
    assert_eq!(
        first.page(|view| view.requests().map(|rows| super::json(&rows))).unwrap().unwrap(),
        "[]\n"
    );
    drop(first);

    // Without an agent the kernel continues to count. The next agent keeps the counts of pods that it has not seen
    // yet.
    sandbox.send();
    let next = agent(&node, FlowMetricsSource::Sockets);
    let counted = more_than(&next, counted, &sandbox);
    next.follow(&pod(Some("packets")), || sandbox.place(), || None);
    next.settle();
    let counted = more_than(&next, counted, &sandbox);
    drop(next);

    // The pod has ended while no agent ran.
    let last = agent(&node, FlowMetricsSource::Sockets);
    last.settle();
    let settled = frames(&last);
    assert!(settled >= counted);
    sandbox.send();
    assert_eq!(frames(&last), settled);

    reads_node_proxies(&last, &sandbox);
    last.follow(&pod(None), || sandbox.place(), || None);
    assert!(lock(&last.0.as_ref().unwrap().pods).contains_key("u"));
    ip(&["netns", "delete", &sandbox.name]);
    last.round();
    assert!(lock(&last.0.as_ref().unwrap().pods).is_empty());
    drop(last);

    let off = agent(&node, FlowMetricsSource::Off);
    assert_eq!(off.metrics(), "");
    assert!(off.page(super::listed).is_none());
    assert!(!remove().unwrap().contains(&owner(&node)), "off has removed the programs");
}
