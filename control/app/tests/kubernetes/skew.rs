//! Tests proxies of an earlier and of a later release, which are simulated on the wire. The first request of a
//! proxy names the features that it supports.

use leno_testkit_api::{TestApiServer, binary, until};
use leno_wire::proto::{DeltaDiscoveryRequest, Node};
use leno_wire::{AUTHORIZATION_FEATURE, PROTOCOL, SERVER_POLICY_TYPE};
use serde_json::{Value, json};
use tokio_stream::StreamExt as _;
use tonic::transport::Channel;

use crate::kinds::{own_pod, says_of};
use crate::operate::{findings, leno, pair};
use crate::proxy::Proxy;
use crate::replica::Replica;
use crate::{cluster, leads, run_pod, wire};

mod raw;

const CONDITION: &str = "leno.dev/PoliciesEnforced";

/// A policy for all workloads of the shop.
fn policy() -> Value {
    json!({"apiVersion": "leno.dev/v1alpha1", "kind": "AuthorizationPolicy",
        "metadata": {"name": "closed", "namespace": "shop"},
        "spec": {"selector": {}, "action": "Allow", "rules": []}})
}

async fn apply_policy(bed: &TestApiServer) {
    until("the kind is served", async || bed.serves(&policy()).await).await;
    bed.apply(policy()).await;
}

async fn run_own_pod(bed: &TestApiServer, replica: &str) {
    bed.apply(own_pod(replica)).await;
    bed.set_status(own_pod(replica)).await;
}

/// The stream of a proxy of the previous release. It has the same version of discovery, but supports none of the
/// features.
async fn older_proxy(bed: &TestApiServer, replica: &Replica, pod: &str) -> wire::Stream {
    let instance = format!("shop/{pod}");
    let mut older = open(bed, replica, pod).await;
    older.send_as(Node { features: Vec::new(), ..Node::of(&*instance) }).await;
    older
        .send(DeltaDiscoveryRequest {
            type_url: SERVER_POLICY_TYPE.to_owned(),
            resource_names_subscribe: vec![instance],
            ..DeltaDiscoveryRequest::default()
        })
        .await;
    let served = older.next().await.unwrap();
    assert_eq!(served.resources.len(), 1, "it is served as before: {served:?}");
    older
}

/// A stream of a pod's proxy, without a request.
async fn open(bed: &TestApiServer, replica: &Replica, pod: &str) -> wire::Stream {
    let channel = channel(bed, replica, pod).await;
    wire::Stream::open(channel, &format!("shop/{pod}")).await.unwrap()
}

/// A connection with the certificate of a pod's proxy.
async fn channel(bed: &TestApiServer, replica: &Replica, pod: &str) -> Channel {
    let token = bed.token(("shop", "web"), Some("leno"), Some(pod)).await;
    let address = replica.address().await.parse().unwrap();
    let (_, shown) = wire::issue(address, &token, None).await.unwrap();
    wire::connect(address, Some(&shown)).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_proxy_is_named_by_the_condition_by_check_and_counted_until_it_is_replaced() {
    let Some(kube) = binary() else { return };
    let (bed, kubeconfig) = cluster(&kube).await;
    for (name, address) in [("web-0", "10.244.0.7"), ("web-1", "10.244.0.8")] {
        run_pod(&bed, name, address).await;
    }
    apply_policy(&bed).await;
    run_own_pod(&bed, "controller-0").await;
    let replica = Replica::start("controller-0", &kubeconfig);
    assert_eq!(says_of(&bed, "controller-0", CONDITION, "True").await, "");
    let check = || findings(&leno(&bed.administrator(), &["check", "-o", "json"]));
    assert!(check().contains(&pair("policies", "good")));

    // A proxy of this release supports all features, so it enforces everything.
    let token = bed.token(("shop", "web"), Some("leno"), Some("web-1")).await;
    let current = Proxy::start(&bed, &replica, "shop/web-1", &token).await;
    current.has_policy().await;
    let unenforced = "leno_control_unenforced_workloads";
    assert_eq!(replica.metric(unenforced).await as u64, 0);

    let older = older_proxy(&bed, &replica, "web-0").await;
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

/// Waits until the condition `Programmed` of the policy has this status. Returns its reason and message.
async fn programmed(bed: &TestApiServer, status: &str, part: &str) -> (String, String) {
    until(&format!("Programmed={status} of the policy, with {part:?}"), async || {
        let stored = bed.get(policy()).await?;
        let [ancestor] = &stored.data["status"]["ancestors"].as_array()?[..] else { return None };
        let conditions = ancestor["conditions"].as_array()?;
        let found = conditions.iter().find(|one| one["type"] == "Programmed")?;
        let text = |field: &str| found[field].as_str().unwrap_or_default().to_owned();
        let is_so = text("status") == status && text("message").contains(part);
        is_so.then(|| (text("reason"), text("message")))
    })
    .await
}

/// The leader writes the status, but the proxies are connected to the other replica, and later to both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_status_of_a_policy_names_older_proxies_of_all_replicas_until_they_are_replaced() {
    let Some(kube) = binary() else { return };
    let (bed, kubeconfig) = cluster(&kube).await;
    for (name, address) in [("web-0", "10.244.0.7"), ("web-1", "10.244.0.8")] {
        run_pod(&bed, name, address).await;
    }
    apply_policy(&bed).await;
    for replica in ["controller-0", "controller-1"] {
        run_own_pod(&bed, replica).await;
    }
    let leader = Replica::start("controller-0", &kubeconfig);
    leads(&leader).await;
    let follower = Replica::start("controller-1", &kubeconfig);
    programmed(&bed, "True", "").await;

    let of_follower = older_proxy(&bed, &follower, "web-0").await;
    let (reason, message) = programmed(&bed, "False", "shop/web-0 ").await;
    assert_eq!(reason, "OlderProxies");
    assert!(message.contains("do not enforce it: restart these pods"), "{message}");
    let of_leader = older_proxy(&bed, &leader, "web-1").await;
    programmed(&bed, "False", "shop/web-0, shop/web-1 ").await;

    // The next leader reads the reports of all replicas before it writes.
    leader.end();
    bed.delete(own_pod("controller-0")).await;
    leads(&follower).await;
    drop(of_leader);
    let (_, message) = programmed(&bed, "False", "shop/web-0 ").await;
    assert!(!message.contains("web-1"), "{message}");
    drop(of_follower);
    assert_eq!(programmed(&bed, "True", "").await.0, "Programmed");
    let annotations = bed.get(own_pod("controller-1")).await.unwrap().metadata.annotations;
    assert_eq!(annotations.unwrap_or_default().get("leno.dev/unenforced-policies"), None);
    follower.end();
}

/// The simulated proxy names features, sends fields and subscribes to kinds of resources that this release does
/// not have. It gets what this release has, and counts as a proxy that enforces everything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_of_the_next_release_is_served_what_this_one_has() {
    let Some(kube) = binary() else { return };
    let (bed, kubeconfig) = cluster(&kube).await;
    run_pod(&bed, "web-0", "10.244.0.7").await;
    apply_policy(&bed).await;
    let replica = Replica::start("controller-0", &kubeconfig);
    let channel = channel(&bed, &replica, "web-0").await;

    let node = [
        raw::text(1, "shop/web-0"),
        raw::number(100, PROTOCOL),
        raw::text(101, "teleportation"),
        raw::text(101, AUTHORIZATION_FEATURE),
        raw::text(900, "a field of the next release"),
        raw::number(901, 7),
    ];
    let futures = "type.googleapis.com/leno.v1.Futures";
    let asked_of = |kind: &str, more: &[Vec<u8>]| {
        let own = [raw::text(2, kind), raw::text(3, "shop/web-0"), raw::number(900, 1)];
        [own.concat(), more.concat()].concat()
    };
    let first = asked_of(futures, &[raw::bytes(1, &node.concat()), raw::text(902, "more")]);
    let second = asked_of(SERVER_POLICY_TYPE, &[]);
    let mut answers = raw::discovery(channel, vec![first, second]).await.unwrap();
    let answer = answers.next().await.unwrap().unwrap();
    let has = |part: &str| answer.windows(part.len()).any(|window| window == part.as_bytes());
    assert!(has(SERVER_POLICY_TYPE) && has("shop/web-0"), "{}", String::from_utf8_lossy(&answer));
    assert_eq!(replica.metric("leno_control_streams").await as u64, 1, "the stream goes on");
    assert_eq!(replica.metric("leno_control_unenforced_workloads").await as u64, 0);
    assert_eq!(replica.metric("leno_control_authorization_not_enforced_total").await as u64, 0);

    // A change reaches this proxy as it reaches any other one.
    bed.delete(policy()).await;
    let answer = answers.next().await.unwrap().unwrap();
    assert!(answer.windows(10).any(|window| window == b"shop/web-0"));
    drop(answers);
    replica.end();
}
