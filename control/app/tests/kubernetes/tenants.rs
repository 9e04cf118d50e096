//! Tests tenants of a real cluster that claim what they do not own, and a cluster in which only some kinds can be
//! read.

use leno_kube::api::DynamicObject;
use leno_testkit_api::objects::{http_route_definition, service, slice};
use leno_testkit_api::{LIMIT, TestApiServer, binary, until};
use leno_types::Protocol;
use leno_types::mesh::{Resolution, declared};
use serde_json::{Value, json};
use tokio::sync::watch;

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
    // The `targetRef` in this slice names a pod of another namespace.
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

    // Even if an administrator lets the tenant write the status, the tenant cannot claim a pod.
    bed.set_status(claim).await;
    let workloads = "leno_control_cluster_objects{kind=\"Workload\"}";
    assert_eq!(replica.metric(workloads).await as u64, 1);
    proxy.sees("web", &[web]).await;
    replica.end();
}

/// Waits until the object at an address satisfies a condition, as one subscribed proxy sees it.
async fn becomes(
    what: &str,
    followed: &mut watch::Receiver<Resolution>,
    is: impl FnMut(&Resolution) -> bool,
) {
    let became = tokio::time::timeout(LIMIT, followed.wait_for(is)).await.is_ok();
    assert!(became, "{what} was awaited, and {:?} seen", *followed.borrow());
}

/// Two tenants claim an address that no pod has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_workloads_that_claim_an_address_the_older_has_it() {
    let Some(kube) = binary() else { return };
    let (bed, kubeconfig) = cluster(&kube).await;
    run_pod(&bed, "web-0", "10.244.0.7").await;
    let claim = |name: &str, namespace: &str| {
        json!({"apiVersion": "leno.dev/v1alpha1", "kind": "Workload",
            "metadata": {"name": name, "namespace": namespace}, "spec": {"command": ["x"]},
            "status": {"instances": [{"name": format!("{name}-0"), "addresses": ["10.0.0.9"],
                "meshed": true}]}})
    };
    for namespace in ["aaa", "zzz"] {
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        bed.apply(namespace).await;
    }
    // By namespace and name, the older claim comes last, so only its age can make it win.
    let (older, younger) = (claim("z", "zzz"), claim("a", "aaa"));
    until("the kind is served", async || bed.serves(&older).await).await;
    bed.apply(older.clone()).await;
    younger_than(&bed, &older, &younger).await;
    bed.set_status(younger.clone()).await;

    let replica = Replica::start("controller-0", &kubeconfig);
    let token = bed.token(("shop", "web"), Some("leno"), Some("web-0")).await;
    let proxy = Proxy::start(&bed, &replica, "shop/web-0", &token).await;
    let mut followed = proxy.dial("10.0.0.9".parse().unwrap());
    let is_of = |workload: &'static str| move |now: &Resolution| matches!(now, Resolution::Workload(one) if one.name.to_string() == workload);
    becomes("the only claim", &mut followed, is_of("aaa/a-0")).await;
    bed.set_status(older.clone()).await;
    becomes("the older claim", &mut followed, is_of("zzz/z-0")).await;
    bed.delete(older).await;
    becomes("the claim that is left", &mut followed, is_of("aaa/a-0")).await;
    replica.end();
}

/// Creates an object that is younger than `other`. Creation times have a resolution of seconds.
pub(crate) async fn younger_than(bed: &TestApiServer, other: &Value, object: &Value) {
    let created = |object: Option<DynamicObject>| object?.metadata.creation_timestamp;
    let other = created(bed.get(other.clone()).await).unwrap();
    until("a second has passed", async || {
        bed.apply(object.clone()).await;
        let now = created(bed.get(object.clone()).await)?;
        if now.0.as_second() > other.0.as_second() {
            return Some(());
        }
        bed.delete(object.clone()).await;
        None
    })
    .await;
}

/// A second service on a pod's port must not make the pod's proxy relay bytes to which it would otherwise apply
/// policies for requests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_app_protocols_that_contradict_each_other_the_stricter_holds() {
    let Some(kube) = binary() else { return };
    let (bed, kubeconfig) = cluster(&kube).await;
    run_pod(&bed, "web-0", "10.244.0.7").await;
    run_pod(&bed, "web-1", "10.244.0.8").await;
    let of_protocol = |name: &str, protocol: &str| {
        let (mut service, mut slice) = (service(name, 80), slice(name, &["web-0 10.244.0.7"]));
        service["spec"]["ports"][0]["appProtocol"] = json!(protocol);
        slice["ports"][0]["appProtocol"] = json!(protocol);
        [service, slice]
    };
    let replica = Replica::start("controller-0", &kubeconfig);
    let token = bed.token(("shop", "web"), Some("leno"), Some("web-1")).await;
    let proxy = Proxy::start(&bed, &replica, "shop/web-1", &token).await;
    let mut followed = proxy.dial("10.244.0.7".parse().unwrap());
    let is = |protocol: Protocol| move |now: &Resolution| matches!(now, Resolution::Workload(pod) if declared(&pod.ports, 8080) == protocol);
    for (name, protocol, holds) in [
        ("a", "mysql", Protocol::Opaque),
        ("b", "http", Protocol::Http1),
        ("b", "redis", Protocol::Opaque),
        ("a", "http", Protocol::Http1),
    ] {
        for object in of_protocol(name, protocol) {
            bed.apply(object).await;
        }
        becomes(&format!("{holds:?}"), &mut followed, is(holds)).await;
    }
    replica.end();
}

/// The control plane has no right to list one of the kinds.
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
