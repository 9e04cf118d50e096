//! Tenants of a real cluster that claim what is not theirs, and a cluster that answers for some kinds only.

use leno_testkit_api::objects::{http_route_definition, service, slice};
use leno_testkit_api::{binary, until};
use serde_json::{Value, json};

use crate::proxy::Proxy;
use crate::replica::Replica;
use crate::{admission, cluster, run_pod};

fn in_namespace(mut object: Value, namespace: &str) -> Value {
    object["metadata"]["namespace"] = json!(namespace);
    object
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_endpoint_slice_and_a_claimed_address_change_nothing_for_others() {
    let Some(kube) = binary() else { return };
    let (bed, kubeconfig) = cluster(&kube).await;
    bed.apply(service("web", 80)).await;
    run_pod(&bed, "web-0", "10.244.0.7").await;
    bed.apply(slice("web", &["web-0 10.244.0.7"])).await;
    bed.apply(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "evil"}})).await;
    bed.apply(in_namespace(service("trap", 80), "evil")).await;
    // Its targetRef names the pod of the shop.
    bed.apply(in_namespace(slice("trap", &["web-0 10.244.0.7"]), "evil")).await;
    let claim = json!({"apiVersion": "leno.dev/v1alpha1", "kind": "Workload",
        "metadata": {"name": "aaa", "namespace": "evil"}, "spec": {"command": ["x"]},
        "status": {"instances": [{"name": "aaa-0", "addresses": ["10.244.0.7"], "meshed": true}]}});
    until("the kind is served", async || bed.serves(&claim).await).await;
    bed.apply(claim.clone()).await;
    let stored = bed.get(claim.clone()).await.unwrap();
    assert!(stored.data.get("status").is_none(), "a right to workloads is none to their status");

    let replica = Replica::start("controller-0", &kubeconfig);
    let token = bed.token(("shop", "web"), Some("leno"), Some("web-0")).await;
    let proxy = Proxy::start(&bed, &replica, "shop/web-0", &token).await;
    let web = "10.244.0.7:8080 spiffe://cluster.local/ns/shop/sa/web";
    proxy.sees("web", &[web]).await;
    let refused = "leno_control_refused_endpoints{reason=\"foreign-target\"}";
    assert_eq!(replica.metric(refused).await as u64, 1);
    replica.line("endpoints are ignored").await;

    // An administrator who lets the tenant write the status, too, lets it claim no pod.
    bed.set_status(claim).await;
    let workloads = "leno_control_cluster_objects{kind=\"Workload\"}";
    assert_eq!(replica.metric(workloads).await as u64, 1);
    proxy.sees("web", &[web]).await;
    replica.end();
}

/// A right to one definition is missing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kind_that_cannot_be_listed_costs_that_kind_only() {
    let Some(kube) = binary() else { return };
    let (bed, kubeconfig) = cluster(&kube).await;
    bed.apply(http_route_definition()).await;
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "leno-controller"}});
    let mut rules = bed.get(role.clone()).await.unwrap().data["rules"].clone();
    let gateway = json!(["gateway.networking.k8s.io"]);
    rules.as_array_mut().unwrap().retain(|rule| rule["apiGroups"] != gateway);
    bed.merge(role.clone(), json!({"rules": rules})).await;
    run_pod(&bed, "web-0", "10.244.0.7").await;
    bed.apply(service("web", 80)).await;
    bed.apply(slice("web", &["web-0 10.244.0.7"])).await;

    let replica = Replica::start("controller-0", &kubeconfig);
    let token = bed.token(("shop", "web"), Some("leno"), Some("web-0")).await;
    let proxy = Proxy::start(&bed, &replica, "shop/web-0", &token).await;
    proxy.sees("web", &["10.244.0.7:8080 spiffe://cluster.local/ns/shop/sa/web"]).await;
    admission::install(&bed, replica.webhook().await).await;
    let ready = replica.page("/ready?verbose").await;
    assert!(ready.starts_with("HTTP/1.1 200"), "{ready}");
    assert!(ready.contains("HTTPRoute: not followed for "), "{ready}");
    assert!(ready.contains("forbidden"), "{ready}");
    assert!(ready.contains("Pod: followed, 1 objects"), "{ready}");
    let unfollowed = |kind| format!("leno_control_cluster_unfollowed{{kind=\"{kind}\"}}");
    assert_eq!(replica.metric(&unfollowed("HTTPRoute")).await as u64, 1);
    assert_eq!(replica.metric(&unfollowed("Service")).await as u64, 0);
    replica.end();
}
