//! Tests the plugin with a scripted agent.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::thread::{self, JoinHandle};

use tempfile::TempDir;

use super::*;

const UID: &str = "8aa5b486-ea4b-4246-9144-60a996131924";

/// A node's files: a kubelet's directory with one pod, and a folder for the agent's socket.
struct Node {
    folder: TempDir,
}

impl Node {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("netns")).unwrap();
        std::os::unix::fs::symlink("netns", folder.path().join("link")).unwrap();
        Self { folder }
    }

    fn with_pod(self, volume: &str) -> Self {
        let pod = self.folder.path().join("pods").join(UID);
        fs::create_dir_all(pod.join("volumes/kubernetes.io~projected").join(volume)).unwrap();
        self
    }

    /// Answers one call. Returns the request.
    fn agent(&self, answer: PluginAnswer) -> JoinHandle<PluginRequest> {
        let listener = UnixListener::bind(self.folder.path().join("agent.sock")).unwrap();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut line = String::new();
            BufReader::new(&stream).read_line(&mut line).unwrap();
            let answer = serde_json::to_string(&answer).unwrap();
            stream.write_all(format!("{answer}\n").as_bytes()).unwrap();
            serde_json::from_str(&line).unwrap()
        })
    }

    fn call(&self, command: &str) -> Result<Value, CniError> {
        self.call_for("shop", command)
    }

    fn call_for(&self, namespace: &str, command: &str) -> Result<Value, CniError> {
        let environment = CniEnvironment {
            command: command.to_owned(),
            container: "sandbox".to_owned(),
            netns: self.folder.path().join("link/cni-1").to_str().unwrap().to_owned(),
            arguments: format!(
                "IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME=web-0;K8S_POD_UID={UID}"
            ),
        };
        let folder = self.folder.path();
        let input = json!({
            "cniVersion": "1.0.0", "name": "bed", "type": "leno-cni", "prevResult": result(),
            "socket": folder.join("agent.sock"), "kubelet": folder, "exempt": ["kube-system"],
            "patienceMs": 0,
        });
        let output = run(&environment, &input.to_string())?;
        Ok(if output.is_empty() { Value::Null } else { serde_json::from_str(&output).unwrap() })
    }
}

fn result() -> Value {
    json!({"cniVersion": "1.0.0", "ips": [{"address": "10.244.1.5/24"}], "dns": {"x-unknown": 1}})
}

#[test]
fn the_agent_is_told_of_the_pod_and_the_result_passed_on() {
    let node = Node::new().with_pod(VOLUME);
    let agent = node.agent(PluginAnswer { backend: Some("ebpf".into()), error: None });
    assert_eq!(node.call("ADD"), Ok(result()));
    let expected = PluginRequest {
        command: CniCommand::Add,
        container: "sandbox".into(),
        netns: Some(node.folder.path().canonicalize().unwrap().join("netns/cni-1")),
        namespace: "shop".into(),
        pod: "web-0".into(),
        uid: Some(UID.into()),
        has_proxy: Some(true),
    };
    assert_eq!(agent.join().unwrap(), expected);
}

#[test]
fn a_pod_that_cannot_be_captured_fails_with_the_agents_reason() {
    let node = Node::new().with_pod("another");
    let agent =
        node.agent(PluginAnswer { backend: None, error: Some("no kernel programs".into()) });
    let failure = node.call("ADD").unwrap_err();
    assert_eq!((failure.code, &*failure.details), (11, "no kernel programs"));
    assert_eq!(agent.join().unwrap().has_proxy, Some(false));
    let printed: Value = serde_json::from_str(&failure.to_json()).unwrap();
    assert_eq!(printed["cniVersion"], "1.0.0");
    assert_eq!(printed["code"], 11);
}

#[test]
fn without_the_agent_only_pods_that_have_no_proxy_pass() {
    assert_eq!(Node::new().with_pod("another").call("ADD"), Ok(result()));
    let failure = Node::new().with_pod(VOLUME).call("ADD").unwrap_err();
    assert!(failure.details.contains("agent.sock"), "{failure:?}");
    let unseen = Node::new();
    assert_eq!(unseen.call("ADD").unwrap_err().code, 11, "whose volumes cannot be seen");
    assert_eq!(unseen.call_for("kube-system", "ADD"), Ok(result()));
}

#[test]
fn without_an_agent_no_pod_of_a_namespace_in_node_mode_starts() {
    let node = Node::new().with_pod("other");
    assert_eq!(node.call("ADD"), Ok(result()));
    fs::write(node.folder.path().join(NODE_MODE), "bank\nshop\nkube-system\n").unwrap();
    assert_eq!(node.call("ADD").unwrap_err().code, 11);
    assert_eq!(node.call_for("sho", "ADD"), Ok(result()));
    assert!(node.call("DEL").is_ok());
    let agent = node.agent(PluginAnswer { backend: Some("ebpf".into()), error: None });
    assert_eq!(node.call("ADD"), Ok(result()));
    assert_eq!(agent.join().unwrap().has_proxy, None, "the agent's answer decides");
}

#[test]
fn an_agent_that_hangs_up_is_one_that_does_not_answer() {
    let node = Node::new().with_pod(VOLUME);
    let listener = UnixListener::bind(node.folder.path().join("agent.sock")).unwrap();
    let agent = thread::spawn(move || drop(listener.accept().unwrap()));
    assert_eq!(node.call("ADD").unwrap_err().code, 11);
    agent.join().unwrap();
}

#[test]
fn a_pod_can_always_end() {
    assert_eq!(Node::new().with_pod(VOLUME).call("DEL"), Ok(Value::Null));
    let node = Node::new();
    let agent = node.agent(PluginAnswer { backend: None, error: Some("never mind".into()) });
    assert_eq!(node.call("DEL"), Ok(Value::Null));
    assert_eq!(agent.join().unwrap().command, CniCommand::Del);
}

#[test]
fn check_fails_only_where_the_agent_says_so() {
    assert_eq!(Node::new().with_pod(VOLUME).call("CHECK"), Ok(Value::Null));
    let node = Node::new();
    let agent = node.agent(PluginAnswer { backend: None, error: Some("not captured".into()) });
    assert_eq!(node.call("CHECK").unwrap_err().details, "not captured");
    agent.join().unwrap();
}

#[test]
fn versions_are_told_and_others_refused() {
    let environment =
        |command: &str| CniEnvironment { command: command.into(), ..Default::default() };
    let told = run(&environment("VERSION"), r#"{"cniVersion":"1.0.0"}"#).unwrap();
    let told: Value = serde_json::from_str(&told).unwrap();
    assert_eq!(told["cniVersion"], "1.0.0");
    assert!(told["supportedVersions"].as_array().unwrap().contains(&json!("0.4.0")));
    assert_eq!(run(&environment("ADD"), r#"{"cniVersion":"0.2.0"}"#).unwrap_err().code, 1);
    assert_eq!(run(&environment("STATUS"), r#"{"cniVersion":"1.1.0"}"#), Ok(String::new()));
    assert_eq!(run(&environment("GROW"), r#"{"cniVersion":"1.1.0"}"#).unwrap_err().code, 4);
    assert_eq!(run(&environment("ADD"), "{").unwrap_err().code, 6);
}

#[test]
fn it_must_be_chained() {
    let environment = CniEnvironment { command: "ADD".into(), ..CniEnvironment::default() };
    assert_eq!(run(&environment, r#"{"cniVersion":"1.0.0"}"#).unwrap_err().code, 7);
    let other = r#"{"cniVersion":"1.0.0","prevResult":{"ips":[]}}"#;
    assert_eq!(run(&environment, other).unwrap(), r#"{"ips":[]}"#, "no pod of Kubernetes");
}
