//! Tests the waypoints that the control plane creates for Gateways.

use std::path::{Path, PathBuf};
use std::time::Duration;

use leno_charts::{NAMESPACE, Values, render};
use leno_testkit_api::objects::{pod, service, slice};
use leno_testkit_api::{TestApiServer, binary, until};
use serde_json::{Value, json};

use crate::proxy::Proxy;
use crate::replica::Replica;
use crate::{cluster, leads};

const FLAGS: [&str; 1] = ["--waypoints"];

/// The part of the Gateway API's definition that the test needs.
fn definition() -> Value {
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
    "metadata": {"name": "gateways.gateway.networking.k8s.io",
        "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/gateway-api"}},
    "spec": {
        "group": "gateway.networking.k8s.io",
        "names": {"kind": "Gateway", "plural": "gateways"},
        "scope": "Namespaced",
        "versions": [{"name": "v1", "served": true, "storage": true,
            "subresources": {"status": {}},
            "schema": {"openAPIV3Schema": {"type": "object",
                "properties": {"spec": open, "status": open}}}}],
    }})
}

fn gateway(namespace: &str, name: &str) -> Value {
    let listener = json!({"name": "mesh", "port": 15008, "protocol": "HBONE"});
    json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"gatewayClassName": "leno-waypoint", "listeners": [listener],
            "infrastructure": {"labels": {"team": "a"}}}})
}

fn object(version: &str, kind: &str, namespace: &str, name: &str) -> Value {
    json!({"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": namespace}})
}

fn deployment(namespace: &str, name: &str) -> Value {
    object("apps/v1", "Deployment", namespace, name)
}

/// Waits for a condition of a Gateway. Returns its message.
async fn says(bed: &TestApiServer, gateway: &Value, kind: &str, is: (&str, &str)) -> String {
    let what = format!("{kind}={is:?} of {}", gateway["metadata"]["name"]);
    until(&what, async || {
        let found = bed.get(gateway.clone()).await?;
        let conditions = found.data["status"]["conditions"].as_array()?.clone();
        let one = conditions.into_iter().find(|one| one["type"] == kind)?;
        let is_newest = one["observedGeneration"] == json!(found.metadata.generation);
        let matches = (one["status"].as_str(), one["reason"].as_str()) == (Some(is.0), Some(is.1));
        (is_newest && matches).then(|| one["message"].as_str().unwrap().to_owned())
    })
    .await
}

/// A cluster with a chart in which waypoints are enabled.
async fn with_waypoints(kube: &Path) -> (TestApiServer, PathBuf) {
    let (bed, kubeconfig) = cluster(kube).await;
    for object in rights() {
        bed.apply(object).await;
    }
    bed.apply(definition()).await;
    until("the kind is served", async || bed.serves(&gateway("shop", "any")).await).await;
    (bed, kubeconfig)
}

/// The role for waypoints and its binding.
fn rights() -> Vec<Value> {
    let values = Values::load(&[], &["waypoints.enabled=true".to_owned()]).unwrap();
    let all: Vec<Value> =
        serde_saphyr::from_multiple(&render(&values, NAMESPACE).unwrap()).unwrap();
    let ours: Vec<Value> =
        all.into_iter().filter(|one| one["metadata"]["name"] == "leno-waypoints").collect();
    assert_eq!(ours.len(), 2, "{ours:?}");
    ours
}

/// Sets how many pods of a waypoint are available, as the cluster's own controllers would.
async fn available(bed: &TestApiServer, name: &str, number: u32) {
    let mut status = deployment("shop", name);
    status["status"] = json!({"replicas": number, "readyReplicas": number, "availableReplicas": number,
        "updatedReplicas": number});
    bed.set_status(status).await;
}

/// Asserts that a deleted service account of a waypoint is created again, and that additions of other clients to
/// it are kept.
async fn account_is_made_again(bed: &TestApiServer, replica: &Replica) {
    let account = || object("v1", "ServiceAccount", "shop", "edge");
    let before = bed.get(account()).await.unwrap().metadata.uid;
    bed.delete(account()).await;
    until("so is the service account", async || {
        let found = bed.get(account()).await?;
        (found.metadata.uid != before && found.metadata.owner_references.is_some()).then_some(())
    })
    .await;
    // Additions of other clients stay, and do not make the controller write repeatedly.
    bed.merge(account(), json!({"imagePullSecrets": [{"name": "registry"}]})).await;
    let writes = "leno_control_waypoint_writes_total{result=\"written\"}";
    until("the account is settled", async || {
        let first = replica.metric(writes).await;
        tokio::time::sleep(Duration::from_secs(3)).await;
        (replica.metric(writes).await as u64 == first as u64).then_some(())
    })
    .await;
    let found = bed.get(account()).await.unwrap();
    assert_eq!(found.data["imagePullSecrets"], json!([{"name": "registry"}]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_of_the_class_becomes_a_deployment_of_proxies() {
    let Some(kube) = binary() else { return };
    let (bed, kubeconfig) = with_waypoints(&kube).await;
    let replica = Replica::start_with("controller-0", &kubeconfig, &FLAGS);
    leads(&replica).await;
    let edge = gateway("shop", "edge");
    bed.apply(edge.clone()).await;
    says(&bed, &edge, "Accepted", ("True", "Accepted")).await;
    says(&bed, &edge, "Programmed", ("False", "Pending")).await;

    let made = bed.get(deployment("shop", "edge")).await.unwrap();
    let owner = &made.metadata.owner_references.as_ref().unwrap()[0];
    let uid = bed.get(edge.clone()).await.unwrap().metadata.uid.unwrap();
    assert_eq!((&*owner.kind, &owner.uid), ("Gateway", &uid), "it goes with the Gateway");
    let template = &made.data["spec"]["template"];
    let labels = &template["metadata"]["labels"];
    assert_eq!((&labels["team"], &labels["leno.dev/waypoint"]), (&json!("a"), &json!("edge")));
    let container = &template["spec"]["containers"][0];
    assert_eq!(container["image"], "registry.test/proxy:1");
    assert_eq!(template["spec"]["serviceAccountName"], "edge");
    bed.get(object("v1", "ServiceAccount", "shop", "edge")).await.unwrap();
    let front = bed.get(object("v1", "Service", "shop", "edge")).await.unwrap();

    available(&bed, "edge", 1).await;
    says(&bed, &edge, "Programmed", ("True", "Programmed")).await;
    let status = bed.get(edge.clone()).await.unwrap().data["status"].clone();
    assert_eq!(status["addresses"][0]["value"], front.data["spec"]["clusterIP"]);
    assert_eq!(status["listeners"][0]["name"], "mesh");

    // Another client may change the number of replicas. Other changes and deletions are undone.
    bed.merge(deployment("shop", "edge"), json!({"spec": {"replicas": 3}})).await;
    let containers = json!([{"name": "waypoint", "image": "x:1"}]);
    let changed = json!({"spec": {"template": {"spec": {"containers": containers}}}});
    bed.merge(deployment("shop", "edge"), changed).await;
    until("the image is ours again", async || {
        let found = bed.get(deployment("shop", "edge")).await?;
        let spec = &found.data["spec"];
        let image = &spec["template"]["spec"]["containers"][0]["image"];
        (image == "registry.test/proxy:1" && spec["replicas"] == 3).then_some(())
    })
    .await;
    bed.delete(deployment("shop", "edge")).await;
    until("the Deployment is there again", async || bed.get(deployment("shop", "edge")).await)
        .await;
    bed.delete(object("v1", "Service", "shop", "edge")).await;
    until("so is the Service", async || bed.get(object("v1", "Service", "shop", "edge")).await)
        .await;
    says(&bed, &edge, "Programmed", ("False", "Pending")).await;
    account_is_made_again(&bed, &replica).await;

    // Gateways of other classes are left alone.
    let mut other = gateway("shop", "other-class");
    other["spec"]["gatewayClassName"] = json!("example");
    bed.apply(other.clone()).await;
    let mut wrong = gateway("shop", "wrong");
    wrong["spec"]["listeners"] = json!([{"name": "http", "port": 80, "protocol": "HTTP"}]);
    bed.apply(wrong.clone()).await;
    says(&bed, &wrong, "Accepted", ("False", "ListenersNotValid")).await;
    for name in ["other-class", "wrong"] {
        assert!(bed.get(deployment("shop", name)).await.is_none(), "{name}");
    }
    assert!(bed.get(other).await.unwrap().data["status"].is_null());
    let failed = "leno_control_waypoint_writes_total{result=\"failed\"}";
    assert_eq!(replica.metric(failed).await as u64, 0);
    replica.end();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_takes_no_object_of_others_and_says_where_it_may_write_none() {
    let Some(kube) = binary() else { return };
    let (bed, kubeconfig) = with_waypoints(&kube).await;
    // In the namespace `closed`, which is created below, the control plane may only read. In `shop` it has all rights.
    let [mut role, mut binding] = <[Value; 2]>::try_from(rights()).unwrap();
    let rules = role["rules"].as_array_mut().unwrap();
    let mut reading = rules.clone();
    for rule in &mut reading {
        let is_status = rule["resources"][0] == "gateways/status";
        let verbs = rule["verbs"].as_array_mut().unwrap();
        verbs.retain(|verb| verb != "create" && (verb != "patch" || is_status));
    }
    role["metadata"]["name"] = json!("reading");
    role["rules"] = json!(reading);
    bed.apply(role).await;
    let full = binding.clone();
    binding["metadata"]["name"] = json!("reading");
    binding["roleRef"]["name"] = json!("reading");
    bed.apply(binding).await;
    bed.delete(object_of_cluster(&full)).await;
    let mut inside = full.clone();
    inside["kind"] = json!("RoleBinding");
    inside["metadata"]["namespace"] = json!("shop");
    bed.apply(inside).await;
    bed.apply(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "closed"}}))
        .await;

    let replica = Replica::start_with("controller-0", &kubeconfig, &FLAGS);
    leads(&replica).await;
    // The namespace already has a service account with the name of this Gateway.
    let web = gateway("shop", "web");
    bed.apply(web.clone()).await;
    let message = says(&bed, &web, "Programmed", ("False", "NoResources")).await;
    assert!(message.contains("ServiceAccount web"), "{message}");
    assert!(bed.get(deployment("shop", "web")).await.is_none());
    let account = bed.get(object("v1", "ServiceAccount", "shop", "web")).await.unwrap();
    assert!(account.metadata.owner_references.is_none(), "it is as it was");

    let closed = gateway("closed", "edge");
    bed.apply(closed.clone()).await;
    let message = says(&bed, &closed, "Programmed", ("False", "NoResources")).await;
    assert!(message.contains("forbidden"), "{message}");
    assert!(bed.get(object("v1", "ServiceAccount", "closed", "edge")).await.is_none());
    // A Gateway that cannot be set up does not delay others.
    let edge = gateway("shop", "edge");
    bed.apply(edge.clone()).await;
    says(&bed, &edge, "Programmed", ("False", "Pending")).await;
    replica.end();
}

/// Kind and name of an object of the cluster.
fn object_of_cluster(of: &Value) -> Value {
    json!({"apiVersion": of["apiVersion"], "kind": of["kind"], "metadata": {"name": of["metadata"]["name"]}})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn proxies_are_told_a_waypoint_and_it_is_told_the_service() {
    let Some(kube) = binary() else { return };
    let (bed, kubeconfig) = with_waypoints(&kube).await;
    let replica = Replica::start_with("controller-0", &kubeconfig, &FLAGS);
    leads(&replica).await;
    bed.apply(gateway("shop", "edge")).await;
    // The Deployment is created last. From here on the test acts as the cluster's own controllers.
    let made = until("a Deployment", async || bed.get(deployment("shop", "edge")).await).await;
    let mut running = pod("edge-0", "10.244.0.9");
    let template = &made.data["spec"]["template"];
    running["metadata"]["labels"] = template["metadata"]["labels"].clone();
    running["spec"] = template["spec"].clone();
    bed.apply(running.clone()).await;
    bed.set_status(running).await;
    bed.apply(slice("edge", &["edge-0 10.244.0.9"])).await;
    let client = pod("web-0", "10.244.0.7");
    bed.apply(client.clone()).await;
    bed.set_status(client).await;
    let mut plain = pod("plain-0", "10.244.0.8");
    plain["spec"]["containers"] = json!([{"name": "app", "image": "app"}]);
    plain["spec"]["initContainers"] = Value::Null;
    bed.apply(plain.clone()).await;
    bed.set_status(plain).await;
    let mut app = service("app", 80);
    app["metadata"]["labels"] = json!({"leno.dev/use-waypoint": "edge"});
    bed.apply(app).await;
    bed.apply(slice("app", &["plain-0 10.244.0.8"])).await;

    let token = bed.token(("shop", "web"), Some("leno"), Some("web-0")).await;
    let client = Proxy::start(&bed, &replica, "shop/web-0", &token).await;
    client.sees("app", &["10.244.0.9:15008 spiffe://cluster.local/ns/shop/sa/edge"]).await;
    let token = bed.token(("shop", "edge"), Some("leno"), Some("edge-0")).await;
    let waypoint = Proxy::start(&bed, &replica, "shop/edge-0", &token).await;
    waypoint.sees("app", &["10.244.0.8:8080 "]).await;
    waypoint.is_waypoint_of("app").await;
    replica.end();
}
