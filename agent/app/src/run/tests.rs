//! Tests the agent's rounds with a paused clock, and with files that stand for a node.

use std::fs;

use http_body_util::BodyExt as _;
use leno_capture::CaptureChoice;

use super::*;
use crate::admin::wanted;

/// A keeper of a node on which one process of the pod `u` runs, in a namespace of its own.
pub(crate) fn keeper_of_one(folder: &Path) -> Keeper {
    let cgroup = folder.join("cgroup/pids/kubepods/podu");
    fs::create_dir_all(&cgroup).unwrap();
    fs::write(cgroup.join("cgroup.procs"), "1\n").unwrap();
    let namespace = folder.join("proc/1/ns");
    fs::create_dir_all(&namespace).unwrap();
    fs::write(namespace.join("net"), "").unwrap();
    let host = Host {
        cgroups: folder.join("cgroup"),
        proc: folder.join("proc"),
        netns: folder.join("netns"),
    };
    let report = ProbeReport {
        kernel: String::new(),
        btf: false,
        cgroup2: String::new(),
        bpffs: String::new(),
        capabilities: Vec::new(),
        backends: Vec::new(),
        chosen: None,
        why: String::new(),
    };
    let records = CaptureRecords::open(&folder.join("pods")).unwrap();
    Keeper::new(host, report, records, Arc::default())
}

/// The source of pods of a node whose API server does not answer.
pub(crate) fn cluster() -> PodSource {
    PodSource {
        client: leno_kube::connect_to("http://127.0.0.1:1".parse().unwrap()).unwrap(),
        node: "n1".to_owned(),
        pods: Arc::default(),
        metrics: Arc::default(),
    }
}

fn pod() -> Pod {
    Pod {
        namespace: "shop".into(),
        name: "web-0".into(),
        uid: "u".into(),
        workload: "web".into(),
        meshed: true,
        own_network: true,
        has_node_proxies: false,
        flows: None,
        flow_budget: None,
        ended: false,
        served: None,
        // No machine has this backend, so the capture fails.
        capture: Some("tproxy".parse::<CaptureChoice>()),
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
    }
}

/// How many captures have failed.
fn failures(keeper: &Keeper) -> u64 {
    let text = keeper.metrics();
    let series = "leno_agent_capture_failures_total{reason=\"annotation\"} ";
    let found = text.lines().find_map(|line| line.strip_prefix(series));
    found.map_or(0, |count| count.parse().unwrap())
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_failed_once_leaves_the_agent_unready_and_one_that_always_fails_does_not() {
    let folder = tempfile::tempdir().unwrap();
    let keeper = Arc::new(keeper_of_one(folder.path()));
    let cluster = cluster();
    cluster.pods.take(leno_kube::Event::Apply(pod()));
    let (sender, changed) = mpsc::channel(MAX_CHANGES);
    sender.send(PodChange::Pod(Box::new(pod()))).await.unwrap();
    sender.send(PodChange::Listed).await.unwrap();
    let retry = Arc::<Mutex<RetryQueue>>::default();
    let admin = Admin {
        node: "n1".to_owned(),
        keeper: Arc::clone(&keeper),
        flows: Arc::default(),
        pods: Arc::clone(&cluster.pods),
        retry: Arc::clone(&retry),
        installs: false,
        turn: tokio::sync::Mutex::default(),
    };
    let (_no_broker, ended) = mpsc::channel(1);
    let rounds = tokio::spawn(reconcile(
        (changed, ended),
        cluster,
        (Arc::clone(&keeper), Arc::default()),
        retry,
    ));
    let is_ready = || keeper.metrics.reconciled.load(Ordering::Relaxed);
    while failures(&keeper) < 2 {
        assert!(!is_ready(), "after {} failures", failures(&keeper));
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert!(!is_ready());
    while !is_ready() {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(failures(&keeper), 3);

    let ask = |client: [u8; 4], query| match wanted(client.into(), query) {
        Ok(wanted) => admin.captures(wanted.as_ref()),
        Err(refused) => *refused,
    };
    let page = ask([127, 0, 0, 1], Some("pod=shop/web-0"));
    assert_eq!(page.status(), 200);
    let body = page.into_body().collect().await.unwrap().to_bytes();
    let page: serde_json::Value = serde_json::from_slice(&body).unwrap();
    let [pod] = &page["pods"].as_array().unwrap()[..] else { panic!("{page}") };
    assert_eq!((&pod["state"], &pod["failure"]["times"]), (&"failed".into(), &3.into()));
    assert!(pod["failure"]["why"].as_str().unwrap().contains("tproxy"), "{pod}");
    assert!(pod["failure"]["next_s"].is_u64(), "{pod}");
    for (client, query, status) in [
        ([10, 0, 0, 1], None, 403),
        ([127, 0, 0, 1], Some("web-0"), 400),
        ([127, 0, 0, 1], None, 200),
    ] {
        assert_eq!(ask(client, query).status(), status, "{client:?} {query:?}");
    }
    let flows = crate::admin::KernelPage::of("/flows").unwrap().answer(&admin.flows);
    assert_eq!(flows.status(), 409, "this node accounts for none");
    drop(sender);
    rounds.await.unwrap();
}
