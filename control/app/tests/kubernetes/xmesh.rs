//! Tests XMesh, the object in which the mesh reports its features.

use leno_testkit_api::{TestApiServer, binary, until};
use serde_json::{Value, json};

use crate::replica::Replica;
use crate::{cluster, leads};

/// The part of the definition in the Gateway API's experimental channel that the test needs.
fn definition() -> Value {
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let feature =
        json!({"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}});
    let pending = json!({"type": "Accepted", "status": "Unknown", "reason": "Pending",
        "message": "Waiting for controller", "lastTransitionTime": "1970-01-01T00:00:00Z"});
    let status = json!({"type": "object", "default": {"conditions": [pending]}, "properties": {
        "conditions": {"type": "array", "maxItems": 8, "items": open},
        "supportedFeatures": {"type": "array", "maxItems": 64, "items": feature,
            "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}}});
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
    "metadata": {"name": "xmeshes.gateway.networking.x-k8s.io"},
    "spec": {
        "group": "gateway.networking.x-k8s.io",
        "names": {"kind": "XMesh", "plural": "xmeshes"},
        "scope": "Cluster",
        "versions": [{"name": "v1alpha1", "served": true, "storage": true,
            "subresources": {"status": {}},
            "schema": {"openAPIV3Schema": {"type": "object",
                "properties": {"spec": open, "status": status}}}}],
    }})
}

fn mesh(name: &str, controller: &str) -> Value {
    json!({"apiVersion": "gateway.networking.x-k8s.io/v1alpha1", "kind": "XMesh",
        "metadata": {"name": name}, "spec": {"controllerName": controller}})
}

/// Waits until the mesh's condition `Accepted` has this status. Returns the number of features in its status.
async fn says(bed: &TestApiServer, name: &str, accepted: &str) -> usize {
    until(&format!("Accepted={accepted} of {name}"), async || {
        let found = bed.get(mesh(name, "")).await?;
        let status = &found.data["status"];
        let condition = &status["conditions"][0];
        let newest = condition["observedGeneration"] == json!(found.metadata.generation);
        let features = status["supportedFeatures"].as_array().map_or(0, Vec::len);
        (condition["status"] == accepted && newest).then_some(features)
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_mesh_says_what_it_does_once_the_kind_is_installed() {
    let Some(kube) = binary() else { return };
    let (bed, kubeconfig) = cluster(&kube).await;
    let replica = Replica::start("controller-0", &kubeconfig);
    leads(&replica).await;
    bed.apply(definition()).await;
    until("the kind is served", async || bed.serves(&mesh("any", "")).await).await;

    let features = says(&bed, leno_cluster::MESH, "True").await;
    assert_eq!(features, leno_cluster::FEATURES.len());
    let made = bed.get(mesh(leno_cluster::MESH, "")).await.unwrap();
    let owners = made.metadata.owner_references.unwrap_or_default();
    assert_eq!(owners.first().map(|owner| &*owner.name), Some("leno-controller"));

    let mut ours = mesh("parameters", "leno.dev/controller");
    ours["spec"]["parametersRef"] = json!({"group": "", "kind": "ConfigMap", "name": "any"});
    bed.apply(mesh("other", "example.com/mesh")).await;
    bed.apply(ours).await;
    assert_eq!(says(&bed, "parameters", "False").await, 0);
    let other = bed.get(mesh("other", "")).await.unwrap();
    assert_eq!(other.data["status"]["conditions"][0]["status"], "Unknown", "another mesh's");
    let failed = "leno_control_mesh_writes_total{result=\"failed\"}";
    assert_eq!(replica.metric(failed).await as u64, 0);
    replica.end();
}
