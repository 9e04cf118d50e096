//! Computes the objects of a waypoint's Gateway. Does no I/O.

use std::collections::BTreeMap;

use leno_kube::api::DynamicObject;
use leno_types::{check_label, ports};
use serde_json::{Value, json};

use super::{CLASS_LABEL, WAYPOINT_CLASS};

/// The label that names the Gateway on its objects (GEP-1762).
const NAME_LABEL: &str = "gateway.networking.k8s.io/gateway-name";
/// How many seconds a waypoint may take to end. This is longer than its proxy waits for connections to finish.
const GRACE_S: u32 = 45;

/// The objects of one Gateway.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct WaypointPlan {
    pub(super) uid: String,
    pub(super) account: Value,
    pub(super) service: Value,
    pub(super) deployment: Value,
}

impl WaypointPlan {
    /// All objects as text, by which plans are compared.
    pub(super) fn text(&self) -> String {
        format!("{}{}{}{}", self.uid, self.account, self.service, self.deployment)
    }
}

/// Why a Gateway cannot become a waypoint: the reason of its condition `Accepted`, and a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WaypointRefusal {
    pub(super) reason: &'static str,
    pub(super) message: String,
}

fn refused(reason: &'static str, message: impl Into<String>) -> WaypointRefusal {
    WaypointRefusal { reason, message: message.into() }
}

/// The objects that a Gateway needs. `pod` is the spec of its pods, without the service account.
pub(super) fn plan(gateway: &DynamicObject, pod: &Value) -> Result<WaypointPlan, WaypointRefusal> {
    let spec = &gateway.data["spec"];
    let name = gateway.metadata.name.clone().unwrap_or_default();
    if let Err(error) = check_label("name", &name) {
        let message = format!("its name must be valid for a Service: {error}");
        return Err(refused("Invalid", message));
    }
    if spec["addresses"].as_array().is_some_and(|addresses| !addresses.is_empty()) {
        let message = "a waypoint has the addresses of its Service: remove spec.addresses";
        return Err(refused("UnsupportedAddress", message));
    }
    if !spec["infrastructure"]["parametersRef"].is_null() {
        let message = "a waypoint supports no parameters: remove spec.infrastructure.parametersRef";
        return Err(refused("InvalidParameters", message));
    }
    let from = from(spec)?;
    let infrastructure = |field: &str| {
        let all = texts(&spec["infrastructure"][field]);
        match all.keys().find(|key| !is_free(key)) {
            None => Ok(all),
            Some(key) => {
                let message = format!(
                    "spec.infrastructure.{field} has {key}, but names of Kubernetes and of Leno are not passed on: remove it"
                );
                Err(refused("InvalidParameters", message))
            }
        }
    };
    let mut labels = infrastructure("labels")?;
    let own = [(NAME_LABEL, name.as_str()), (CLASS_LABEL, WAYPOINT_CLASS)];
    labels.extend(own.map(|(label, value)| (label.to_owned(), value.to_owned())));
    let annotations = infrastructure("annotations")?;
    let uid = gateway.metadata.uid.clone().unwrap_or_default();
    let owner = json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "name": name, "uid": uid,
        "controller": true, "blockOwnerDeletion": false,
    });
    let metadata = json!({
        "name": name, "namespace": gateway.metadata.namespace, "labels": labels,
        "annotations": annotations, "ownerReferences": [owner],
    });
    let selector = json!({NAME_LABEL: name, "leno.dev/waypoint": name});
    let mut of_pods = labels;
    // The pods are proxies themselves, so their traffic must not be captured.
    let own = [
        ("leno.dev/waypoint", &*name),
        ("leno.dev/waypoint-from", from),
        ("leno.dev/inject", "disabled"),
    ];
    of_pods.extend(own.map(|(label, value)| (label.to_owned(), value.to_owned())));
    let mut pod = pod.clone();
    pod["serviceAccountName"] = json!(name);
    pod["automountServiceAccountToken"] = json!(false);
    pod["terminationGracePeriodSeconds"] = json!(GRACE_S);
    let template =
        json!({"metadata": {"labels": of_pods, "annotations": annotations}, "spec": pod});
    let port = json!({"name": "hbone", "port": ports::HBONE, "protocol": "TCP"});
    let service = json!({"selector": selector, "ports": [port]});
    // The Deployment has no number of replicas, so that other clients can scale it.
    let deployment = json!({"selector": {"matchLabels": selector}, "template": template});
    let object = |version: &str, kind: &str| json!({"apiVersion": version, "kind": kind, "metadata": metadata});
    // Annotations of the Gateway are not copied to the service account. There they may grant rights elsewhere,
    // such as a cloud's role, which a client that may create Gateways does not necessarily have.
    let mut account = object("v1", "ServiceAccount");
    account["metadata"]["annotations"] = json!({});
    let with = |mut object: Value, spec: Value| {
        object["spec"] = spec;
        object
    };
    Ok(WaypointPlan {
        uid,
        account,
        service: with(object("v1", "Service"), service),
        deployment: with(object("apps/v1", "Deployment"), deployment),
    })
}

/// The part of an object with which it is created. It only contains fields that later versions will have as well:
/// the API server assigns them to another field manager than later applies, which therefore could not remove them.
pub(super) fn first(document: &Value) -> Value {
    let mut first = document.clone();
    let metadata = &document["metadata"];
    first["metadata"] = json!({
        "name": metadata["name"], "namespace": metadata["namespace"],
        "ownerReferences": metadata["ownerReferences"],
    });
    first
}

/// Whether the listener is one that a waypoint must have.
pub(super) fn is_of_waypoint(listener: &Value) -> bool {
    listener["port"] == ports::HBONE && listener["protocol"] == "HBONE"
}

/// Which services may use the waypoint, in the form of the pods' label.
fn from(spec: &Value) -> Result<&'static str, WaypointRefusal> {
    let listeners = spec["listeners"].as_array().map(Vec::as_slice).unwrap_or_default();
    let [listener] = listeners else {
        let message = "a waypoint must have one listener, with protocol HBONE on port 15008";
        return Err(refused("ListenersNotValid", message));
    };
    if !is_of_waypoint(listener) {
        let message = "the listener of a waypoint must have protocol HBONE and port 15008";
        return Err(refused("ListenersNotValid", message));
    }
    match listener["allowedRoutes"]["namespaces"]["from"].as_str() {
        None | Some("Same") => Ok("same"),
        Some("All") => Ok("all"),
        Some(_) => {
            let message = "allowedRoutes.namespaces.from has an unsupported value: use Same for \
                           services of its own namespace, or All for those of every namespace";
            Err(refused("ListenersNotValid", message))
        }
    }
}

/// Whether the author of a Gateway may set a label or annotation with this key. Only the control plane sets keys
/// of Kubernetes and of Leno.
fn is_free(key: &str) -> bool {
    let Some((domain, _)) = key.split_once('/') else { return true };
    let of = |parent: &str| {
        domain.strip_suffix(parent).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    !of("leno.dev") && !of("kubernetes.io") && !of("k8s.io")
}

fn texts(map: &Value) -> BTreeMap<String, String> {
    let entries = map.as_object().into_iter().flatten();
    entries.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gateway(spec: Value) -> DynamicObject {
        serde_json::from_value(json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
            "metadata": {"name": "edge", "namespace": "shop", "uid": "u-1"}, "spec": spec,
        }))
        .unwrap()
    }

    fn listener(from: Value) -> Value {
        json!({"name": "mesh", "port": 15008, "protocol": "HBONE",
            "allowedRoutes": {"namespaces": {"from": from}}})
    }

    #[test]
    fn what_the_infrastructure_says_is_passed_on_and_gives_no_rights() {
        let spec = json!({
            "listeners": [listener(json!("All"))],
            "infrastructure": {
                "labels": {"team": "a", "example.com/team": "a"},
                "annotations": {"note": "b", "eks.amazonaws.com/role-arn": "arn"},
            },
        });
        let plan = plan(&gateway(spec), &json!({"containers": []})).unwrap();
        let template = &plan.deployment["spec"]["template"];
        let labels = &template["metadata"]["labels"];
        assert_eq!((&labels["team"], &labels["leno.dev/waypoint"]), (&json!("a"), &json!("edge")));
        assert_eq!(labels["leno.dev/inject"], "disabled");
        assert_eq!(labels["leno.dev/waypoint-from"], "all");
        assert_eq!(template["metadata"]["annotations"]["note"], "b");
        assert_eq!(template["spec"]["serviceAccountName"], "edge");
        assert_eq!(plan.deployment["spec"]["replicas"], Value::Null);
        for object in [&plan.account, &plan.service, &plan.deployment] {
            assert_eq!(object["metadata"]["ownerReferences"][0]["uid"], "u-1");
            assert_eq!(object["metadata"]["labels"]["team"], "a");
        }
        assert_eq!(plan.account["metadata"]["annotations"], json!({}), "they would be rights");
        assert_eq!(plan.service["metadata"]["annotations"]["note"], "b");
    }

    #[test]
    fn what_a_waypoint_cannot_be_is_refused_with_the_remedy() {
        let reason = |spec: Value| plan(&gateway(spec), &json!({})).unwrap_err().reason;
        assert_eq!(reason(json!({"listeners": []})), "ListenersNotValid");
        let http = json!({"name": "http", "port": 80, "protocol": "HTTP"});
        assert_eq!(reason(json!({"listeners": [http]})), "ListenersNotValid");
        assert_eq!(
            reason(json!({"listeners": [listener(json!("Selector"))]})),
            "ListenersNotValid"
        );
        let mut spec = json!({"listeners": [listener(Value::Null)]});
        assert!(plan(&gateway(spec.clone()), &json!({})).is_ok());
        spec["addresses"] = json!([{"value": "192.0.2.1"}]);
        assert_eq!(reason(spec.clone()), "UnsupportedAddress");
        spec["addresses"] = Value::Null;
        spec["infrastructure"] = json!({"parametersRef": {"name": "x"}});
        assert_eq!(reason(spec.clone()), "InvalidParameters");
        for (key, is_free) in [
            ("leno.dev/waypoint", false),
            ("sub.leno.dev/x", false),
            ("pod-security.kubernetes.io/enforce", false),
            ("gateway.networking.k8s.io/gateway-name", false),
            ("notleno.dev/x", true),
            ("team", true),
        ] {
            for field in ["labels", "annotations"] {
                spec["infrastructure"] = json!({field: {key: "x"}});
                assert_eq!(plan(&gateway(spec.clone()), &json!({})).is_ok(), is_free, "{key}");
            }
        }
    }
}
