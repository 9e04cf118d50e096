//! What a cluster of many services costs the controller, and how soon a change among many arrives.
//!
//! `LENO_SCALE` is the number of services, each with ten pods (1,000 is the size that the design names),
//! and `LENO_SCALE_PROXIES` that of proxies, each of which follows what changes and a few services more.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use futures_util::{StreamExt, stream};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::{Value, json};

use crate::proxy::Proxy;
use crate::replica::Replica;
use crate::{cluster, run_pod};
use leno_testkit_api::objects::{pod, service, slice};
use leno_testkit_api::{Bed, binary};

/// Services where nobody asks for more: enough to see that it works, and soon made.
const SERVICES: usize = 20;
/// Proxies where nobody asks for more.
const PROXIES: usize = 20;
/// Services that a proxy follows beside the one that is measured.
const FOLLOWED: usize = 5;
/// Endpoints of each.
const ENDPOINTS: usize = 10;
/// Services of one namespace.
const TOGETHER: usize = 20;
/// Requests to the API server at once.
const AT_ONCE: usize = 16;
/// Changes whose arrival is measured, and the time between two of them.
const MEASURED: usize = 50;
const BETWEEN: Duration = Duration::from_millis(100);
/// Changes of other services between two measured ones: 100 in a second together.
const OTHERS: usize = 9;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_among_many_arrives() {
    let Some(kube) = binary() else { return };
    let asked = |name| std::env::var(name).ok().map(|text| text.parse().unwrap());
    let services: usize = asked("LENO_SCALE").unwrap_or(SERVICES);
    let count: usize = asked("LENO_SCALE_PROXIES").unwrap_or(PROXIES);
    open_enough(count);
    let (bed, kubeconfig) = cluster(&kube).await;
    let begin = Instant::now();
    fill(&bed, services).await;
    println!("{services} services made in {:?}", begin.elapsed());

    bed.apply(service("web", 80)).await;
    run_pod(&bed, "web-0", "10.250.0.1").await;
    bed.apply(slice("web", &["web-0 10.250.0.1"])).await;
    let begin = Instant::now();
    let replica = Replica::start("controller-0", &kubeconfig);
    replica.line("serving discovery and identity").await;
    println!("served {:?} after the start, {} KiB resident", begin.elapsed(), replica.rss_kib());
    let token = bed.token(("shop", "web"), Some("leno"), Some("web-0")).await;
    let begin = Instant::now();
    let proxies: Vec<Proxy> = stream::iter(0..count)
        .map(|_| Proxy::start(&bed, &replica, "shop/web-0", &token))
        .buffered(AT_ONCE)
        .collect()
        .await;
    let first = ["10.250.0.1:8080 spiffe://cluster.local/ns/shop/sa/web"];
    join_all(proxies.iter().map(|proxy| proxy.sees("web", &first))).await;
    let more = proxies.iter().enumerate().flat_map(|(nth, proxy)| {
        let others = (0..FOLLOWED.min(services)).map(move |one| (nth * FOLLOWED + one) % services);
        others.map(|other| proxy.follow(&namespace(other / TOGETHER), &format!("s{other}")))
    });
    let _followed: Vec<_> = more.collect();
    println!("{count} proxies connected in {:?}", begin.elapsed());
    println!("{} KiB resident with them", replica.rss_kib());

    let mut waits = Vec::new();
    for nth in 0..MEASURED {
        let next = Instant::now() + BETWEEN;
        let others = (0..OTHERS).map(|other| toggled(nth, (nth * OTHERS + other) % services));
        let address = format!("10.250.1.{nth}");
        let mut changed = slice("web", &[&format!("elsewhere {address}")]);
        // An address out of the cluster: an endpoint that names a pod counts once the pod is there.
        changed["endpoints"][0].as_object_mut().unwrap().remove("targetRef");
        let ((), ()) = tokio::join!(apply(&bed, others.collect()), async {
            bed.apply(changed).await;
            let begin = Instant::now();
            let expected = format!("{address}:8080 ");
            let arrival = async |proxy: &Proxy| {
                proxy.sees("web", &[&expected]).await;
                begin.elapsed()
            };
            waits.extend(join_all(proxies.iter().map(arrival)).await);
        });
        tokio::time::sleep_until(next.into()).await;
    }
    waits.sort();
    let at = |share: f64| waits[((waits.len() - 1) as f64 * share) as usize];
    println!(
        "a change arrived after {:?} (median), {:?} (p99), {:?} (worst) of {MEASURED} at {count} proxies",
        at(0.5),
        at(0.99),
        at(1.0)
    );
    println!("{} KiB resident in the end", replica.rss_kib());
    replica.end();
}

/// Has this process, and the replica that it starts, open two connections for each proxy.
fn open_enough(proxies: usize) {
    let needed = u64::try_from(proxies * 2 + 1_024).unwrap();
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    if soft < needed {
        assert!(needed <= hard, "{needed} open files are needed: raise the limit with ulimit -n");
        setrlimit(Resource::RLIMIT_NOFILE, needed, hard).unwrap();
    }
}

/// Makes services, with their pods and slices, spread over namespaces.
async fn fill(bed: &Bed, services: usize) {
    let namespaces: Vec<String> = (0..services.div_ceil(TOGETHER)).map(namespace).collect();
    let made = |name: &String| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    apply(bed, namespaces.iter().map(made).collect()).await;
    let accounts = namespaces.iter().map(|name| {
        let metadata = json!({"name": "web", "namespace": name});
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
    });
    apply(bed, accounts.collect()).await;
    for nth in 0..services {
        let pods: Vec<Value> = (0..ENDPOINTS).map(|one| pod_of(nth, one)).collect();
        apply(bed, pods.clone()).await;
        let statuses = pods.into_iter().map(|pod| bed.set_status(pod));
        stream::iter(statuses).buffer_unordered(AT_ONCE).collect::<()>().await;
        apply(bed, vec![moved(nth, service(&format!("s{nth}"), 80)), slice_of(nth, ENDPOINTS)])
            .await;
    }
}

async fn apply(bed: &Bed, objects: Vec<Value>) {
    let applied = objects.into_iter().map(|object| bed.apply(object));
    stream::iter(applied).buffer_unordered(AT_ONCE).collect::<()>().await;
}

/// The slice of a service with one endpoint more or less than before.
fn toggled(round: usize, nth: usize) -> Value {
    slice_of(nth, ENDPOINTS - 1 - round % 2)
}

fn slice_of(nth: usize, endpoints: usize) -> Value {
    let pods: Vec<String> =
        (0..endpoints).map(|one| format!("s{nth}-{one} {}", address(nth, one))).collect();
    let pods: Vec<&str> = pods.iter().map(String::as_str).collect();
    let mut slice = moved(nth, slice(&format!("s{nth}"), &pods));
    for endpoint in slice["endpoints"].as_array_mut().unwrap() {
        endpoint["targetRef"]["namespace"] = json!(namespace(nth / TOGETHER));
    }
    slice
}

fn pod_of(nth: usize, one: usize) -> Value {
    moved(nth, pod(&format!("s{nth}-{one}"), &address(nth, one)))
}

fn address(nth: usize, one: usize) -> String {
    format!("10.{}.{}.{}", 100 + nth / 250, nth % 250, one + 1)
}

fn moved(nth: usize, mut object: Value) -> Value {
    object["metadata"]["namespace"] = json!(namespace(nth / TOGETHER));
    object
}

fn namespace(nth: usize) -> String {
    format!("team-{nth}")
}
