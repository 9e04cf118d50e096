//! Tests the real controller against a real API server and etcd, and the client side of discovery in the proxy against
//! the controller.
//!
//! Needs `CLUSTER_KUBE`, a binary with both (`scripts/cluster.sh api-test` builds it and runs this). Without the
//! variable, every test reports that it is skipped, or fails if `LENO_REQUIRE` contains `kubernetes`. The tests do
//! not need root, and leave nothing behind.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod admission;
mod attacks;
mod burst;
mod kept;
mod key_secrets;
mod kinds;
#[path = "../../../serve/tests/scale/machine.rs"]
mod machine;
mod nodes;
mod observer;
mod operate;
mod outages;
mod outside;
mod pod_certificates;
mod policies;
mod proxy;
mod rebalance;
mod removal;
mod replica;
mod rotation;
mod scale;
mod skew;
mod tenants;
mod trust_bundle;
mod waypoints;
#[path = "../../../serve/tests/serve/client.rs"]
#[expect(dead_code, reason = "the tests of leno-serve use all of it")]
mod wire;
mod workload_api;
mod xmesh;

use std::collections::BTreeSet;

use serde_json::{Value, json};

use leno_charts::{NAMESPACE, Values};

use leno_testkit_api::objects::{
    condition, http_route, http_route_definition, pod, service, slice,
};
use leno_testkit_api::{Relay, TestApiServer, binary, until};
use proxy::Proxy;
use replica::Replica;

/// The guide's pages about metrics: in a cluster, and everywhere else.
const GUIDE: [&str; 2] = [
    include_str!("../../../../docs/guide/kubernetes.md"),
    include_str!("../../../../docs/guide/metrics.md"),
];

/// The documents of an installation whose kind is wanted.
fn installed(wanted: impl Fn(&str) -> bool) -> String {
    let all = leno_charts::render(&Values::defaults(), NAMESPACE).unwrap();
    let kind = |document: &&str| {
        document.lines().find_map(|line| line.strip_prefix("kind: ")).is_some_and(&wanted)
    };
    all.split("---\n").filter(kind).collect::<Vec<_>>().join("---\n")
}

/// An API server with the documents of an installation, and a kubeconfig with the control plane's service account.
async fn cluster(kube: &std::path::Path) -> (TestApiServer, std::path::PathBuf) {
    cluster_with(kube, &[]).await
}

/// As [`cluster`], with flags for the API server.
async fn cluster_with(
    kube: &std::path::Path,
    flags: &[&str],
) -> (TestApiServer, std::path::PathBuf) {
    let bed = TestApiServer::start_with(kube, flags).await;
    // The configurations of webhooks are left out, because webhooks without a server would block every request.
    bed.apply_yaml(&installed(|kind| !kind.ends_with("WebhookConfiguration"))).await;
    let token = bed.token(("leno-system", "controller"), None, None).await;
    let kubeconfig = bed.kubeconfig("controller.kubeconfig", bed.port, &token);
    bed.apply(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}})).await;
    for name in ["web", "other"] {
        let metadata = json!({"name": name, "namespace": "shop"});
        bed.apply(json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}))
            .await;
    }
    (bed, kubeconfig)
}

async fn run_pod(bed: &TestApiServer, name: &str, address: &str) {
    bed.apply(pod(name, address)).await;
    bed.set_status(pod(name, address)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_follows_a_cluster_through_changes_and_an_outage_of_its_api_server() {
    let Some(kube) = binary() else { return };
    let (mut bed, kubeconfig) = cluster(&kube).await;
    bed.apply(service("web", 80)).await;
    run_pod(&bed, "web-0", "10.244.0.7").await;
    bed.apply(slice("web", &["web-0 10.244.0.7"])).await;
    let replica = Replica::start("controller-0", &kubeconfig);

    let token = bed.token(("shop", "web"), Some("leno"), Some("web-0")).await;
    let proxy = Proxy::start(&bed, &replica, "shop/web-0", &token).await;
    let web = "spiffe://cluster.local/ns/shop/sa/web";
    proxy.sees("web", &[&format!("10.244.0.7:8080 {web}")]).await;
    assert!(proxy.certificate().await.windows(web.len()).any(|part| part == web.as_bytes()));

    run_pod(&bed, "web-1", "10.244.0.8").await;
    bed.apply(slice("web", &["web-0 10.244.0.7", "web-1 10.244.0.8"])).await;
    let both = [&*format!("10.244.0.7:8080 {web}"), &*format!("10.244.0.8:8080 {web}")];
    proxy.sees("web", &both).await;

    bed.stop();
    until("the replica says that its state is old", async || {
        let stale = replica.metric("leno_control_cluster_stale_seconds").await;
        (stale > 0.1).then_some(())
    })
    .await;
    assert!(replica.page("/ready").await.starts_with("HTTP/1.1 200"));
    proxy.sees("web", &both).await;
    assert!(proxy.is_connected(), "discovery goes on without the API server");

    bed.restart().await;
    bed.apply(slice("web", &["web-1 10.244.0.8"])).await;
    proxy.sees("web", &both[1..]).await;
    until("the replica's state is new again", async || {
        let stale = replica.metric("leno_control_cluster_stale_seconds").await;
        (stale == 0.0).then_some(())
    })
    .await;
    is_documented(&replica).await;
    assert!(
        replica.metric("leno_control_cluster_watch_failures_total{kind=\"Service\"}").await > 0.0
    );
    replica.end();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_that_are_cut_go_on_where_they_were() {
    let Some(kube) = binary() else { return };
    let (bed, _) = cluster(&kube).await;
    bed.apply(service("web", 80)).await;
    let relay = Relay::start(bed.port).await;
    let token = bed.token(("leno-system", "controller"), None, None).await;
    let kubeconfig = bed.kubeconfig("relayed.kubeconfig", relay.port, &token);
    let replica = Replica::start("controller-0", &kubeconfig);
    replica.line("serving discovery and identity").await;
    let services = |what: &str| format!("leno_control_cluster_{what}{{kind=\"Service\"}}");
    let stale = "leno_control_cluster_stale_seconds";
    until("all is followed", async || (replica.metric(stale).await == 0.0).then_some(())).await;
    let lists = replica.metric(&services("lists_total")).await;
    let before = replica.metric(&services("objects")).await;

    relay.open(false);
    until("the cut is noticed", async || (replica.metric(stale).await > 0.0).then_some(())).await;
    bed.apply(service("other", 80)).await;
    let of_none = "leno_control_cluster_watch_failures_total{kind=\"GRPCRoute\"}";
    until("a watch of a kind that is not installed has failed", async || {
        (replica.metric(of_none).await > 0.0).then_some(())
    })
    .await;
    relay.open(true);
    // Most kinds have no changes at this time, so the replica must notice by other means that its watches work
    // again.
    until("all is followed again", async || (replica.metric(stale).await == 0.0).then_some(()))
        .await;
    until("the change during the cut is applied", async || {
        (replica.metric(&services("objects")).await == before + 1.0).then_some(())
    })
    .await;
    assert_eq!(replica.metric(&services("lists_total")).await, lists, "nothing was listed again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_proves_only_what_the_api_server_says_of_it() {
    let Some(kube) = binary() else { return };
    let (bed, kubeconfig) = cluster(&kube).await;
    run_pod(&bed, "web-0", "10.244.0.7").await;
    let replica = Replica::start("controller-0", &kubeconfig);

    let good = bed.token(("shop", "web"), Some("leno"), Some("web-0")).await;
    proxy::issue(&bed, &replica, &good).await.unwrap();
    proxy::issue(&bed, &replica, &good).await.unwrap();
    let reviews = "leno_control_token_reviews_total";
    assert_eq!(replica.metric(&format!("{reviews}{{result=\"accepted\"}}")).await as u64, 1);
    assert_eq!(replica.metric(&format!("{reviews}{{result=\"cached\"}}")).await as u64, 1);

    let for_others = bed.token(("shop", "web"), Some("vault"), Some("web-0")).await;
    let refused = proxy::issue(&bed, &replica, &for_others).await.unwrap_err();
    assert!(refused.contains("the token is for \"vault\", not for \"leno\""), "{refused}");

    run_pod(&bed, "web-1", "10.244.0.8").await;
    let of_the_gone = bed.token(("shop", "web"), Some("leno"), Some("web-1")).await;
    bed.delete(pod("web-1", "")).await;
    let refused = proxy::issue(&bed, &replica, &of_the_gone).await.unwrap_err();
    assert!(refused.contains("the API server does not accept the token"), "{refused}");

    // A token of another service account that names this pod gets a certificate, but no discovery: its streams end
    // before their first response. Until a stream ends, the proxy counts as connected.
    let others = bed.token(("shop", "other"), Some("leno"), None).await;
    let other = Proxy::start(&bed, &replica, "shop/web-0", &others).await;
    replica.line("sa/other is not the identity of shop/web-0").await;
    until("the end of its stream", async || (!other.is_connected()).then_some(())).await;
    assert!(!other.knows_its_policy());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_replica_writes_what_becomes_of_routes_and_another_takes_over() {
    let Some(kube) = binary() else { return };
    let (bed, kubeconfig) = cluster(&kube).await;
    bed.apply(service("web", 80)).await;
    let first = Replica::start("controller-0", &kubeconfig);
    leads(&first).await;
    let second = Replica::start("controller-1", &kubeconfig);
    let absent = "the cluster has no such kind";
    second.line(absent).await;

    run_pod(&bed, "web-0", "10.244.0.7").await;
    let token = bed.token(("shop", "web"), Some("leno"), Some("web-0")).await;
    let roots = proxy::issue(&bed, &first, &token).await.unwrap().roots_der();
    assert_eq!(proxy::issue(&bed, &second, &token).await.unwrap().roots_der(), roots);
    let root = proxy::roots(&bed).await;
    bed.delete(proxy::authority()).await;
    assert_eq!(proxy::roots(&bed).await, root, "the replica that has it puts it back");

    bed.apply(http_route_definition()).await;
    until("the kind is served", async || bed.serves(&http_route("good", "web")).await).await;
    bed.apply(http_route("good", "web")).await;
    bed.apply(http_route("bad", "nobody")).await;
    judged(&bed, "good", ("Accepted", "True", "Accepted")).await;
    judged(&bed, "good", ("ResolvedRefs", "True", "ResolvedRefs")).await;
    judged(&bed, "bad", ("Accepted", "True", "Accepted")).await;
    judged(&bed, "bad", ("ResolvedRefs", "False", "BackendNotFound")).await;
    assert_eq!(second.metric("leno_control_leader").await as u64, 0);
    let written = "leno_control_status_writes_total{result=\"written\"}";
    // A write is counted when its response arrives. Other clients may see the status earlier.
    until("both writes are counted", async || {
        (first.metric(written).await as u64 >= 2).then_some(())
    })
    .await;
    assert_eq!(first.metric(written).await as u64, 2, "each route once");
    assert_eq!(second.metric(written).await as u64, 0, "only the leader writes");
    assert_eq!(second.count("kind=\"HTTPRoute\" the cluster") + http_route_lines(&second), 1);

    let mut misspelt = http_route("good", "web");
    misspelt["spec"]["rules"][0]["backendRef"] = json!([]);
    bed.apply(misspelt).await;
    judged(&bed, "good", ("Accepted", "False", "UnsupportedValue")).await;

    // The replica releases the lease when it ends, so the next replica leads long before the lease expires.
    first.end();
    leads(&second).await;
    bed.apply(service("nobody", 80)).await;
    judged(&bed, "bad", ("ResolvedRefs", "True", "ResolvedRefs")).await;

    // The next replica also takes over from a replica that was killed and could not release the lease.
    let third = Replica::start("controller-2", &kubeconfig);
    third.line("serving discovery and identity").await;
    drop(second);
    leads(&third).await;
    bed.apply(http_route("good", "gone")).await;
    judged(&bed, "good", ("ResolvedRefs", "False", "BackendNotFound")).await;
    third.end();
}

/// Asserts that the guide describes exactly the series of a replica, with the same help texts.
async fn is_documented(replica: &Replica) {
    let page = replica.page("/metrics").await;
    let exposed = page.lines().filter_map(|line| line.strip_prefix("# HELP ")?.split_once(' '));
    let exposed: BTreeSet<(&str, &str)> = exposed.collect();
    let row = |line: &'static str| {
        let (name, cells) = line.strip_prefix("| `")?.split_once("` | ")?;
        let help = cells.strip_suffix(" |")?.rsplit_once("| ")?.1;
        name.starts_with("leno_control_").then_some((name, help))
    };
    let told: BTreeSet<(&str, &str)> =
        GUIDE.iter().flat_map(|page| page.lines()).filter_map(row).collect();
    assert_eq!(exposed, told);
}

/// How many times a replica has logged that the cluster has no HTTPRoute kind.
fn http_route_lines(replica: &Replica) -> usize {
    replica.count("no such kind; it is watched once it is installed kind=\"HTTPRoute\"")
}

async fn leads(replica: &Replica) {
    replica.line("serving /metrics").await;
    until("the replica leads", async || {
        (replica.metric("leno_control_leader").await as u64 == 1).then_some(())
    })
    .await;
}

/// Waits until any of these replicas leads.
async fn one_leads(replicas: &[Replica]) {
    until("a replica leads", async || {
        for replica in replicas {
            if replica.metric("leno_control_leader").await as u64 == 1 {
                return Some(());
            }
        }
        None
    })
    .await;
}

/// Waits until a condition of a route's only parent has this status and reason, for the newest generation.
async fn judged(bed: &TestApiServer, route: &str, (kind, status, reason): (&str, &str, &str)) {
    let what = format!("{kind}={status} ({reason}) of {route}");
    until(&what, async || {
        let route = bed.get(http_route(route, "")).await?;
        let found = condition(&route, kind)?;
        let generation = json!(route.metadata.generation);
        let wanted = [("status", json!(status)), ("reason", json!(reason))];
        let same = wanted.iter().all(|(field, value)| found[*field] == *value);
        let newest = found["observedGeneration"] == generation && generation != Value::Null;
        (same && newest).then_some(())
    })
    .await;
}
