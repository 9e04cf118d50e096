//! Computes the status of a waypoint's Gateway. Does no I/O.

use leno_kube::api::DynamicObject;
use serde_json::{Value, json};

use super::objects::{WaypointRefusal, is_of_waypoint};

/// The state of a Gateway's waypoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum WaypointState {
    /// The Gateway requests something that a waypoint does not support.
    Refused(WaypointRefusal),
    /// None of its objects was written yet.
    Pending,
    /// The objects of the waypoint cannot be written.
    Failed(String),
    /// Its objects exist; `available` pods are ready to serve.
    Running { available: i32, addresses: Vec<String> },
}

/// One condition: type, status, reason, message.
type Condition<'a> = (&'a str, &'a str, &'a str, String);

/// The status that the Gateway should have; `None` if it has that status.
pub(super) fn status(gateway: &DynamicObject, state: &WaypointState, now: &str) -> Option<Value> {
    let (spec, said) = (&gateway.data["spec"], &gateway.data["status"]);
    let generation = gateway.metadata.generation;
    let [accepted, programmed] = conditions(state);
    let own = [&accepted, &programmed].map(|one| condition(one, said, (generation, now)));
    let addresses: Vec<Value> = match state {
        WaypointState::Running { addresses, .. } => {
            addresses.iter().map(|ip| json!({"type": "IPAddress", "value": ip})).collect()
        }
        _ => Vec::new(),
    };
    let listeners = spec["listeners"].as_array().map(Vec::as_slice).unwrap_or_default();
    let listeners: Vec<Value> = listeners
        .iter()
        .map(|one| listener(one, said, (&accepted, &programmed), (generation, now)))
        .collect();
    let wanted = json!({
        "conditions": merged(own.into(), &said["conditions"]),
        "addresses": addresses,
        "listeners": listeners,
    });
    let list = |field: &str| said.get(field).cloned().unwrap_or_else(|| json!([]));
    let now_there = json!({
        "conditions": said["conditions"], "addresses": list("addresses"), "listeners": list("listeners"),
    });
    (wanted != now_there).then_some(wanted)
}

fn conditions(state: &WaypointState) -> [Condition<'static>; 2] {
    let accepted = |reason| ("Accepted", "True", reason, "it is a waypoint of Leno".to_owned());
    let waits = |reason, message| ("Programmed", "False", reason, message);
    match state {
        WaypointState::Refused(WaypointRefusal { reason, message }) => [
            ("Accepted", "False", reason, message.clone()),
            waits("Invalid", "it is not accepted".to_owned()),
        ],
        WaypointState::Pending => {
            [accepted("Accepted"), waits("Pending", "its objects are being written".to_owned())]
        }
        WaypointState::Failed(failure) => {
            [accepted("Accepted"), waits("NoResources", failure.clone())]
        }
        WaypointState::Running { available: ..=0, .. } => [
            accepted("Accepted"),
            waits("Pending", "no pod of its Deployment is available yet".to_owned()),
        ],
        WaypointState::Running { available, addresses } if addresses.is_empty() => [
            accepted("Accepted"),
            waits(
                "AddressNotAssigned",
                format!("{available} pods serve; its Service has no address"),
            ),
        ],
        WaypointState::Running { .. } => {
            let message = "its pods serve; clients of services that name it are sent through it";
            [accepted("Accepted"), ("Programmed", "True", "Programmed", message.to_owned())]
        }
    }
}

fn listener(
    listener: &Value,
    said: &Value,
    (accepted, programmed): (&Condition<'_>, &Condition<'_>),
    at: (Option<i64>, &str),
) -> Value {
    let name = &listener["name"];
    let before = said["listeners"].as_array().into_iter().flatten();
    let before = before.into_iter().find(|one| one["name"] == *name).unwrap_or(&Value::Null);
    let fine = ("Accepted", "True", "Accepted", "it is the listener of a waypoint".to_owned());
    let message = "a waypoint listens only for HBONE on port 15008".to_owned();
    let wrong = ("Accepted", "False", "UnsupportedProtocol", message);
    let own = match (is_of_waypoint(listener), accepted.1) {
        (false, _) => wrong,
        (true, "True") => fine,
        (true, _) => ("Accepted", "False", "Pending", accepted.3.clone()),
    };
    let (status, reason) = match programmed.1 {
        "True" => ("True", "Programmed"),
        _ => ("False", "Pending"),
    };
    let programmed = ("Programmed", status, reason, programmed.3.clone());
    let resolved = ("ResolvedRefs", "True", "ResolvedRefs", "it has no references".to_owned());
    let own = [own, programmed, resolved].map(|one| condition(&one, before, at));
    // Routes attach to services and not to waypoints, so the count is 0.
    json!({"name": name, "supportedKinds": [], "attachedRoutes": 0,
        "conditions": merged(own.into(), &before["conditions"])})
}

/// A condition, with the time of its last change.
fn condition(
    (kind, status, reason, message): &Condition<'_>,
    said: &Value,
    (generation, now): (Option<i64>, &str),
) -> Value {
    let before = said["conditions"].as_array().into_iter().flatten();
    let before = before.into_iter().find(|one| one["type"] == **kind && one["status"] == **status);
    let since = before.map_or_else(|| json!(now), |before| before["lastTransitionTime"].clone());
    json!({"type": kind, "status": status, "reason": reason, "message": message,
        "observedGeneration": generation, "lastTransitionTime": since})
}

/// Leno's conditions, followed by those of other controllers.
fn merged(own: Vec<Value>, said: &Value) -> Vec<Value> {
    let others = said.as_array().into_iter().flatten();
    let others: Vec<Value> = others
        .into_iter()
        .filter(|other| own.iter().all(|one| one["type"] != other["type"]))
        .cloned()
        .collect();
    own.into_iter().chain(others).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gateway(status: &Value) -> DynamicObject {
        serde_json::from_value(json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
            "metadata": {"name": "edge", "namespace": "shop", "generation": 2},
            "spec": {"listeners": [{"name": "mesh", "port": 15008, "protocol": "HBONE"}]},
            "status": status,
        }))
        .unwrap()
    }

    fn said(status: &Value, kind: &str) -> (String, String) {
        let found = status["conditions"].as_array().unwrap().iter().find(|one| one["type"] == kind);
        let text = |field: &str| found.unwrap()[field].as_str().unwrap().to_owned();
        (text("status"), text("reason"))
    }

    #[test]
    fn a_waypoint_is_programmed_once_a_pod_serves_and_it_has_an_address() {
        let of = |state: WaypointState| status(&gateway(&Value::Null), &state, "t1").unwrap();
        let running = |available, addresses: &[&str]| WaypointState::Running {
            available,
            addresses: addresses.iter().map(|ip| (*ip).to_owned()).collect(),
        };
        let programmed = |state| said(&of(state), "Programmed");
        let is = |status: &str, reason: &str| (status.to_owned(), reason.to_owned());
        assert_eq!(programmed(WaypointState::Pending), is("False", "Pending"));
        assert_eq!(programmed(running(0, &["10.96.0.7"])), is("False", "Pending"));
        assert_eq!(programmed(running(1, &[])), is("False", "AddressNotAssigned"));
        assert_eq!(
            programmed(WaypointState::Failed("forbidden".into())),
            is("False", "NoResources")
        );
        let whole = of(running(1, &["10.96.0.7"]));
        assert_eq!(said(&whole, "Programmed"), is("True", "Programmed"));
        assert_eq!(whole["addresses"][0]["value"], "10.96.0.7");
        assert_eq!(whole["listeners"][0]["conditions"][0]["status"], "True");
    }

    #[test]
    fn a_status_that_is_right_is_not_written_again_and_conditions_of_others_stay() {
        let state = WaypointState::Pending;
        let mut first = status(&gateway(&Value::Null), &state, "t1").unwrap();
        first["conditions"]
            .as_array_mut()
            .unwrap()
            .push(json!({"type": "Theirs", "status": "True"}));
        assert_eq!(status(&gateway(&first), &state, "t2"), None);
        let failed = WaypointState::Failed("no".into());
        let second = status(&gateway(&first), &failed, "t2").unwrap();
        let conditions = second["conditions"].as_array().unwrap();
        assert_eq!(conditions[0]["lastTransitionTime"], "t1", "it is accepted as before");
        assert_eq!(conditions[2]["type"], "Theirs");
    }
}
