//! Tests that a run's objects are removed, by the run itself or by a later command, and that other objects are
//! kept.

use std::fs;

use leno_testkit_api::{TestControllers, binary, until};
use serde_json::{Value, json};

use super::{Bench, OURS, role, unpulled};
use crate::shop::said;

/// The namespace of the run that was killed.
const RUN: &str = "leno-bench-abcde";

fn namespace(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
}

impl Bench {
    /// Writes the ledger of a run that was killed in this cluster while a mesh was installed.
    async fn killed(&self, mesh: &str, before: &[String]) {
        let cluster = self.bed.get(namespace("kube-system")).await.unwrap().metadata.uid;
        self.ledger(json!({"kubeconfig": self.kubeconfig, "context": "test", "cluster": cluster,
            "namespace": RUN, "mesh": {"mesh": mesh, "before": before}}));
    }

    fn ledger(&self, ledger: Value) {
        fs::create_dir_all(&self.out).unwrap();
        fs::write(self.out.join("cluster.json"), ledger.to_string()).unwrap();
    }

    /// Applies some kinds of Leno's objects. If `run` is given, the namespace is marked as that run's.
    async fn half_of_leno(&self, kinds: &[&str], run: Option<&str>) {
        let values = leno_charts::Values::defaults();
        let text = leno_charts::render(&values, leno_charts::NAMESPACE).unwrap();
        for mut document in leno_operate::documents(&text).unwrap() {
            if let Some(run) = run
                && document["kind"] == "Namespace"
            {
                document["metadata"]["annotations"] = json!({"leno.dev/bench-run": run});
            }
            if kinds.iter().any(|kind| document["kind"] == *kind) {
                self.bed.apply(document).await;
            }
        }
    }

    async fn clean(&self) -> (Option<i32>, String) {
        let done = self.leno(&["clean", self.out.to_str().unwrap()]).await;
        (done.status.code(), said(&done))
    }
}

#[tokio::test]
async fn clean_removes_the_objects_of_a_killed_run() {
    let Some(kube) = binary() else { return };
    let bench = Bench::open(&kube).await;
    let before = bench.everything().await;
    // The remains of a run that was killed while it installed Leno.
    bench.killed("leno", &before).await;
    let label = json!({"app.kubernetes.io/managed-by": "leno-bench"});
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "leno-bench-abcde",
        "labels": label, "annotations": {"leno.dev/bench-records": "/bench (on m1)"}}});
    bench.bed.apply(namespace).await;
    bench.half_of_leno(&["ClusterRole", "CustomResourceDefinition"], None).await;
    assert!(bench.everything().await.len() > before.len() + 3);
    let _hands = TestControllers::begin(&bench.bed, OURS, unpulled());
    // Meanwhile, another run refuses to start.
    let elsewhere = bench.bed.directory.path().join("elsewhere");
    let file = bench.kubeconfig.to_str().unwrap();
    let other = ["run", "http-1k", "--kubeconfig", file, "--out", elsewhere.to_str().unwrap()];
    let refused = bench.leno(&other).await;
    assert_eq!(refused.status.code(), Some(2));
    let text = said(&refused);
    assert!(text.contains("/bench (on m1)") && text.contains("leno bench clean"), "{text}");

    let out = bench.out.to_str().unwrap();
    let cleaned = bench.leno(&["clean", out]).await;
    assert!(cleaned.status.success(), "{}", said(&cleaned));
    assert_eq!(bench.everything().await, before);
    let again = bench.leno(&["clean", out]).await;
    assert!(said(&again).contains("lists nothing to revert in a cluster"), "{}", said(&again));
}

#[tokio::test]
async fn another_cluster_of_the_same_name_is_not_touched() {
    let Some(kube) = binary() else { return };
    let bench = Bench::open(&kube).await;
    bench.bed.apply(namespace(RUN)).await;
    bench.ledger(
        json!({"kubeconfig": bench.kubeconfig, "context": "test", "cluster": "uid-of-another",
        "namespace": RUN, "mesh": null}),
    );
    let (code, text) = bench.clean().await;
    assert_eq!(code, Some(2), "{text}");
    let uid = bench.bed.get(namespace("kube-system")).await.unwrap().metadata.uid.unwrap();
    for word in ["context test", "uid-of-another", &uid, "KUBECONFIG", "remove the file"] {
        assert!(text.contains(word), "{word} is not in {text}");
    }
    assert!(bench.bed.get(namespace(RUN)).await.is_some());
    assert!(bench.out.join("cluster.json").exists());
}

#[tokio::test]
async fn objects_of_another_user_with_the_same_names_are_kept() {
    let Some(kube) = binary() else { return };
    let bench = Bench::open(&kube).await;
    bench.bed.apply(role("x")).await;
    let uid = bench.bed.get(role("x")).await.unwrap().metadata.uid.unwrap();
    let (client, one) =
        (&bench.bed.admin, &leno_operate::named(&role("x").to_string()).unwrap()[0]);
    assert!(!leno_operate::delete_exactly(client, one, "uid-of-the-one-before").await.unwrap());
    assert!(bench.bed.get(role("x")).await.is_some());
    assert!(leno_operate::delete_exactly(client, one, &uid).await.unwrap());
    assert!(bench.bed.get(role("x")).await.is_none());
    assert!(!leno_operate::delete_exactly(client, one, &uid).await.unwrap());

    // A namespace with the same name as that of the killed run, but without its label.
    bench.bed.apply(namespace(RUN)).await;
    let before = bench.everything().await;
    bench.killed("leno", &before).await;
    let (code, text) = bench.clean().await;
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("namespace leno-bench-abcde does not belong to the bench"), "{text}");
    assert!(bench.bed.get(namespace(RUN)).await.is_some());
}

#[tokio::test]
async fn a_mesh_that_another_user_installed_since_is_kept() {
    let Some(kube) = binary() else { return };
    let bench = Bench::open(&kube).await;
    let before = bench.everything().await;
    // The run was killed before it created anything, and another user installed Leno afterwards.
    bench.killed("leno", &before).await;
    bench.half_of_leno(&["Namespace", "ClusterRole"], None).await;
    let there = bench.everything().await;
    let (code, text) = bench.clean().await;
    assert_eq!(code, Some(0), "{text}");
    assert!(
        text.contains("in namespace leno-system, which this run has not made: it stays"),
        "{text}"
    );
    assert_eq!(bench.everything().await, there);
    assert!(!bench.out.join("cluster.json").exists());
}

#[tokio::test]
async fn a_mesh_that_is_installed_during_a_run_is_neither_installed_over_nor_removed() {
    let Some(kube) = binary() else { return };
    let bench = Bench::open(&kube).await;
    let before = bench.everything().await;
    let _hands = TestControllers::begin(&bench.bed, OURS, unpulled());
    let made = bench.tools.join("made");
    let wait = format!("until [ -e {} ]; do sleep 0.1; done; exit 1", made.display());
    bench.tool("istioctl", &wait);
    bench.tool("linkerd", "exit 1");
    let (run, ()) = tokio::join!(
        bench.run(&["--mesh", "none,istio,linkerd"]),
        bench.makes_when(("istioctl install", 1), &made, role("linkerd-x"))
    );
    let text = said(&run);
    assert_eq!(run.status.code(), Some(2), "{text}");
    assert!(text.contains("another user has installed linkerd, or a part of it"), "{text}");
    assert!(text.contains("ClusterRole linkerd-x") && text.contains("--resume"), "{text}");
    assert!(bench.calls().iter().all(|call| !call.starts_with("linkerd")), "{:?}", bench.calls());
    assert!(bench.why("istio").contains("istio cannot be installed"), "what was done is kept");
    let mut after = before;
    after.push("ClusterRole linkerd-x".to_owned());
    after.sort();
    assert_eq!(bench.everything().await, after);
    assert!(!bench.out.join("cluster.json").exists(), "nothing of the run is left");
}

/// An agent on a node, with an image that does not exist.
fn agent(node: &str, reason: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": format!("leno-agent-{node}"), "namespace": leno_charts::NAMESPACE,
            "labels": {"app.kubernetes.io/name": "leno-agent"}},
        "spec": {"nodeName": node, "serviceAccountName": "agent",
            "containers": [{"name": "agent", "image": "nowhere.example/leno-agent:1"}]},
        "status": {"containerStatuses": [{"name": "agent", "image": "nowhere.example/leno-agent:1",
            "imageID": "", "ready": false, "restartCount": 0, "state": {"waiting":
                {"reason": reason, "message": "not on this node"}}}]}})
}

#[tokio::test]
async fn an_image_that_is_nowhere_is_said_at_once_and_leaves_no_node_behind() {
    let Some(kube) = binary() else { return };
    let bench = Bench::open(&kube).await;
    let before = bench.everything().await;
    let _hands = TestControllers::begin(&bench.bed, OURS, unpulled());
    let daemons = json!({"apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": {"name": "leno-agent", "namespace": leno_charts::NAMESPACE}});
    let nodes = async {
        until("the agents are made", async || bench.bed.get(daemons.clone()).await).await;
        // After the first status the run keeps waiting, because a later attempt may succeed. The second status
        // ends the run, which then knows that neither agent has run.
        for (node, reason) in [("n1", "ErrImagePull"), ("n2", "ErrImageNeverPull")] {
            let agent = agent(node, reason);
            let mut pod = agent.clone();
            pod.as_object_mut().unwrap().remove("status");
            bench.bed.apply(pod).await;
            bench.bed.set_status(agent).await;
        }
    };
    let (run, ()) = tokio::join!(bench.run(&["--mesh", "none,leno"]), nodes);
    let text = said(&run);
    assert!(run.status.success(), "{text}");
    let why = bench.why("leno");
    for word in ["leno cannot be installed", "leno-agent-n2", "ErrImageNeverPull: not on this node"]
    {
        assert!(why.contains(word), "{word} is not in {why}");
    }
    assert!(!why.contains("waited for"), "{why}");
    assert!(!text.contains("not gone from every node"), "{text}");
    assert_eq!(bench.everything().await, before);
    assert!(!bench.out.join("cluster.json").exists());
}

#[tokio::test]
async fn what_never_had_an_agent_is_in_no_node() {
    let Some(kube) = binary() else { return };
    let bench = Bench::open(&kube).await;
    let before = bench.everything().await;
    let _hands = TestControllers::begin(&bench.bed, OURS, unpulled());
    let cluster = bench.bed.get(namespace("kube-system")).await.unwrap().metadata.uid;
    bench.half_of_leno(&["Namespace", "ConfigMap", "ClusterRole"], Some(RUN)).await;
    bench.ledger(json!({"kubeconfig": bench.kubeconfig, "context": "test", "cluster": cluster,
        "namespace": RUN, "mesh": {"mesh": "leno", "before": before, "agents": false}}));
    // There is no kubelet, so a pod that should clean a node would never succeed.
    let (code, text) = bench.clean().await;
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(bench.everything().await, before);
}

#[tokio::test]
async fn what_a_removal_needs_stays_until_it_has_gone_well_and_nodes_are_not_forgotten() {
    let Some(kube) = binary() else { return };
    let mut bench = Bench::open(&kube).await;
    let before = bench.everything().await;
    let _hands = TestControllers::begin(&bench.bed, OURS, unpulled());
    // This account may do everything except delete services.
    let everything = json!({"apiGroups": ["*"], "resources": ["*"],
        "verbs": ["get", "list", "create", "patch", "update"]});
    let kinds = [
        "namespaces",
        "configmaps",
        "pods",
        "deployments",
        "daemonsets",
        "clusterroles",
        "clusterrolebindings",
        "customresourcedefinitions",
        "mutatingwebhookconfigurations",
        "validatingwebhookconfigurations",
    ];
    let removal =
        json!({"apiGroups": ["*"], "resources": kinds, "verbs": ["delete", "deletecollection"]});
    bench
        .bed
        .apply(json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "dev"}, "rules": [everything, removal]}))
        .await;
    let dev = json!({"kind": "ServiceAccount", "name": "dev", "namespace": "default"});
    bench.bed.apply(json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": "dev"}, "subjects": [dev],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "dev"}})).await;
    let administrator = bench.kubeconfig.clone();
    bench.kubeconfig = bench.account("dev").await;
    bench.killed("leno", &before).await;
    bench.half_of_leno(&["Namespace", "ConfigMap", "Service", "ClusterRole"], Some(RUN)).await;
    let (code, text) = bench.clean().await;
    assert_eq!(code, Some(2), "{text}");
    for word in ["delete services leno-controller in leno-system", "leno bench clean"] {
        assert!(text.contains(word), "{word} is not in {text}");
    }
    let installed = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": leno_charts::INSTALLED, "namespace": leno_charts::NAMESPACE}});
    assert!(bench.bed.get(installed.clone()).await.is_some(), "by which it can be done again");
    assert!(bench.bed.get(namespace("leno-system")).await.is_some());

    let mut claim = namespace("leno-bench");
    claim["metadata"]["annotations"] = json!({"leno.dev/bench-run": RUN});
    bench.bed.apply(claim).await;
    // There is no kubelet, so no node reports that it is clean. The second time, nothing else is left in the
    // ledger.
    bench.kubeconfig = administrator;
    bench.killed("leno", &before).await;
    let mut last = String::new();
    for _ in 0..2 {
        let (code, text) = bench.clean().await;
        assert_eq!(code, Some(2), "{text}");
        for word in ["not gone from every node", "n1", "n2", "leno-agent cleanup", "cluster.json"] {
            assert!(text.contains(word), "{word} is not in {text}");
        }
        last = text;
    }
    assert!(bench.bed.get(installed).await.is_none(), "{last}");
    let left: Vec<String> =
        bench.everything().await.into_iter().filter(|name| !before.contains(name)).collect();
    assert_eq!(left, ["ClusterRole dev", "ClusterRoleBinding dev"], "{last}");
}
