//! Tests how a replica reports whether it follows all kinds of objects.

use std::time::Duration;

use leno_testkit_api::objects::{http_route, http_route_definition};
use leno_testkit_api::{TestApiServer, binary, until};
use serde_json::{Value, json};

use crate::operate::{findings, leno, pair};
use crate::replica::Replica;
use crate::{admission, cluster};

/// The kinds of the Gateway API that the controller follows.
const GATEWAY_KINDS: u64 = 6;

/// The pod in which a replica of this name runs.
pub(crate) fn own_pod(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "leno-system",
            "labels": {"app.kubernetes.io/name": "leno-controller"}},
        "spec": {"containers": [{"name": "controller", "image": "c"}],
            "serviceAccountName": "controller", "automountServiceAccountToken": false},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}})
}

/// Waits until the condition of a pod has this status. Returns its message.
async fn says(bed: &TestApiServer, pod: &str, status: &str) -> String {
    says_of(bed, pod, "leno.dev/KindsFollowed", status).await
}

/// As [`says`], for any condition.
pub(crate) async fn says_of(
    bed: &TestApiServer,
    pod: &str,
    condition: &str,
    status: &str,
) -> String {
    until(&format!("{condition}={status} of {pod}"), async || {
        let pod = bed.get(own_pod(pod)).await?;
        let conditions = pod.data["status"]["conditions"].as_array()?;
        assert!(conditions.iter().any(|one| one["type"] == "Ready"), "others stay: {conditions:?}");
        let ours = conditions.iter().find(|one| one["type"] == condition)?;
        (ours["status"] == status).then(|| ours["message"].as_str().unwrap_or("").to_owned())
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_right_that_is_missing_is_said_by_the_pods_condition_and_by_check_until_it_is_given() {
    let Some(kube) = binary() else { return };
    let (bed, kubeconfig) = cluster(&kube).await;
    bed.apply(http_route_definition()).await;
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "leno-controller"}});
    let whole = bed.get(role.clone()).await.unwrap().data["rules"].clone();
    let mut rules = whole.clone();
    let gateway = json!(["gateway.networking.k8s.io"]);
    rules.as_array_mut().unwrap().retain(|rule| rule["apiGroups"] != gateway);
    bed.merge(role.clone(), json!({"rules": rules})).await;
    bed.apply(own_pod("controller-0")).await;
    bed.set_status(own_pod("controller-0")).await;
    let replica = Replica::start("controller-0", &kubeconfig);

    let said = says(&bed, "controller-0", "False").await;
    assert!(said.contains("cannot watch HTTPRoute: "), "{said}");
    assert!(said.contains("forbidden") && said.contains("leno upgrade | kubectl"), "{said}");
    assert!(!said.contains("Service cannot"), "{said}");
    let check = || findings(&leno(&bed.administrator(), &["check", "-o", "json"]));
    assert!(check().contains(&pair("kinds of objects", "warning")));

    bed.merge(role, json!({"rules": whole})).await;
    assert_eq!(says(&bed, "controller-0", "True").await, "");
    assert!(check().contains(&pair("kinds of objects", "good")));
    // The kinds are lost and return one after another, each after its own random wait. So there is at most one
    // write for each loss and each return.
    let written = "leno_control_condition_writes_total{result=\"written\"}";
    until("the writes are counted", async || {
        (replica.metric(written).await as u64 >= 2).then_some(())
    })
    .await;
    // A condition that has not changed is not written again. The last write may be counted a little after it is
    // visible.
    until("the writes end", async || {
        let before = replica.metric(written).await as u64;
        tokio::time::sleep(Duration::from_secs(2)).await;
        (replica.metric(written).await as u64 == before).then_some(())
    })
    .await;
    let writes = replica.metric(written).await as u64;
    assert!(writes <= 2 * GATEWAY_KINDS, "{writes}");
    // Replaces all conditions, because a merge patch does that to lists.
    bed.set_status(own_pod("controller-0")).await;
    assert_eq!(says(&bed, "controller-0", "True").await, "");
    replica.end();
}

/// The objects are stored in another version than the one that is followed, and the webhook that would convert
/// them does not exist.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_conversion_webhook_costs_its_kind_and_injection_goes_on() {
    let Some(kube) = binary() else { return };
    let (bed, kubeconfig) = cluster(&kube).await;
    let mut definition = http_route_definition();
    let versions = definition["spec"]["versions"].as_array_mut().unwrap();
    let mut stored = versions[0].clone();
    versions[0]["storage"] = json!(false);
    stored["name"] = json!("v1beta1");
    versions.push(stored);
    let service = json!({"name": "gone", "namespace": "shop", "path": "/convert"});
    definition["spec"]["conversion"] = json!({"strategy": "Webhook",
        "webhook": {"clientConfig": {"service": service}, "conversionReviewVersions": ["v1"]}});
    bed.apply(definition.clone()).await;
    let mut route = http_route("r", "web");
    route["apiVersion"] = json!("gateway.networking.k8s.io/v1beta1");
    until("the kind is served", async || bed.serves(&route).await).await;
    bed.create(route).await;
    bed.apply(own_pod("controller-0")).await;
    bed.set_status(own_pod("controller-0")).await;
    let replica = Replica::start("controller-0", &kubeconfig);

    let said = says(&bed, "controller-0", "False").await;
    assert!(said.contains("cannot watch HTTPRoute: "), "{said}");
    assert!(said.contains("repair the conversion webhook"), "{said}");
    assert!(!said.contains("Service cannot"), "{said}");
    admission::install(&bed, replica.webhook().await).await;
    admission::namespace(&bed, "team", json!({"leno.dev/inject": "enabled"}), json!({})).await;
    admission::injected(&bed, &admission::pod("team", json!({}))).await;

    let spec = json!({"conversion": {"strategy": "None", "webhook": null}});
    bed.merge(definition, json!({"spec": spec})).await;
    assert_eq!(says(&bed, "controller-0", "True").await, "");
    replica.end();
}
