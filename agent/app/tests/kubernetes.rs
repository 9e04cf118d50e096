//! Tests the real agent with a real API server and etcd, through kinds of outages: the connection to the server is cut,
//! the server restarts, and the agent may not read the namespaces.
//!
//! A further test has the API server decide what an agent may write into the status of pods.
//!
//! Needs `CLUSTER_KUBE` (`scripts/cluster.sh api`). Without the variable, the test reports that it is skipped, or
//! fails if `LENO_REQUIRE` contains `kubernetes`. The agent has no capability here, so it captures no pod and does
//! not change the machine.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use leno_charts::{NAMESPACE, Values};
use leno_cni::protocol::{CniCommand, PluginRequest, ask};
use leno_kube::Api;
use leno_kube::api::{Patch, PatchParams};
use leno_testkit_api::objects::pod;
use leno_testkit_api::{Relay, TestApiServer, binary, until};
use serde_json::{Value, json};

/// The name of the agent's node.
const NODE: &str = "n1";

/// Longest wait for an answer to the CNI plugin.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// A running agent. Dropping this kills it.
struct Agent {
    child: Child,
    socket: PathBuf,
    log: PathBuf,
}

impl Agent {
    fn start(directory: &Path, kubeconfig: &Path) -> Self {
        let log = directory.join("agent.log");
        // The agent runs without capabilities. Only root has any, and only root can drop them in this way.
        let mut command = if nix::unistd::geteuid().is_root() {
            let mut command = Command::new("setpriv");
            command.args(["--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]);
            command.arg(env!("CARGO_BIN_EXE_leno-agent"));
            command
        } else {
            Command::new(env!("CARGO_BIN_EXE_leno-agent"))
        };
        let child = command
            .args(["--node", NODE, "--admin", "127.0.0.1:0"])
            .args([Path::new("--kubeconfig"), kubeconfig])
            .args([Path::new("--state"), &directory.join("state")])
            .args([Path::new("--cgroups"), &directory.join("cgroups")])
            .env("NO_COLOR", "1")
            .stdin(Stdio::null())
            .stderr(std::fs::File::create(&log).unwrap())
            .spawn()
            .unwrap();
        Self { child, socket: directory.join("state/agent.sock"), log }
    }

    /// Why a pod of the shop may not start; `None` if it may. The plugin has seen from the pod's volumes whether it has a
    /// proxy.
    fn refuses(&self, pod: &str, has_proxy: Option<bool>) -> Option<String> {
        let request = PluginRequest {
            command: CniCommand::Add,
            container: "sandbox".to_owned(),
            netns: Some("/nonexistent".into()),
            namespace: "shop".to_owned(),
            pod: pod.to_owned(),
            uid: None,
            has_proxy,
        };
        ask(&self.socket, &request, ANSWER_LIMIT).unwrap().error
    }

    async fn page(&self, path: &str) -> String {
        let address = until("the agent serves its pages", async || {
            let log = std::fs::read_to_string(&self.log).unwrap();
            let line = log.lines().find(|line| line.contains("serving /metrics"))?;
            Some(line.split("address=").nth(1)?.split_whitespace().next()?.to_owned())
        })
        .await;
        let mut stream = TcpStream::connect(address).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// Whether the agent reports that it follows the node's pods.
    async fn follows(&self) -> bool {
        self.page("/metrics").await.contains("\nleno_agent_pods_followed 1\n")
    }

    /// The meshed pods that the agent has cached, each with the capture that it asks for.
    async fn captures(&self) -> BTreeMap<String, String> {
        let answer = self.page("/captures").await;
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        let page: Value = serde_json::from_str(body).unwrap();
        let text = |pod: &Value, field: &str| pod[field].as_str().unwrap().to_owned();
        let pods = page["pods"].as_array().unwrap().iter();
        pods.map(|pod| (text(pod, "name"), text(pod, "asks"))).collect()
    }

    /// The meshed pods that the agent has cached.
    async fn pods(&self) -> BTreeSet<String> {
        self.captures().await.into_keys().collect()
    }

    async fn sees(&self, names: &[&str]) {
        let wanted: BTreeSet<String> = names.iter().map(|name| (*name).to_owned()).collect();
        until(&format!("the agent has {names:?}"), async || {
            (self.pods().await == wanted).then_some(())
        })
        .await;
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // Fails if the agent has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("{}", std::fs::read_to_string(&self.log).unwrap_or_default());
        }
    }
}

fn of_node(name: &str, node: &str) -> Value {
    let mut pod = pod(name, "10.244.0.7");
    pod["spec"]["nodeName"] = json!(node);
    pod
}

/// The chart of a mesh whose agents report which pods are served.
fn chart() -> String {
    let settings = ["node.reportServed=true".to_owned()];
    leno_charts::render(&Values::load(&[], &settings).unwrap(), NAMESPACE).unwrap()
}

/// Prepares a cluster with the agent's rights. Returns the agent's token.
async fn cluster(bed: &TestApiServer) -> String {
    for name in [NAMESPACE, "shop"] {
        bed.apply(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}))
            .await;
    }
    let chart = chart();
    let is_right = |document: &&str| {
        document.contains("leno-agent") && document.contains("rbac.authorization.k8s.io/v1\n")
    };
    let rights: Vec<&str> = chart.split("---\n").filter(is_right).collect();
    bed.apply_yaml(&rights.join("---\n")).await;
    for (namespace, name) in [(NAMESPACE, "agent"), ("shop", "web")] {
        let metadata = json!({"name": name, "namespace": namespace});
        bed.apply(json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}))
            .await;
    }
    bed.token((NAMESPACE, "agent"), None, None).await
}

/// How many times the agent has listed all pods of its node.
fn whole_reads(bed: &TestApiServer) -> usize {
    let reads = bed.reads("leno-agent");
    assert!(reads.iter().all(|read| !read.is_list), "streams of the server's cache: {reads:?}");
    let own = |path: &str| match path {
        "/api/v1/nodes" => format!("metadata.name%3D{NODE}"),
        // All namespaces are listed, because each may decide whether its pods are in node mode.
        "/api/v1/namespaces" => String::new(),
        _ => format!("spec.nodeName%3D{NODE}"),
    };
    let is_own = reads.iter().all(|read| read.query.contains(&own(&read.path)));
    assert!(is_own, "its own node, the pods of that, and namespaces: {reads:?}");
    reads.iter().filter(|read| read.path == "/api/v1/pods" && read.is_whole()).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_costs_no_list_and_a_restart_of_the_api_server_one() {
    let Some(kube) = binary() else { return };
    let mut bed = TestApiServer::start(&kube).await;
    let token = cluster(&bed).await;
    let relay = Relay::start(bed.port).await;
    let kubeconfig = bed.kubeconfig("agent.kubeconfig", relay.port, &token);
    for (name, node) in [("first", NODE), ("gone", NODE), ("elsewhere", "n2")] {
        bed.apply(of_node(name, node)).await;
    }
    let directory = tempfile::tempdir().unwrap();
    let agent = Agent::start(directory.path(), &kubeconfig);
    agent.sees(&["first", "gone"]).await;
    assert_eq!(whole_reads(&bed), 1);

    // The connection to the server is cut. Afterwards the watch continues from its last version.
    relay.open(false);
    until("the cut is noticed", async || (!agent.follows().await).then_some(())).await;
    bed.apply(of_node("second", NODE)).await;
    relay.open(true);
    agent.sees(&["first", "gone", "second"]).await;
    assert!(agent.follows().await);
    assert_eq!(whole_reads(&bed), 1, "nothing was read again");

    // The server restarts in the meantime. Its new process does not have the version from which the watch would
    // continue (410), and no event reports what was deleted before.
    relay.open(false);
    until("the cut is noticed", async || (!agent.follows().await).then_some(())).await;
    bed.delete(of_node("gone", NODE)).await;
    bed.stop();
    bed.restart().await;
    assert_eq!(agent.pods().await.len(), 3, "the pods of before stay");
    relay.open(true);
    agent.sees(&["first", "second"]).await;
    until("pods are followed", async || agent.follows().await.then_some(())).await;
    assert_eq!(whole_reads(&bed), 2, "all pods were read once more");
}

/// Regression: a pod in node mode by its own label was captured with the defaults while its namespace was not known, without
/// the datagrams and the capture that the namespace asks for, and it kept that. A pod with a sidecar was while the API server
/// did not answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_pod_is_captured_before_its_settings_are_known() {
    let Some(kube) = binary() else { return };
    let bed = TestApiServer::start(&kube).await;
    let token = cluster(&bed).await;
    let relay = Relay::start(bed.port).await;
    let kubeconfig = bed.kubeconfig("agent.kubeconfig", relay.port, &token);
    let shop = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}});
    bed.merge(shop, json!({"metadata": {"annotations": {"leno.dev/capture": "nftables"}}})).await;
    let mut own = of_node("own", NODE);
    own["spec"].as_object_mut().unwrap().remove("initContainers");
    own["metadata"]["labels"]["leno.dev/inject"] = json!("enabled");
    own["metadata"]["annotations"] = json!({"leno.dev/mode": "node"});
    bed.apply(own).await;
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "leno-agent"}});
    let rules = bed.get(role.clone()).await.unwrap().data["rules"].clone();
    let of_others = |rule: &&Value| rule["resources"] != json!(["namespaces"]);
    let fewer: Vec<&Value> = rules.as_array().unwrap().iter().filter(of_others).collect();
    bed.merge(role.clone(), json!({"rules": fewer})).await;

    let directory = tempfile::tempdir().unwrap();
    let agent = Agent::start(directory.path(), &kubeconfig);
    until("namespaces are refused", async || {
        let log = std::fs::read_to_string(&agent.log).unwrap();
        log.contains("cannot watch namespaces").then_some(())
    })
    .await;
    let why = agent.refuses("own", None).unwrap();
    assert!(why.contains("the settings of its namespace are not known"), "{why}");
    assert_eq!(agent.captures().await, BTreeMap::new());
    assert!(!agent.page("/ready").await.starts_with("HTTP/1.1 200"));
    bed.merge(role, json!({"rules": rules})).await;
    agent.sees(&["own"]).await;
    assert_eq!(agent.captures().await["own"], "nftables");

    relay.open(false);
    until("the cut is noticed", async || (!agent.follows().await).then_some(())).await;
    let why = agent.refuses("later", Some(true)).unwrap();
    assert!(why.contains("it is not known how to capture it"), "{why}");
    // A cached pod needs no API server. Without capabilities it cannot be captured, which is another reason.
    let why = agent.refuses("own", None).unwrap();
    assert!(why.contains("its network namespace"), "{why}");
    assert_eq!(agent.refuses("plain", Some(false)), None);
}

/// Writes into the status of a pod. The error is the API server's reason.
async fn write(kubeconfig: &Path, pod: &str, change: Value) -> Result<Pod, String> {
    let client = leno_kube::connect(Some(kubeconfig), None).await.unwrap();
    let pods = Api::<Pod>::namespaced(client, "shop");
    let written = pods.patch_status(pod, &PatchParams::default(), &Patch::Strategic(change)).await;
    written.map_err(|error| error.to_string())
}

/// A change of conditions of a pod, as the agent writes it.
fn conditions(all: Value) -> Value {
    json!({"status": {"conditions": all}})
}

/// Regression: the right to write the status of pods would be one to direct traffic to any address.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_compromised_agent_writes_one_condition_of_pods_of_its_own_node() {
    let Some(kube) = binary() else { return };
    let bed = TestApiServer::start(&kube).await;
    let unbound = cluster(&bed).await;
    let chart = chart();
    let is_policy = |document: &&str| document.contains("\nkind: ValidatingAdmissionPolicy");
    let policies: Vec<&str> = chart.split("---\n").filter(is_policy).collect();
    bed.apply_yaml(&policies.join("---\n")).await;
    let mut own = of_node("agent", NODE);
    own["metadata"]["namespace"] = json!(NAMESPACE);
    own["spec"]["serviceAccountName"] = json!("agent");
    bed.apply(own).await;
    for (name, node) in [("here", NODE), ("elsewhere", "n2")] {
        let pod = of_node(name, node);
        bed.apply(pod.clone()).await;
        bed.set_status(pod).await;
    }
    let token = bed.token((NAMESPACE, "agent"), None, Some("agent")).await;
    let agent = bed.kubeconfig("agent.kubeconfig", bed.port, &token);
    let served = |status: &str| conditions(json!([{"type": "leno.dev/Served", "status": status}]));

    // The API server needs a while to enforce the policy.
    until("the policy is enforced", async || {
        let refused = write(&agent, "elsewhere", served("True")).await.err()?;
        refused.contains("an agent reports on pods of its own node").then_some(())
    })
    .await;
    for status in ["True", "False"] {
        let pod = write(&agent, "here", served(status)).await.unwrap();
        let all = pod.status.unwrap().conditions.unwrap();
        let all: BTreeMap<&str, &str> =
            all.iter().map(|one| (one.type_.as_str(), one.status.as_str())).collect();
        assert_eq!(all, BTreeMap::from([("Ready", "True"), ("leno.dev/Served", status)]));
    }
    let (metadata, alone) =
        ("an agent writes no metadata of a pod", "leno.dev/Served of a pod alone");
    for (change, why) in [
        (conditions(json!([{"type": "Ready", "status": "False"}])), alone),
        (conditions(json!([{"type": "Ready", "$patch": "delete"}])), alone),
        (conditions(json!([{"type": "Other", "status": "True"}])), alone),
        (
            json!({"status": {"podIP": "10.0.0.1", "podIPs": [{"$patch": "replace"}, {"ip": "10.0.0.1"}]}}),
            alone,
        ),
        (json!({"status": {"phase": "Failed"}}), alone),
        (json!({"status": {"message": "added"}}), alone),
        (json!({"status": {"podIP": null, "podIPs": null}}), alone),
        (json!({"metadata": {"annotations": {"leno.dev/mtls": "disabled"}}}), metadata),
        (json!({"metadata": {"labels": {"app": "other"}}}), metadata),
        (json!({"metadata": {"labels": null}}), metadata),
        (json!({"metadata": {"finalizers": ["example.org/stays"]}}), metadata),
    ] {
        let refused = write(&agent, "here", change.clone()).await.unwrap_err();
        assert!(refused.contains(why), "{change}: {refused}");
    }
    // A token that is bound to no pod is of no node.
    let unbound = bed.kubeconfig("unbound.kubeconfig", bed.port, &unbound);
    let refused = write(&unbound, "here", served("True")).await.unwrap_err();
    assert!(refused.contains("an agent reports on pods of its own node"), "{refused}");
}
