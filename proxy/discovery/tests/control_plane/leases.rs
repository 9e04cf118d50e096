//! Tests the tokens of shared rate limits: which proxies get leases, and how many tokens there are in all.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leno_discovery::{Asker, Lease};

use crate::plane::{Plane, eventually, mesh};

/// The name of the limit below, which proxies and the control plane use.
const LIMIT: &str = "data/db/100/1000/20";

fn documents(spec: &str) -> String {
    mesh(&["10.89.0.7", "10.89.0.8"])
        + &format!(
            "---\napiVersion: leno.dev/v1alpha1\nkind: RateLimitPolicy\n\
             metadata: {{name: db, namespace: data}}\nspec:\n  \
             targetRefs: [{{group: leno.dev, kind: Workload, name: db}}]\n  limits: [{{{spec}}}]\n"
        )
}

const SHARED: &str = "requests: 100, burst: 20, scope: Global";

/// Requests tokens until a lease arrives for which `fits` holds.
async fn asked(asker: &mut Asker, wanted: u32, fits: impl Fn(&Lease) -> bool) -> Lease {
    let limit: Arc<str> = LIMIT.into();
    let waited = tokio::time::timeout(Duration::from_secs(30), async {
        loop {
            asker.ask(&limit, wanted);
            tokio::time::sleep(Duration::from_millis(20)).await;
            if let Some(lease) = asker.take().filter(|lease| fits(lease)) {
                return lease;
            }
        }
    });
    waited.await.expect("an answer")
}

#[tokio::test(flavor = "multi_thread")]
async fn all_proxies_together_are_leased_the_rate_and_no_more() {
    let plane = Plane::start(&documents(SHARED)).await;
    let (first, own) = plane.proxy("data/db-0");
    let (second, other) = plane.proxy("data/db-1");
    for directory in [&own, &other] {
        eventually("the streams are open", || directory.status().connected).await;
    }
    let (mut a, mut b) = (own.leases().asker(), other.leases().asker());
    let began = Instant::now();
    let mut sum = 0;
    let mut most_holders = 0;
    while began.elapsed() < Duration::from_secs(2) {
        for asker in [&mut a, &mut b] {
            let lease = asked(asker, 1_000, |_| true).await;
            assert_eq!(&*lease.limit, LIMIT);
            sum += lease.tokens;
            most_holders = most_holders.max(lease.holders);
        }
    }
    // A request that was repeated because its response was late is answered twice, and its lease counts as well.
    let leased = || plane.metric("leno_control_leased_tokens_total");
    let late = async {
        while leased() != u64::from(sum) {
            tokio::time::sleep(Duration::from_millis(10)).await;
            let arrived = [a.take(), b.take()].into_iter().flatten();
            sum += arrived.map(|lease| lease.tokens).sum::<u32>();
        }
    };
    tokio::time::timeout(Duration::from_secs(30), late).await.expect("every lease arrives");
    // The bucket begins empty, so there is no additional burst: tokens only come with time.
    let most = began.elapsed().as_secs_f64() * 100.0;
    assert!(f64::from(sum) <= most + 1.0, "{sum} of {most}");
    assert!(sum > 100, "{sum} in two seconds");
    assert_eq!(most_holders, 2);
    assert_eq!(plane.metric("leno_control_lease_streams"), 2);
    // When one proxy ends, the others share the whole limit.
    second.abort();
    let alone = asked(&mut a, 1, |lease| lease.holders == 1).await;
    assert_eq!(&*alone.limit, LIMIT);
    first.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_is_leased_only_limits_of_its_own_workload() {
    let plane = Plane::start(&documents(SHARED)).await;
    let (proxy, directory) = plane.proxy("shop/web-0");
    eventually("the stream is open", || directory.status().connected).await;
    let lease = asked(&mut directory.leases().asker(), 10, |_| true).await;
    assert_eq!((lease.tokens, lease.holders), (0, 0));
    proxy.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_come_back_with_the_control_plane() {
    let mut plane = Plane::start(&documents(SHARED)).await;
    let (proxy, directory) = plane.proxy("data/db-0");
    eventually("the stream is open", || directory.status().connected).await;
    let mut asker = directory.leases().asker();
    asked(&mut asker, 1, |lease| lease.holders == 1).await;
    plane.stop().await;
    plane.restart().await;
    asked(&mut asker, 1, |lease| lease.tokens > 0).await;
    // The limit is no longer shared, so the control plane has no limit with that name.
    plane.edit(&documents("requests: 100, burst: 20"));
    asked(&mut asker, 1, |lease| lease.holders == 0).await;
    proxy.abort();
}
