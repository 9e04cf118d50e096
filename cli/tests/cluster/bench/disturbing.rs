//! Tests that a real API server accepts the changes that the bench makes to a mesh under load, and that the bench
//! reports what a cluster lacks for them.

use std::fs;
use std::process::{Command, Stdio};

use leno_testkit_api::{TestControllers, binary, objects, until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::{Bench, OURS, unpulled};
use crate::shop::said;

/// A control plane of Linkerd that counts as ready, without running.
async fn linkerd(bench: &Bench) {
    let namespace =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "linkerd"}});
    bench.bed.apply(namespace).await;
    let labels = json!({"linkerd.io/control-plane-component": "destination"});
    let pod = json!({"metadata": {"labels": labels},
        "spec": {"containers": [{"name": "destination", "image": "nowhere.example/linkerd:1"}]}});
    let mut deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "linkerd-destination", "namespace": "linkerd", "labels": labels},
        "spec": {"selector": {"matchLabels": labels}, "template": pod}});
    bench.bed.apply(deployment.clone()).await;
    deployment["status"] = json!({"replicas": 1, "readyReplicas": 1});
    bench.bed.set_status(deployment).await;
}

#[tokio::test]
async fn a_route_is_pushed_where_routes_are_defined() {
    let Some(kube) = binary() else { return };
    let bench = Bench::open(&kube).await;
    linkerd(&bench).await;
    let _hands = TestControllers::begin(&bench.bed, OURS, unpulled());
    let run = bench.run_of("push", &["--mesh", "none,linkerd", "--no-install"]).await;
    assert!(run.status.success(), "{}", said(&run));
    let why = bench.why("linkerd");
    for word in ["no HTTPRoute of version v1", "kubectl apply --server-side -f"] {
        assert!(why.contains(word), "{word} is not in {why}");
    }
    assert!(bench.why("none").contains("ErrImagePull"), "{}", bench.why("none"));

    bench.bed.apply(objects::http_route_definition()).await;
    let route = json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
        "metadata": {}});
    until("routes are served", async || bench.bed.serves(&route).await).await;
    fs::remove_dir_all(&bench.out).unwrap();
    let run = bench.run_of("push", &["--mesh", "none,linkerd", "--no-install"]).await;
    assert!(run.status.success(), "{}", said(&run));
    assert!(bench.why("linkerd").contains("ErrImagePull"), "{}", bench.why("linkerd"));
    // No controller deletes the contents of namespaces here, so the mesh's route remains.
    let routes = bench.bed.names(&["gateway.networking.k8s.io/v1 HTTPRoute"]).await;
    assert_eq!(routes, ["HTTPRoute pushed"]);
}

#[tokio::test]
async fn endpoints_of_a_service_without_selector_are_those_of_the_pods() {
    let Some(kube) = binary() else { return };
    let bench = Bench::open(&kube).await;
    let before = bench.everything().await;
    // The pods count as running, but they cannot be reached, because there is no kubelet.
    let ready = json!({"phase": "Running", "podIPs": [{"ip": "10.1.2.3"}], "podIP": "10.1.2.3",
        "conditions": [{"type": "Ready", "status": "True"}]});
    let _hands = TestControllers::begin(&bench.bed, OURS, ready);
    let mut command = Command::new(env!("CARGO_BIN_EXE_leno"));
    command.env_remove("KUBECONFIG").env("HOME", "/nonexistent");
    command.args(["bench", "run", "churn", "--mesh", "none", "--kubeconfig"]);
    command.arg(&bench.kubeconfig).arg("--out").arg(&bench.out).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let of = |kind: &str, version: &str, namespace: &str| {
        json!({"apiVersion": version, "kind": kind,
            "metadata": {"name": "all", "namespace": namespace}})
    };
    let (service, slice) = until("there are endpoints", async || {
        let names = bench.everything().await;
        let mut names = names.iter().filter_map(|name| name.strip_prefix("Namespace "));
        let namespace = names.find(|name| name.starts_with(OURS))?;
        let slice = of("EndpointSlice", "discovery.k8s.io/v1", namespace);
        let service = bench.bed.get(of("Service", "v1", namespace)).await?;
        Some((service.data, bench.bed.get(slice).await?))
    })
    .await;
    kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), Signal::SIGINT).unwrap();
    let ended =
        tokio::task::spawn_blocking(move || child.wait_with_output().unwrap()).await.unwrap();
    assert_eq!(ended.status.code(), Some(2), "{}", said(&ended));
    assert_eq!(bench.everything().await, before);

    assert_eq!(service.pointer("/spec/selector"), None);
    let labels = slice.metadata.labels.unwrap();
    assert_eq!(labels["kubernetes.io/service-name"], "all");
    assert_eq!(labels["endpointslice.kubernetes.io/managed-by"], "leno-bench");
    let endpoints = slice.data["endpoints"].as_array().unwrap();
    let pods = |one: &Value| one.pointer("/targetRef/name").unwrap().as_str().unwrap().to_owned();
    let pods: Vec<String> = endpoints.iter().map(pods).collect();
    assert_eq!(pods, (0..10).map(|nth| format!("s{nth}")).collect::<Vec<_>>());
    assert_eq!(endpoints[3]["addresses"], json!(["10.1.2.3"]));
    assert_eq!(slice.data["ports"][0]["port"], 8080);
}

#[tokio::test]
async fn a_mesh_that_others_may_use_is_not_killed() {
    let Some(kube) = binary() else { return };
    let bench = Bench::open(&kube).await;
    linkerd(&bench).await;
    let hands = TestControllers::begin(&bench.bed, OURS, unpulled());
    let run = bench.run_of("restart", &["--mesh", "none,linkerd", "--no-install"]).await;
    assert!(run.status.success(), "{}", said(&run));
    let why = bench.why("linkerd");
    assert!(why.contains("may be of use to others: leave --no-install out"), "{why}");
    // Without a mesh there is no proxy to kill.
    assert!(bench.why("none").contains("ErrImagePull"), "{}", bench.why("none"));
    let (namespace, _) = hands.seen().unwrap();
    let annotations = namespace.metadata.annotations.unwrap();
    assert!(!annotations.contains_key("linkerd.io/inject"), "{annotations:?}");
}
