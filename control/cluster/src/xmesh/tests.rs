//! Tests the status of an `XMesh`.

use super::*;

const NOW: &str = "2026-01-02T00:00:00Z";
const INSTANCE: &str = "Leno 1 in namespace leno-system";

fn mesh(spec: Value, status: Value) -> DynamicObject {
    let object = json!({
        "apiVersion": "gateway.networking.x-k8s.io/v1alpha1", "kind": "XMesh",
        "metadata": {"name": "any", "generation": 3}, "spec": spec, "status": status,
    });
    serde_json::from_value(object).expect("it is an object")
}

fn ours() -> Value {
    json!({"controllerName": CONTROLLER})
}

#[test]
fn a_new_mesh_is_accepted_with_every_feature() {
    let pending = json!({"conditions": [
        {"type": "Accepted", "status": "Unknown", "reason": "Pending", "message": "Waiting for controller",
            "lastTransitionTime": "1970-01-01T00:00:00Z"},
        {"type": "Other", "status": "True"},
    ]});
    let said = status(&mesh(ours(), pending), INSTANCE, NOW).expect("there is much to say");
    let accepted = json!({"type": "Accepted", "status": "True", "reason": "Accepted", "message": INSTANCE,
        "observedGeneration": 3, "lastTransitionTime": NOW});
    assert_eq!(said["conditions"], json!([accepted, {"type": "Other", "status": "True"}]));
    assert_eq!(said["supportedFeatures"].as_array().map(Vec::len), Some(FEATURES.len()));
    assert_eq!(said["supportedFeatures"][0], json!({"name": "GRPCRoute"}));

    assert_eq!(status(&mesh(ours(), said.clone()), INSTANCE, "later"), None, "said already");
    let newer = status(&mesh(ours(), said), "Leno 2", "later").expect("another version");
    assert_eq!(newer["conditions"][0]["message"], "Leno 2");
    assert_eq!(newer["conditions"][0]["lastTransitionTime"], NOW, "it was accepted before");
}

#[test]
fn a_mesh_with_parameters_is_refused() {
    let mut spec = ours();
    spec["parametersRef"] =
        json!({"group": "", "kind": "ConfigMap", "name": "a", "namespace": "b"});
    let said =
        status(&mesh(spec.clone(), Value::Null), INSTANCE, NOW).expect("there is much to say");
    assert_eq!(said["conditions"][0]["status"], "False");
    assert_eq!(said["conditions"][0]["reason"], "InvalidParameters");
    assert_eq!(said["supportedFeatures"], json!([]));
    // The API server stores no empty list.
    let stored = json!({"conditions": said["conditions"]});
    assert_eq!(status(&mesh(spec, stored), INSTANCE, NOW), None, "said already");
}

#[test]
fn another_mesh_is_left_alone() {
    let other = json!({"controllerName": "example.com/mesh"});
    assert_eq!(status(&mesh(other, Value::Null), INSTANCE, NOW), None);
}

#[test]
fn features_are_in_order() {
    assert!(FEATURES.is_sorted());
}
