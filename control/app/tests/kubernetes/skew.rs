//! Proxies of an earlier release, played at the wire: their first request names the features that they have.

use leno_testkit_api::{binary, until};
use leno_wire::SERVER_POLICY_TYPE;
use leno_wire::proto::{DeltaDiscoveryRequest, Node};
use serde_json::json;

use crate::kinds::{own_pod, says_of};
use crate::operate::{findings, leno, pair};
use crate::proxy::Proxy;
use crate::replica::Replica;
use crate::{cluster, run_pod, wire};

const CONDITION: &str = "leno.dev/PoliciesEnforced";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_proxy_is_named_by_the_condition_by_check_and_counted_until_it_is_replaced() {
    let Some(kube) = binary() else { return };
    let (bed, kubeconfig) = cluster(&kube).await;
    for (name, address) in [("web-0", "10.244.0.7"), ("web-1", "10.244.0.8")] {
        run_pod(&bed, name, address).await;
    }
    let policy = json!({"apiVersion": "leno.dev/v1alpha1", "kind": "AuthorizationPolicy",
        "metadata": {"name": "closed", "namespace": "shop"},
        "spec": {"selector": {}, "action": "Allow", "rules": []}});
    until("the kind is served", async || bed.serves(&policy).await).await;
    bed.apply(policy).await;
    bed.apply(own_pod("controller-0")).await;
    bed.set_status(own_pod("controller-0")).await;
    let replica = Replica::start("controller-0", &kubeconfig);
    assert_eq!(says_of(&bed, "controller-0", CONDITION, "True").await, "");
    let check = || findings(&leno(&bed.administrator(), &["check", "-o", "json"]));
    assert!(check().contains(&pair("policies", "good")));

    // Of this release: it enforces all.
    let token = bed.token(("shop", "web"), Some("leno"), Some("web-1")).await;
    let current = Proxy::start(&bed, &replica, "shop/web-1", &token).await;
    current.has_policy().await;
    let unenforced = "leno_control_unenforced_workloads";
    assert_eq!(replica.metric(unenforced).await as u64, 0);

    // Of the one before: it speaks the same version of discovery, and has none of the features.
    let token = bed.token(("shop", "web"), Some("leno"), Some("web-0")).await;
    let address = replica.address().await.parse().unwrap();
    let (_, shown) = wire::issue(address, &token, None).await.unwrap();
    let channel = wire::connect(address, Some(&shown)).await.unwrap();
    let mut older = wire::Stream::open(channel, "shop/web-0").await.unwrap();
    older.send_as(Node { features: Vec::new(), ..Node::of("shop/web-0") }).await;
    older
        .send(DeltaDiscoveryRequest {
            type_url: SERVER_POLICY_TYPE.to_owned(),
            resource_names_subscribe: vec!["shop/web-0".to_owned()],
            ..DeltaDiscoveryRequest::default()
        })
        .await;
    let served = older.next().await.unwrap();
    assert_eq!(served.resources.len(), 1, "it is served as before: {served:?}");
    assert_eq!(replica.metric(unenforced).await as u64, 1);
    let said = says_of(&bed, "controller-0", CONDITION, "False").await;
    let named = "the proxy of shop/web-0 is of an earlier release (no authorization) and does not enforce shop/closed";
    assert!(said.contains(named) && said.contains("restart"), "{said}");
    assert!(!said.contains("web-1"), "{said}");
    assert!(check().contains(&pair("policies", "warning")));

    drop(older);
    assert_eq!(says_of(&bed, "controller-0", CONDITION, "True").await, "");
    assert_eq!(replica.metric(unenforced).await as u64, 0);
    assert!(check().contains(&pair("policies", "good")));
    replica.end();
}
