//! Tests the status of policies on a real API server.

use leno_testkit_api::objects::{
    backend_tls_policy, backend_tls_policy_definition, http_route, http_route_definition, outside,
    service, slice, texts, traffic_policy,
};
use leno_testkit_api::{TestApiServer, binary, until};
use serde_json::{Value, json};

use crate::replica::Replica;
use crate::tenants::younger_than;
use crate::{cluster, judged, leads, proxy, run_pod};

/// The policy under another name.
fn named(mut policy: Value, name: &str) -> Value {
    policy["metadata"]["name"] = json!(name);
    policy
}

fn rate_limit(service: &str) -> Value {
    json!({"apiVersion": "leno.dev/v1alpha1", "kind": "RateLimitPolicy",
        "metadata": {"name": "limit", "namespace": "shop"},
        "spec": {"targetRefs": [{"group": "", "kind": "Service", "name": service}],
            "limits": [{"requests": 5}]}})
}

/// Waits until the only ancestor of a policy has these conditions. Each condition is given as its type and the
/// reason why it is false; the reason is empty if the condition is true.
pub(crate) async fn says(bed: &TestApiServer, policy: &Value, wanted: &[(&str, &str)]) {
    let what = format!("{wanted:?} of {}", policy["metadata"]["name"]);
    until(&what, async || {
        let policy = bed.get(policy.clone()).await?;
        let ancestors = policy.data.get("status")?.get("ancestors")?.as_array()?.clone();
        let [ancestor] = &ancestors[..] else { return None };
        assert_eq!(ancestor["controllerName"], "leno.dev/controller");
        let conditions = ancestor["conditions"].as_array()?;
        let newest = json!(policy.metadata.generation);
        let all = wanted.iter().all(|(kind, reason)| {
            conditions.iter().any(|one| {
                let (status, why) =
                    if reason.is_empty() { ("True", *kind) } else { ("False", *reason) };
                one["type"] == **kind
                    && one["status"] == status
                    && one["reason"] == why
                    && one["observedGeneration"] == newest
            })
        });
        (all && conditions.len() == wanted.len()).then_some(())
    })
    .await;
}

/// The output of `kubectl get` for an object: the cells of its row.
async fn printed(bed: &TestApiServer, path: &str) -> Vec<Value> {
    let request = http::Request::get(path)
        .header("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
        .body(Vec::new())
        .unwrap();
    let table: Value = bed.admin.request(request).await.unwrap();
    table["rows"][0]["cells"].as_array().unwrap().clone()
}

const HOLDS: [(&str, &str); 2] = [("Accepted", ""), ("Programmed", "")];
const GONE: [(&str, &str); 2] = [("Accepted", "TargetNotFound"), ("Programmed", "NotAccepted")];
const CONFLICT: [(&str, &str); 2] = [("Accepted", "Conflicted"), ("Programmed", "NotAccepted")];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_traffic_policy_says_whether_it_works() {
    let Some(kube) = binary() else { return };
    let (bed, kubeconfig) = cluster(&kube).await;
    let replica = Replica::start("controller-0", &kubeconfig);
    leads(&replica).await;
    let retries = json!({"retries": {"on": [503]}});
    let first = traffic_policy("web", &retries);
    until("the kind is served", async || bed.serves(&first).await).await;
    bed.apply(first.clone()).await;
    says(&bed, &first, &GONE).await;
    let row = printed(&bed, "/apis/leno.dev/v1alpha1/namespaces/shop/trafficpolicies/policy").await;
    assert_eq!(row[..5], ["policy", "web", "False", "False", "TargetNotFound"].map(Value::from));
    bed.apply(service("web", 80)).await;
    says(&bed, &first, &HOLDS).await;
    let row = printed(&bed, "/apis/leno.dev/v1alpha1/namespaces/shop/trafficpolicies/policy").await;
    assert_eq!(row[..4], ["policy", "web", "True", "True"].map(Value::from));

    // The second policy must be younger. Its name comes first, so the test would not pass if the name decided.
    let second = named(first.clone(), "a-second");
    younger_than(&bed, &first, &second).await;
    says(&bed, &second, &CONFLICT).await;
    says(&bed, &first, &HOLDS).await;
    bed.merge(second.clone(), json!({"spec": {"retries": null, "timeouts": {"idle": "5s"}}})).await;
    says(&bed, &second, &HOLDS).await;
    bed.delete(service("web", 80)).await;
    says(&bed, &first, &GONE).await;
    replica.end();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rate_limit_says_whether_a_proxy_enforces_it() {
    let Some(kube) = binary() else { return };
    let (bed, kubeconfig) = cluster(&kube).await;
    let replica = Replica::start("controller-0", &kubeconfig);
    leads(&replica).await;
    let policy = rate_limit("web");
    until("the kind is served", async || bed.serves(&policy).await).await;
    bed.apply(policy.clone()).await;
    says(&bed, &policy, &GONE).await;
    bed.apply(service("web", 80)).await;
    says(&bed, &policy, &[("Accepted", ""), ("Programmed", "NoProxy")]).await;
    run_pod(&bed, "web-0", "10.244.0.7").await;
    bed.apply(slice("web", &["web-0 10.244.0.7"])).await;
    says(&bed, &policy, &HOLDS).await;
    let row =
        printed(&bed, "/apis/leno.dev/v1alpha1/namespaces/shop/ratelimitpolicies/limit").await;
    assert_eq!(row[..4], ["limit", "web", "True", "True"].map(Value::from));

    // Limits of several policies all apply, so two policies for one target do not conflict.
    let second = named(policy.clone(), "second");
    bed.apply(second.clone()).await;
    says(&bed, &second, &HOLDS).await;
    // This policy is invalid, but the API server accepts everything that the schema permits.
    bed.merge(policy.clone(), json!({"spec": {"limits": []}})).await;
    says(&bed, &policy, &[("Accepted", "Invalid")]).await;
    bed.merge(policy.clone(), json!({"spec": {"limits": [{"requests": 7}]}})).await;
    says(&bed, &policy, &HOLDS).await;
    replica.end();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_of_tls_outside_says_whether_it_works() {
    let Some(kube) = binary() else { return };
    let (bed, kubeconfig) = cluster(&kube).await;
    bed.apply(backend_tls_policy_definition()).await;
    let policy = backend_tls_policy("pay", "authorities");
    until("the kind is served", async || bed.serves(&policy).await).await;
    let replica = Replica::start("controller-0", &kubeconfig);
    leads(&replica).await;
    bed.apply(policy.clone()).await;
    let tls = |accepted, resolved, programmed| {
        [("Accepted", accepted), ("ResolvedRefs", resolved), ("Programmed", programmed)]
    };
    says(&bed, &policy, &tls("TargetNotFound", "", "NotAccepted")).await;
    for object in outside("pay", "pay.example") {
        bed.apply(object).await;
    }
    let missing = "InvalidCACertificateRef";
    says(&bed, &policy, &tls("NoValidCACertificate", missing, missing)).await;
    let pem = proxy::roots(&bed).await;
    bed.apply(texts("authorities", "ca.crt", &pem)).await;
    says(&bed, &policy, &tls("", "", "")).await;
    // Of two policies with the same age, the first by name takes precedence.
    let second = named(policy.clone(), "z-second");
    bed.apply(second.clone()).await;
    says(&bed, &second, &tls("Conflicted", "", "NotAccepted")).await;
    bed.delete(policy.clone()).await;
    says(&bed, &second, &tls("", "", "")).await;
    replica.end();
}

/// There is no separate kind for egress: a destination outside is a Service with routes or policies.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_written_for_a_service_outside_says_whether_it_works() {
    let Some(kube) = binary() else { return };
    let (bed, kubeconfig) = cluster(&kube).await;
    bed.apply(http_route_definition()).await;
    let replica = Replica::start("controller-0", &kubeconfig);
    leads(&replica).await;
    let traffic = traffic_policy("pay", &json!({"timeouts": {"request": "5s"}}));
    let mut route = http_route("pay", "pay");
    route["spec"]["parentRefs"][0]["name"] = json!("pay");
    until("the kinds are served", async || {
        bed.serves(&traffic).await.and(bed.serves(&route).await)
    })
    .await;
    let limit = rate_limit("pay");
    for object in [&traffic, &limit, &route] {
        bed.apply(object.clone()).await;
    }
    says(&bed, &traffic, &GONE).await;
    says(&bed, &limit, &GONE).await;
    judged(&bed, "pay", ("Accepted", "False", "NoMatchingParent")).await;
    for object in outside("pay", "pay.example") {
        bed.apply(object).await;
    }
    says(&bed, &traffic, &HOLDS).await;
    // Proxies of servers enforce limits, and a server outside has no proxy.
    says(&bed, &limit, &[("Accepted", ""), ("Programmed", "NoProxy")]).await;
    judged(&bed, "pay", ("Accepted", "True", "Accepted")).await;
    judged(&bed, "pay", ("ResolvedRefs", "True", "ResolvedRefs")).await;
    replica.end();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_external_policy_says_whether_its_authorizer_is_there() {
    let Some(kube) = binary() else { return };
    let (bed, kubeconfig) = cluster(&kube).await;
    let replica = Replica::start("controller-0", &kubeconfig);
    leads(&replica).await;
    let policy = json!({"apiVersion": "leno.dev/v1alpha1", "kind": "AuthorizationPolicy",
        "metadata": {"name": "ask", "namespace": "shop"},
        "spec": {"selector": {}, "action": "External", "rules": [{}],
            "external": {"backendRef": {"name": "opa", "port": 9191}, "body": {"maxBytes": 1024}}}});
    until("the kind is served", async || bed.serves(&policy).await).await;
    run_pod(&bed, "web-0", "10.244.0.7").await;
    bed.apply(policy.clone()).await;
    let all = |resolved, programmed| {
        [("Accepted", ""), ("ResolvedRefs", resolved), ("Programmed", programmed)]
    };
    says(&bed, &policy, &all("BackendNotFound", "BackendNotFound")).await;
    bed.apply(service("opa", 9191)).await;
    says(&bed, &policy, &all("", "")).await;
    bed.delete(service("opa", 9191)).await;
    says(&bed, &policy, &all("BackendNotFound", "BackendNotFound")).await;
    replica.end();
}
