//! Recognises pods that the control plane creates for a Gateway.

use crate::container::waypoint_pod;
use crate::settings::InjectionSettings;
use crate::value::JsonValue;

/// The label of a waypoint's pods; its value is the waypoint's name.
const LABEL: &str = "leno.dev/waypoint";
/// The fields of a container that the API server or a LimitRange may set if they are missing.
const FILLED_IN: [&str; 4] =
    ["imagePullPolicy", "resources", "terminationMessagePath", "terminationMessagePolicy"];

/// Whether a pod is exactly the proxy of a waypoint, by the spec that [`waypoint_pod`] makes with these settings.
///
/// Labels and the service account do not prove this, because a tenant can set both; the whole spec does. Such a
/// pod needs no second proxy, even in a namespace whose pods must have one.
pub(crate) fn is_waypoint(pod: &JsonValue, settings: &InjectionSettings) -> bool {
    let name = pod.at(&["metadata", "labels", LABEL]).and_then(JsonValue::text);
    let account = pod.at(&["spec", "serviceAccountName"]).and_then(JsonValue::text);
    let (Some(_), true, Some(spec)) = (name, name == account, pod.get("spec")) else {
        return false;
    };
    let own = waypoint_pod(settings);
    let ([wanted], [given]) = (own.list("containers"), spec.list("containers")) else {
        return false;
    };
    let is_known = |(field, value): &(String, JsonValue)| {
        wanted.get(field).is_some()
            || FILLED_IN.contains(&&**field)
            || matches!(value, JsonValue::Null)
    };
    spec.list("initContainers").is_empty()
        && spec.list("ephemeralContainers").is_empty()
        && given.fields().iter().all(is_known)
        && wanted
            .fields()
            .iter()
            .filter(|(field, _)| !FILLED_IN.contains(&&**field))
            .all(|(field, value)| given.get(field).is_some_and(|given| covers(given, value)))
        && spec
            .get("volumes")
            .zip(own.get("volumes"))
            .is_some_and(|(given, own)| covers(given, own))
}

/// Whether `given` contains all of `wanted`, and possibly more fields.
fn covers(given: &JsonValue, wanted: &JsonValue) -> bool {
    match (given, wanted) {
        (JsonValue::Map(_), JsonValue::Map(fields)) => fields
            .iter()
            .all(|(field, wanted)| given.get(field).is_some_and(|given| covers(given, wanted))),
        (JsonValue::List(given), JsonValue::List(wanted)) => {
            given.len() == wanted.len()
                && given.iter().zip(wanted).all(|(given, wanted)| covers(given, wanted))
        }
        _ => given == wanted,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;
    use crate::inject::{NamespaceFloor, PodContext, PodOutcome, SkipReason, inject};

    /// A pod that the control plane has created, including fields that the API server adds.
    fn pod() -> Json {
        let mut spec = serde_json::to_value(waypoint_pod(&InjectionSettings::default())).unwrap();
        spec["serviceAccountName"] = json!("edge");
        spec["automountServiceAccountToken"] = json!(false);
        spec["restartPolicy"] = json!("Always");
        spec["containers"][0]["imagePullPolicy"] = json!("IfNotPresent");
        spec["containers"][0]["env"][0]["valueFrom"]["fieldRef"]["apiVersion"] = json!("v1");
        spec["containers"][0]["ports"][0]["protocol"] = json!("TCP");
        spec["volumes"][0]["projected"]["defaultMode"] = json!(420);
        let labels = json!({"leno.dev/waypoint": "edge", "leno.dev/inject": "disabled"});
        json!({"metadata": {"labels": labels}, "spec": spec})
    }

    fn injected(pod: &Json) -> Result<PodOutcome, crate::InjectError> {
        let floor = NamespaceFloor { inject: true, capture: true };
        let enclosing = PodContext { floor, ..PodContext::default() };
        let mut pod: JsonValue = serde_json::from_value(pod.clone()).unwrap();
        inject(&mut pod, &InjectionSettings::default(), &enclosing)
    }

    #[test]
    fn the_pod_of_a_waypoint_is_left_where_pods_may_not_decline() {
        assert_eq!(injected(&pod()), Ok(PodOutcome::Skipped(SkipReason::Waypoint)));
    }

    #[test]
    fn what_only_looks_like_one_gets_a_proxy_or_is_refused() {
        let alike = |change: &dyn Fn(&mut Json)| {
            let mut pod = pod();
            change(&mut pod);
            injected(&pod) == Ok(PodOutcome::Skipped(SkipReason::Waypoint))
        };
        assert!(alike(&|_| ()));
        assert!(!alike(&|pod| pod["spec"]["serviceAccountName"] = json!("other")));
        assert!(!alike(&|pod| pod["metadata"]["labels"]["leno.dev/waypoint"] = Json::Null));
        let of_container = |field: &'static str, value: Json| {
            alike(&move |pod| pod["spec"]["containers"][0][field] = value.clone())
        };
        assert!(of_container("terminationMessagePath", json!("/dev/termination-log")));
        assert!(!of_container("image", json!("example.com/own")));
        assert!(!of_container("command", json!(["sh"])));
        assert!(!of_container("args", json!(["x"])));
        assert!(!of_container("lifecycle", json!({"preStop": {"exec": {"command": ["sh"]}}})));
        assert!(!of_container("envFrom", json!([{"configMapRef": {"name": "own"}}])));
        for list in ["containers", "initContainers"] {
            let more = json!({"name": "own", "image": "own"});
            let add = |pod: &mut Json| match pod["spec"][list].as_array_mut() {
                Some(all) => all.push(more.clone()),
                None => pod["spec"][list] = json!([more]),
            };
            assert!(!alike(&add), "{list}");
        }
        let variable = json!({"name": "LENO_CONTROL", "value": "elsewhere"});
        let add = |pod: &mut Json| {
            pod["spec"]["containers"][0]["env"].as_array_mut().unwrap().push(variable.clone());
        };
        assert!(!alike(&add));
    }
}
