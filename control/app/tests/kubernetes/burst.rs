//! Tests that pods can be created while many routes are applied at once.

use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use leno_testkit_api::objects::{http_route, http_route_definition, service};
use leno_testkit_api::{TestApiServer, binary, until};
use serde_json::json;
use tokio::time::{MissedTickBehavior, interval};

use crate::admission::{injected, install, namespace, pod, proxy_of};
use crate::cluster;
use crate::replica::Replica;

/// How many routes are applied at once.
const ROUTES: usize = 200;
/// The time between the creation of two pods: 20 pods a second.
const BETWEEN_PODS: Duration = Duration::from_millis(50);
/// How many pods are created at least, even if all routes are applied earlier.
const PODS: usize = 40;
/// The controller's memory must stay below this. A debug build needs a third of it when idle.
const MOST_KIB: u64 = 256 * 1024;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_pod_gets_its_proxy_while_two_hundred_routes_are_applied_at_once() {
    let Some(kube) = binary() else { return };
    let (bed, kubeconfig) = cluster(&kube).await;
    bed.apply(http_route_definition()).await;
    until("the kind is served", async || bed.serves(&http_route("r", "web")).await).await;
    bed.apply(service("web", 80)).await;
    let replica = Replica::start("controller-0", &kubeconfig);
    let burst = run(&bed, &replica, ROUTES).await;
    let resident = replica.status_kib("VmRSS");
    println!("{} pods created, {resident} KiB resident", burst.waits.len());
    assert!(resident < MOST_KIB, "{resident} KiB are resident");
    replica.end();
}

/// Measurements during the burst.
pub(crate) struct Burst {
    /// How long the API server took to create each pod.
    pub(crate) waits: Vec<Duration>,
}

/// Applies `count` routes at once, and creates pods until the status of all routes is written. Asserts that every
/// pod gets its proxy. The caller must have installed the definition of routes and created the service `web` in
/// the namespace `shop`.
pub(crate) async fn run(bed: &TestApiServer, replica: &Replica, count: usize) -> Burst {
    install(bed, replica.webhook().await).await;
    namespace(bed, "team", json!({"leno.dev/inject": "enabled"}), json!({})).await;
    injected(bed, &pod("team", json!({}))).await;

    let written = "leno_control_status_writes_total{result=\"written\"}";
    let before = replica.metric(written).await as usize;
    let routes = async {
        join_all((0..count).map(|nth| bed.apply(http_route(&format!("r{nth}"), "web")))).await;
        until("all routes are judged", async || {
            (replica.metric(written).await as usize >= before + count).then_some(())
        })
        .await;
    };
    let mut routes = Box::pin(routes);
    let (mut ticks, mut pods, mut applied) = (interval(BETWEEN_PODS), Vec::new(), false);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let tried = async |nth: usize| {
        let mut pod = pod("team", json!({}));
        pod["metadata"]["name"] = json!(format!("web-{nth}"));
        let begin = Instant::now();
        let tried = bed.tried(&pod).await;
        (tried, begin.elapsed())
    };
    let mut created = FuturesUnordered::new();
    while !applied || pods.len() + created.len() < PODS {
        tokio::select! {
            () = &mut routes, if !applied => applied = true,
            _ = ticks.tick() => created.push(tried(pods.len() + created.len())),
            Some(pod) = created.next() => pods.push(pod),
        }
    }
    pods.extend(created.collect::<Vec<_>>().await);
    drop(routes);
    let mut waits = Vec::new();
    for (pod, wait) in pods {
        let pod = pod.unwrap();
        assert!(proxy_of(&pod).is_some(), "a pod without its proxy: {pod}");
        waits.push(wait);
    }
    Burst { waits }
}
