//! Tests the controller while its API server restarts.

use std::collections::BTreeMap;

use leno_testkit_api::objects::{service, slice};
use leno_testkit_api::{Relay, TestApiServer, binary, until};

use crate::proxy::Proxy;
use crate::replica::Replica;
use crate::{cluster, leads, run_pod};

/// How many times the controller has listed all objects of each kind. The first `before` lists are not counted.
pub(crate) fn whole_reads(bed: &TestApiServer, before: usize) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for read in bed.reads("leno-controller").into_iter().skip(before).filter(|read| read.is_whole())
    {
        let selected = if read.query.contains("fieldSelector") { " (selected)" } else { "" };
        *counts.entry(read.path + selected).or_default() += 1;
    }
    counts
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_api_server_that_restarts_is_read_once_for_each_kind_and_no_stream_is_cut() {
    let Some(kube) = binary() else { return };
    let (mut bed, _) = cluster(&kube).await;
    let relay = Relay::start(bed.port).await;
    let token = bed.token(("leno-system", "controller"), None, None).await;
    let kubeconfig = bed.kubeconfig("relayed.kubeconfig", relay.port, &token);
    bed.apply(service("web", 80)).await;
    bed.apply(service("gone", 80)).await;
    run_pod(&bed, "web-0", "10.244.0.7").await;
    bed.apply(slice("web", &["web-0 10.244.0.7"])).await;
    let replica = Replica::start("controller-0", &kubeconfig);
    let token = bed.token(("shop", "web"), Some("leno"), Some("web-0")).await;
    let proxy = Proxy::start(&bed, &replica, "shop/web-0", &token).await;
    let web = "spiffe://cluster.local/ns/shop/sa/web";
    proxy.sees("web", &[&format!("10.244.0.7:8080 {web}")]).await;
    let services = |what: &str| format!("leno_control_cluster_{what}{{kind=\"Service\"}}");
    let stale = "leno_control_cluster_stale_seconds";
    until("all is followed", async || (replica.metric(stale).await == 0.0).then_some(())).await;
    leads(&replica).await;
    // The leader watches more objects than other replicas.
    let roots = "/api/v1/configmaps (selected)";
    let first = until("the leader follows what it keeps", async || {
        let first = whole_reads(&bed, 0);
        let followed = first.contains_key(roots) && first["/api/v1/namespaces"] == 2;
        followed.then_some(first)
    })
    .await;
    assert_eq!((first["/api/v1/services"], first[roots]), (1, 1), "{first:?}");
    let objects = replica.metric(&services("objects")).await;
    let before = bed.reads("leno-controller").len();

    relay.open(false);
    until("the outage is noticed", async || (replica.metric(stale).await > 0.0).then_some(()))
        .await;
    bed.delete(service("gone", 80)).await;
    bed.stop();
    bed.restart().await;
    relay.open(true);
    // The new process only knows resource versions from its start on. So the version from which the watch continues has
    // expired (410), and no event reports the deletion.
    bed.apply(slice("web", &[])).await;
    proxy.sees("web", &[]).await;
    until("all is followed again", async || (replica.metric(stale).await == 0.0).then_some(()))
        .await;
    until("the deletion is known", async || {
        (replica.metric(&services("objects")).await == objects - 1.0).then_some(())
    })
    .await;

    let again = whole_reads(&bed, before);
    let at_most = |path: &String| first.get(path).copied().unwrap_or(1);
    assert!(again.iter().all(|(path, count)| *count <= at_most(path)), "{first:?}, {again:?}");
    assert!(again.contains_key("/api/v1/services"), "its version has expired: {again:?}");
    let lists = bed.reads("leno-controller").into_iter().skip(before).filter(|read| read.is_list);
    assert_eq!(lists.collect::<Vec<_>>(), [], "all were streams of the server's cache");
    let status = proxy.status();
    assert!(status.connected, "discovery goes on");
    assert_eq!(status.connects, 1, "its stream was never cut");
    replica.end();
}
