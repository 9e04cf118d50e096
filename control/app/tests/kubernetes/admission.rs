//! Tests the API server's requests to the controller's webhooks, and the objects that the leader keeps for them.

use http::Request;
use leno_charts::{NAMESPACE, Values};
use leno_kube::Api;
use leno_kube::api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams};
use leno_testkit_api::objects::{http_route, http_route_definition, service, traffic_policy};
use leno_testkit_api::{TestApiServer, binary, until};
use serde_json::{Value, json};

use crate::proxy;
use crate::replica::Replica;
use crate::{cluster, installed, leads};

/// Installs the webhooks so that the API server calls them on a port of this machine: their Service is of the type
/// ExternalName, for which the API server connects to the external name, `localhost`.
pub(crate) async fn install(bed: &TestApiServer, port: u16) {
    bed.apply(json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "leno-controller", "namespace": "leno-system"},
        "spec": {"type": "ExternalName", "externalName": "localhost"}}))
        .await;
    let port = format!("port: {port}");
    let webhooks = installed(|kind| kind.ends_with("WebhookConfiguration"));
    assert_eq!(webhooks.matches("port: 443").count(), 3);
    bed.apply_yaml(&webhooks.replace("port: 443", &port)).await;
}

fn configuration(kind: &str, name: &str) -> Value {
    json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": name}})
}

fn injector() -> Value {
    configuration("MutatingWebhookConfiguration", "leno-injector")
}

/// A namespace with a service account `web`.
pub(crate) async fn namespace(bed: &TestApiServer, name: &str, labels: Value, annotations: Value) {
    let metadata = json!({"name": name, "labels": labels, "annotations": annotations});
    bed.apply(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})).await;
    let metadata = json!({"name": "web", "namespace": name});
    bed.apply(json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})).await;
}

/// A pod that Pod Security accepts in a `restricted` namespace.
pub(crate) fn pod(namespace: &str, labels: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
    "metadata": {"name": "web", "namespace": namespace, "labels": labels},
    "spec": {
        "serviceAccountName": "web",
        "automountServiceAccountToken": false,
        "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [{"name": "web", "image": "web",
            "livenessProbe": {"tcpSocket": {"port": 8080}},
            "securityContext": {"allowPrivilegeEscalation": false,
                "capabilities": {"drop": ["ALL"]}}}],
    }})
}

/// The image of the pod's proxy, if it has one.
pub(crate) fn proxy_of(pod: &Value) -> Option<&str> {
    let first = &pod["spec"]["initContainers"][0];
    (first["name"] == "leno-proxy").then(|| first["image"].as_str().unwrap())
}

/// Waits until pods of the namespace get a proxy, and returns a pod that has one.
pub(crate) async fn injected(bed: &TestApiServer, pod: &Value) -> Value {
    until("the pod gets a proxy", async || {
        let tried = bed.tried(pod).await.ok()?;
        proxy_of(&tried).is_some().then_some(tried)
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_get_their_proxy_as_they_are_made_from_whichever_replica_answers() {
    let Some(kube) = binary() else { return };
    let (bed, kubeconfig) = cluster(&kube).await;
    let first = Replica::start("controller-0", &kubeconfig);
    install(&bed, first.webhook().await).await;
    let labels =
        json!({"leno.dev/inject": "enabled", "pod-security.kubernetes.io/enforce": "restricted"});
    namespace(&bed, "shop", labels, json!({"leno.dev/capture": "iptables"})).await;
    namespace(&bed, "plain", json!({}), json!({})).await;

    let web = injected(&bed, &pod("shop", json!({}))).await;
    assert_eq!(web["metadata"]["annotations"]["leno.dev/capture"], "iptables");
    has_the_image_and_its_secrets(&bed, &web).await;
    let probe = &web["spec"]["containers"][0]["livenessProbe"]["httpGet"];
    assert_eq!((&probe["path"], &probe["port"]), (&json!("/probe/web/liveness"), &json!(15020)));

    let made = async |pod: Value| bed.tried(&pod).await.unwrap();
    // A pod may be stricter than its namespace but not looser, unless an exemption permits it.
    let disabled = pod("shop", json!({"leno.dev/inject": "disabled"}));
    let mut annotated = pod("shop", json!({}));
    annotated["metadata"]["annotations"] = json!({"leno.dev/inject": "disabled"});
    let mut contradicting = pod("shop", json!({}));
    contradicting["metadata"]["annotations"] = json!({"leno.dev/capture": "ebpf"});
    assert!(proxy_of(&made(disabled.clone()).await).is_some());
    assert!(proxy_of(&made(annotated.clone()).await).is_some());
    let refused = bed.tried(&contradicting).await.unwrap_err();
    assert!(refused.contains("contradicts its namespace, which has iptables"), "{refused}");
    let exemption = json!({"apiVersion": "leno.dev/v1alpha1", "kind": "PodExemption",
        "metadata": {"name": "some", "namespace": "shop"},
        "spec": {"selector": {"matchLabels": {"leno.dev/inject": "disabled"}}, "settings": ["inject"]}});
    bed.apply(exemption.clone()).await;
    // The exemption takes effect at once, even for a pod that is created right after it.
    assert_eq!(proxy_of(&made(disabled.clone()).await), None);
    assert!(proxy_of(&made(annotated.clone()).await).is_some(), "it selects by labels");
    let mut all = exemption.clone();
    all["metadata"]["name"] = json!("all");
    all["spec"] = json!({"selector": {}, "settings": ["inject", "capture"]});
    bed.apply(all.clone()).await;
    assert_eq!(proxy_of(&made(annotated).await), None);
    assert!(proxy_of(&made(contradicting).await).is_some());
    bed.delete(all).await;
    assert_eq!(proxy_of(&made(pod("plain", json!({}))).await), None);
    let asking = pod("plain", json!({"leno.dev/inject": "enabled"}));
    assert!(proxy_of(&made(asking.clone()).await).is_some());
    let mut of_the_node = asking;
    of_the_node["spec"]["hostNetwork"] = json!(true);
    assert_eq!(proxy_of(&made(of_the_node).await), None);
    let mut ours = pod("leno-system", json!({"leno.dev/inject": "enabled"}));
    ours["spec"]["serviceAccountName"] = json!("controller");
    assert_eq!(proxy_of(&made(ours).await), None);

    let mut clashing = pod("shop", json!({}));
    clashing["spec"]["volumes"] = json!([{"name": "leno-token", "emptyDir": {}}]);
    let refused = bed.tried(&clashing).await.unwrap_err();
    assert!(
        refused.contains("the pod cannot have a proxy: it already has a volume leno-token"),
        "{refused}"
    );
    let counted =
        |result| format!("leno_control_reviews_total{{webhook=\"inject\",result=\"{result}\"}}");
    assert_eq!(first.metric(&counted("denied")).await as u64, 2);

    // A replica that does not lead also answers, because it has the same roots.
    let second = Replica::start("controller-1", &kubeconfig);
    install(&bed, second.webhook().await).await;
    injected(&bed, &pod("shop", json!({}))).await;
    until("the second replica answers", async || {
        bed.tried(&pod("shop", json!({}))).await.unwrap();
        (second.metric(&counted("changed")).await > 0.0).then_some(())
    })
    .await;
    crate::is_documented(&second).await;

    // Without any replica, pods that should have a proxy cannot be created, but other pods can.
    first.end();
    second.end();
    let refused = bed.tried(&pod("shop", json!({}))).await.unwrap_err();
    assert!(refused.contains("namespaces.inject.leno.dev"), "{refused}");
    made(pod("plain", json!({}))).await;
    // Whether a pod may decline a proxy is for the controller to decide, so this pod cannot be created either.
    assert!(bed.tried(&disabled).await.is_err());
}

/// Asserts that a pod has the configured proxy image and the Secrets for pulling it, and that the Secrets are not
/// added twice if the pod's service account has them.
async fn has_the_image_and_its_secrets(bed: &TestApiServer, web: &Value) {
    assert_eq!(proxy_of(web), Some("registry.test/proxy:1"));
    assert_eq!(web["spec"]["imagePullSecrets"], json!([{"name": "regcred"}]));
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": {"name": "own", "namespace": "shop"},
        "imagePullSecrets": [{"name": "regcred"}, {"name": "mine"}]});
    bed.apply(account).await;
    let mut own = pod("shop", json!({}));
    own["spec"]["serviceAccountName"] = json!("own");
    let own = injected(bed, &own).await;
    let both = json!([{"name": "regcred"}, {"name": "mine"}]);
    assert_eq!(own["spec"]["imagePullSecrets"], both, "its service account's, once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_understood_is_denied_and_what_leads_nowhere_is_a_warning() {
    let Some(kube) = binary() else { return };
    let (bed, kubeconfig) = cluster(&kube).await;
    bed.apply(http_route_definition()).await;
    let broken = traffic_policy("web", &json!({}));
    until("the kinds are served", async || {
        bed.serves(&http_route("r", "web")).await.and(bed.serves(&broken).await)
    })
    .await;
    bed.apply(service("web", 80)).await;
    let replica = Replica::start("controller-0", &kubeconfig);
    install(&bed, replica.webhook().await).await;

    let denied = until("the policy is denied", async || bed.tried(&broken).await.err()).await;
    assert!(denied.contains("validate.leno.dev"), "{denied}");
    assert!(denied.contains("spec: sets nothing"), "{denied}");
    let good = traffic_policy("web", &json!({"timeouts": {"request": "1s"}}));
    assert_eq!(warnings(&bed, &good, "leno.dev/v1alpha1", "trafficpolicies").await, [""; 0]);

    let early = traffic_policy("crat", &json!({"timeouts": {"request": "1s"}}));
    let told = warnings(&bed, &early, "leno.dev/v1alpha1", "trafficpolicies").await;
    assert!(told[0].contains("[target-not-found] there is no Service shop/crat"), "{told:?}");
    let route = http_route("r", "crat");
    let told = warnings(&bed, &route, "gateway.networking.k8s.io/v1", "httproutes").await;
    assert!(told[0].contains("[backend-not-found]"), "{told:?}");

    // A route that is attached to no Service belongs to a gateway, so its content is not checked.
    let mut of_a_gateway = http_route("r", "crat");
    of_a_gateway["spec"]["parentRefs"] = json!([{"name": "public"}]);
    of_a_gateway["spec"]["invented"] = json!(1);
    let told = warnings(&bed, &of_a_gateway, "gateway.networking.k8s.io/v1", "httproutes").await;
    assert_eq!(told, [""; 0]);
}

/// The warnings of the API server about an object. It must accept the object.
async fn warnings(bed: &TestApiServer, object: &Value, version: &str, plural: &str) -> Vec<String> {
    let uri = format!("/apis/{version}/namespaces/shop/{plural}?dryRun=All");
    let request = Request::post(uri).header("content-type", "application/json");
    let request = request.body(object.to_string().into_bytes().into()).unwrap();
    let answer = bed.admin.send(request).await.unwrap();
    assert_eq!(answer.status(), 201);
    let told = answer.headers().get_all("warning").iter();
    told.map(|line| line.to_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn roots_are_kept_in_every_namespace_and_in_the_webhooks() {
    let Some(kube) = binary() else { return };
    let (bed, kubeconfig) = cluster(&kube).await;
    let replica = Replica::start("controller-0", &kubeconfig);
    leads(&replica).await;
    let follower = Replica::start("controller-1", &kubeconfig);
    let wanted = proxy::roots(&bed).await;
    let map = |namespace: &str| {
        json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "leno-roots", "namespace": namespace}})
    };
    let kept = async |namespace: &str| {
        until(&format!("the roots are in {namespace}"), async || {
            let found = bed.get(map(namespace)).await?;
            (found.data["data"]["roots.pem"] == *wanted).then_some(())
        })
        .await;
    };
    for namespace in ["shop", "default", "leno-system"] {
        kept(namespace).await;
    }
    namespace(&bed, "new", json!({}), json!({})).await;
    kept("new").await;
    let wrong = json!({"data": {"roots.pem": "wrong"}});
    bed.change(map("new"), &Patch::Merge(wrong)).await;
    kept("new").await;
    // `TestApiServer::delete` is not used, because it waits until the object is gone, but the leader creates the
    // object again at once.
    bed.change(map("shop"), &Patch::Merge(json!({"data": null}))).await;
    kept("shop").await;

    install(&bed, replica.webhook().await).await;
    let bundles = async |expected: bool| {
        until("the roots are in the webhooks", async || {
            let found = bed.get(injector()).await?;
            let hooks = found.data["webhooks"].as_array()?;
            let has = |hook: &Value| hook["clientConfig"]["caBundle"].is_string();
            (hooks.iter().all(has) == expected).then_some(())
        })
        .await;
    };
    bundles(true).await;
    let gone = json!([{"op": "remove", "path": "/webhooks/0/clientConfig/caBundle"}]);
    bed.change(injector(), &Patch::Json(serde_json::from_value(gone).unwrap())).await;
    bundles(true).await;
    let written = "leno_control_webhook_roots_total{result=\"written\"}";
    // Other clients may see a write a little before it is counted.
    until("two configurations were written, and one again", async || {
        (replica.metric(written).await as u64 == 3).then_some(())
    })
    .await;
    let maps = "leno_control_roots_writes_total{result=\"written\"}";
    assert_eq!(follower.metric(maps).await as u64, 0, "only the leader writes");
    assert_eq!(follower.metric(written).await as u64, 0, "only the leader writes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ephemeral_container_cannot_write_into_the_folder_of_the_workload_api() {
    let Some(kube) = binary() else { return };
    let (bed, _) = cluster(&kube).await;
    let values = ["identity.workloadApi.volume=hostPath".to_owned()];
    let all = leno_charts::render(&Values::load(&[], &values).unwrap(), NAMESPACE).unwrap();
    let is_policy = |one: &&str| {
        one.contains("\nkind: ValidatingAdmissionPolicy") && one.contains("leno-workload-api")
    };
    let policies: Vec<&str> = all.split("---\n").filter(is_policy).collect();
    assert_eq!(policies.len(), 2);
    bed.apply_yaml(&policies.join("---\n")).await;
    // The pod is as the injector leaves it, in the namespace of a tenant who may debug its pods.
    let mut web = pod("shop", json!({}));
    web["spec"]["volumes"] =
        json!([{"name": "leno-workload-api", "hostPath": {"path": "/run/spire"}}]);
    bed.apply(web).await;
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "Pod"));
    let pods: Api<DynamicObject> = Api::namespaced_with(bed.admin.clone(), "shop", &kind);
    let debug = async |mounts: Value| {
        let container = json!({"name": "debug", "image": "d", "volumeMounts": mounts});
        let patch = Patch::Strategic(json!({"spec": {"ephemeralContainers": [container]}}));
        let dry_run = PatchParams { dry_run: true, ..PatchParams::default() };
        let tried = pods.patch_subresource("ephemeralcontainers", "web", &dry_run, &patch).await;
        tried.map(drop).map_err(|error| error.to_string())
    };
    let mount = |read_only: Value| json!([{"name": "leno-workload-api", "mountPath": "/api", "readOnly": read_only}]);
    // The API server needs a while to enforce the policy. Until then it accepts the object or reports that it is
    // busy.
    until("a writer is refused, with the remedy", async || {
        let error = debug(mount(Value::Null)).await.err()?;
        error.contains("for writing: add readOnly: true").then_some(())
    })
    .await;
    assert!(debug(mount(json!(false))).await.is_err());
    debug(mount(json!(true))).await.unwrap();
    debug(json!([])).await.unwrap();
}
