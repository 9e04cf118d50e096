//! Tests how the controller provides the authorities for TLS to servers outside of the mesh.

use leno_testkit_api::objects::{
    backend_tls_policy, backend_tls_policy_definition, outside, texts,
};
use leno_testkit_api::{binary, until};
use leno_types::mesh::Roots;

use crate::proxy::{self, Proxy};
use crate::replica::Replica;
use crate::{cluster, run_pod};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_is_begun_outside_by_a_policy_and_by_authorities_that_come_and_go() {
    let Some(kube) = binary() else { return };
    let (bed, kubeconfig) = cluster(&kube).await;
    run_pod(&bed, "web-0", "10.244.0.7").await;
    bed.apply(backend_tls_policy_definition()).await;
    let policy = backend_tls_policy("pay", "authorities");
    until("the kind is served", async || bed.serves(&policy).await).await;
    for object in outside("pay", "pay.example") {
        bed.apply(object).await;
    }
    let replica = Replica::start("controller-0", &kubeconfig);
    let token = bed.token(("shop", "web"), Some("leno"), Some("web-0")).await;
    let client = Proxy::start(&bed, &replica, "shop/web-0", &token).await;

    bed.apply(policy).await;
    client.sees_roots("pay", |roots| matches!(roots, Roots::Missing(_))).await;
    // The content does not matter here, so any authority's certificate will do.
    let pem = proxy::roots(&bed).await;
    bed.apply(texts("authorities", "ca.crt", &pem)).await;
    client.sees_roots("pay", |roots| matches!(roots, Roots::Given(one) if one.len() == 1)).await;
    bed.apply(texts("authorities", "ca.crt", &pem.repeat(2))).await;
    client.sees_roots("pay", |roots| matches!(roots, Roots::Given(two) if two.len() == 2)).await;
    bed.delete(texts("authorities", "ca.crt", "")).await;
    client.sees_roots("pay", |roots| matches!(roots, Roots::Missing(_))).await;

    // A ConfigMap without certificates is not kept.
    let followed = "leno_control_cluster_objects{kind=\"ConfigMap\"}";
    let before = replica.metric(followed).await;
    bed.apply(texts("others", "password", "secret")).await;
    bed.apply(texts("authorities", "ca.crt", &pem)).await;
    client.sees_roots("pay", |roots| matches!(roots, Roots::Given(_))).await;
    assert_eq!(replica.metric(followed).await, before + 1.0);
    replica.end();
}
