//! Tests which certificates of pods a node proxy gets. This depends on the nodes on which the API server reports
//! the pods.

mod process;

use std::sync::Arc;

use leno_discovery::{Certificate, IdentityClient, Settings};
use leno_testkit_api::{TestApiServer, binary, until};
use serde_json::{Value, json};

use crate::proxy::{self, Proxy};
use crate::replica::Replica;
use crate::{admission, cluster, run_pod};
use process::NodeProxy;

/// A pod of the namespace `shop` on this node.
fn on_node(name: &str, node: &str, annotations: Value) -> Value {
    let labels = json!({"leno.dev/inject": "enabled"});
    let metadata =
        json!({"name": name, "namespace": "shop", "labels": labels, "annotations": annotations});
    let containers = json!([{"name": "web", "image": "web"}]);
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata,
        "spec": {"serviceAccountName": "web", "nodeName": node, "containers": containers}})
}

fn node_mode() -> Value {
    json!({"leno.dev/mode": "node"})
}

/// The token of a node's proxies, as the API server gives it to the kubelet: it is bound to a proxy pod on this
/// node.
async fn node_proxies(bed: &TestApiServer, account: &str, node: &str) -> String {
    let name = format!("{account}-{node}");
    let metadata = json!({"name": account, "namespace": "leno-system"});
    bed.apply(json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})).await;
    let mut pod = on_node(&name, node, json!({}));
    pod["metadata"]["namespace"] = json!("leno-system");
    pod["spec"]["serviceAccountName"] = json!(account);
    bed.apply(pod).await;
    bed.token(("leno-system", account), Some("leno"), Some(&name)).await
}

async fn uid(bed: &TestApiServer, pod: &str) -> String {
    let metadata = json!({"name": pod, "namespace": "shop"});
    let found = bed.get(json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata})).await;
    found.unwrap().metadata.uid.unwrap()
}

/// Creates a pod in node mode that runs on a node. Returns its UID.
async fn run_on_node(bed: &TestApiServer, name: &str, node: &str, ip: &str) -> String {
    let mut pod = on_node(name, node, node_mode());
    bed.apply(pod.clone()).await;
    pod["status"] = json!({"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}]});
    bed.set_status(pod).await;
    uid(bed, name).await
}

/// The settings of a client that requests a pod's certificate with this token.
async fn settings(
    bed: &TestApiServer,
    replica: &Replica,
    token: &str,
    (pod, uid): (&str, &str),
) -> Settings {
    let instance = format!("shop/{pod}");
    let settings = proxy::settings_of(bed, replica, &instance, token).await;
    Settings { pod_uid: Some(uid.to_owned()), ..settings }
}

/// Requests a pod's certificate with this token.
async fn issue(
    bed: &TestApiServer,
    replica: &Replica,
    token: &str,
    pod: (&str, &str),
) -> Result<Certificate, String> {
    let settings = settings(bed, replica, token, pod).await;
    IdentityClient::new(Arc::new(settings)).issue().await.map_err(|error| error.to_string())
}

fn is_of(certificate: &Certificate, identity: &str) -> bool {
    let leaf = &certificate.chain_der[0];
    leaf.windows(identity.len()).any(|part| part == identity.as_bytes())
}

const WEB: &str = "spiffe://cluster.local/ns/shop/sa/web";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_compromised_node_proxy_gets_no_identity_of_a_workload_elsewhere() {
    let Some(kube) = binary() else { return };
    let (bed, kubeconfig) = cluster(&kube).await;
    let replica = Replica::start("controller-0", &kubeconfig);
    let token = node_proxies(&bed, "node", "n1").await;
    bed.apply(on_node("here", "n1", node_mode())).await;
    bed.apply(on_node("elsewhere", "n2", node_mode())).await;
    bed.apply(on_node("sidecar", "n1", json!({}))).await;
    let [here, elsewhere, sidecar] =
        [uid(&bed, "here").await, uid(&bed, "elsewhere").await, uid(&bed, "sidecar").await];

    let own = issue(&bed, &replica, &token, ("here", &here)).await.unwrap();
    assert!(is_of(&own, WEB), "the pod's identity, not the node proxy's");
    let rows = [
        (("elsewhere", elsewhere.as_str()), "does not run on node n1"),
        (("here", elsewhere.as_str()), "does not have the UID"),
        (("elsewhere", here.as_str()), "does not have the UID"),
        (("absent", here.as_str()), "there is no pod shop/absent"),
        (("sidecar", sidecar.as_str()), "is not in node mode"),
    ];
    for (pod, why) in rows {
        let refused = issue(&bed, &replica, &token, pod).await.unwrap_err();
        assert!(refused.contains(why), "{pod:?}: {refused}");
    }
    let counted = async |result: &str| {
        let series = format!("leno_control_node_proxy_requests_total{{result=\"{result}\"}}");
        replica.metric(&series).await as u64
    };
    assert_eq!((counted("accepted").await, counted("refused").await), (1, rows.len() as u64));

    // Naming a pod is not enough for a certificate: the agent's token and the pod's own token are refused.
    let agent = node_proxies(&bed, "agent", "n1").await;
    let web = bed.token(("shop", "web"), Some("leno"), Some("here")).await;
    let unbound = bed.token(("leno-system", "node"), Some("leno"), None).await;
    for (token, why) in [
        (&agent, "sa/agent is not a node proxy"),
        (&web, "sa/web is not a node proxy"),
        (&unbound, "the token of the node proxy names no pod"),
    ] {
        let refused = issue(&bed, &replica, token, ("here", &here)).await.unwrap_err();
        assert!(refused.contains(why), "{refused}");
    }
    replica.end();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_proxy_gets_certificates_of_a_pod_until_the_pod_leaves_or_ends() {
    let Some(kube) = binary() else { return };
    let (bed, kubeconfig) = cluster(&kube).await;
    let replica = Replica::start("controller-0", &kubeconfig);
    let token = node_proxies(&bed, "node", "n1").await;
    let shop = |mode: &str| {
        let metadata = json!({"name": "shop", "labels": {"leno.dev/mode": mode}});
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    };
    bed.apply(shop("node")).await;
    bed.apply(on_node("web-0", "n1", json!({}))).await;
    let first = uid(&bed, "web-0").await;
    issue(&bed, &replica, &token, ("web-0", &first)).await.unwrap();

    // Each request is decided by the present state of the API server, so a renewal gets the same decision as a
    // first request.
    bed.apply(shop("sidecar")).await;
    let refused = issue(&bed, &replica, &token, ("web-0", &first)).await.unwrap_err();
    assert!(refused.contains("is not in node mode"), "{refused}");
    bed.apply(shop("node")).await;
    issue(&bed, &replica, &token, ("web-0", &first)).await.unwrap();

    let mut ended = on_node("web-0", "n1", json!({}));
    ended["status"] = json!({"phase": "Succeeded"});
    bed.set_status(ended.clone()).await;
    let refused = issue(&bed, &replica, &token, ("web-0", &first)).await.unwrap_err();
    assert!(refused.contains("has ended"), "{refused}");
    bed.delete(ended).await;
    until("the pod is gone", async || {
        let refused = issue(&bed, &replica, &token, ("web-0", &first)).await.unwrap_err();
        refused.contains("there is no pod").then_some(())
    })
    .await;

    // A StatefulSet would create the pod again on another node like this.
    bed.apply(on_node("web-0", "n2", json!({}))).await;
    let second = uid(&bed, "web-0").await;
    for (of, why) in [(&first, "does not have the UID"), (&second, "does not run on node n1")] {
        let refused = issue(&bed, &replica, &token, ("web-0", of)).await.unwrap_err();
        assert!(refused.contains(why), "{refused}");
    }
    replica.end();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_proxy_follows_discovery_as_each_of_its_pods() {
    let Some(kube) = binary() else { return };
    let (bed, kubeconfig) = cluster(&kube).await;
    let replica = Replica::start("controller-0", &kubeconfig);
    let token = node_proxies(&bed, "node", "n1").await;
    run_pod(&bed, "other-0", "10.244.0.9").await;
    let mut web = on_node("web-0", "n1", node_mode());
    bed.apply(web.clone()).await;
    web["status"] =
        json!({"phase": "Running", "podIP": "10.244.0.7", "podIPs": [{"ip": "10.244.0.7"}]});
    bed.set_status(web).await;
    let of_web = uid(&bed, "web-0").await;
    let proxy = Proxy::with(settings(&bed, &replica, &token, ("web-0", &of_web)).await);
    assert!(proxy.certificate().await.windows(WEB.len()).any(|part| part == WEB.as_bytes()));
    proxy.has_policy().await;
    assert!(proxy.is_connected());
    replica.end();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_process_of_a_node_proxy_serves_the_pods_of_its_node_by_one_token() {
    let Some(kube) = binary() else { return };
    let (bed, kubeconfig) = cluster(&kube).await;
    let replica = Replica::start("controller-0", &kubeconfig);
    let token = node_proxies(&bed, "node", "n1").await;
    let roots = proxy::roots(&bed).await;
    let control = format!("https://{}", replica.address().await);
    let node_proxy =
        NodeProxy::start(&bed.directory.path().join("node-proxy"), &control, &roots, &token);
    let mut served = Vec::new();
    for (name, node, ip) in [
        ("web-0", "n1", "10.244.0.7"),
        ("web-1", "n1", "10.244.0.8"),
        ("elsewhere", "n2", "10.244.1.7"),
    ] {
        let uid = run_on_node(&bed, name, node, ip).await;
        served.push(node_proxy.serve((name, &uid)));
    }
    let [first, second, elsewhere] = &served[..] else { unreachable!() };
    for (pod, name) in [(first, "web-0"), (second, "web-1")] {
        until(&format!("{name} is served"), async || {
            pod.page("/ready").starts_with("HTTP/1.1 200").then_some(())
        })
        .await;
        let config = pod.page("/config");
        assert!(config.contains(WEB) && config.contains(name), "{config}");
    }
    until("the other one is refused", async || {
        node_proxy.log().contains("the pod shop/elsewhere does not run on node n1").then_some(())
    })
    .await;
    assert!(elsewhere.page("/ready").starts_with("HTTP/1.1 503"));
    assert!(!elsewhere.page("/config").contains(WEB));
    replica.end();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_injector_reads_the_mode_of_a_pod_and_of_its_namespace() {
    let Some(kube) = binary() else { return };
    let (bed, kubeconfig) = cluster(&kube).await;
    let replica = Replica::start("controller-0", &kubeconfig);
    admission::install(&bed, replica.webhook().await).await;
    let labels = json!({"leno.dev/inject": "enabled"});
    let shop = async |annotations: Value| {
        admission::namespace(&bed, "shop", labels.clone(), annotations).await;
    };
    shop(json!({})).await;
    let plain = admission::pod("shop", json!({}));
    admission::injected(&bed, &plain).await;

    for (annotations, why) in [
        (json!({"leno.dev/mode": "nod"}), "which its namespace sets, is not one of sidecar, node"),
        (json!({"leno.dev/share": "pods"}), "which its namespace sets, is not one of workload"),
    ] {
        shop(annotations).await;
        // The webhook learns of the namespace's change through a watch, so this waits.
        until(why, async || {
            let refused = bed.tried(&plain).await.err()?;
            refused.contains(why).then_some(())
        })
        .await;
    }
    let own = json!({"leno.dev/mode": "sidecar", "leno.dev/share": "node"});
    admission::injected(&bed, &admission::pod("shop", own)).await;
    shop(node_mode()).await;
    until("a pod in node mode is not touched", async || {
        let stored = bed.tried(&plain).await.ok()?;
        stored["spec"]["initContainers"].is_null().then_some(())
    })
    .await;
    shop(json!({})).await;
    admission::injected(&bed, &plain).await;
    for (own, why) in [
        (json!({"leno.dev/mode": "Sidecar"}), "is not one of sidecar, node"),
        (
            json!({"leno.dev/share": "pod"}),
            "is not one of workload, service-account, namespace, node",
        ),
    ] {
        let refused = bed.tried(&admission::pod("shop", own)).await.unwrap_err();
        assert!(refused.contains(why), "{refused}");
    }
    replica.end();
}
