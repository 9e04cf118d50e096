//! Whether the control plane follows all kinds of objects, as the conditions of its pods say.

use k8s_openapi::api::core::v1::{Pod, PodCondition};
use leno_kube::api::ListParams;
use leno_kube::{Api, Client};
use leno_resources::KINDS_CONDITION;

use super::{Finding, Level};
use crate::Error;
use crate::removal::CONTROLLER;

const SUBJECT: &str = "kinds of objects";

/// What the replicas say. `None` where none says anything, such as one that has just started.
pub(super) async fn kinds(client: &Client, namespace: &str) -> Result<Option<Finding>, Error> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let ours = ListParams::default().labels(&format!("app.kubernetes.io/name={CONTROLLER}"));
    let pods = pods.list(&ours).await.map_err(Error::api("list the control plane's pods"))?;
    Ok(said(&pods.items))
}

fn said(pods: &[Pod]) -> Option<Finding> {
    let said: Vec<&PodCondition> = pods.iter().filter_map(condition).collect();
    let mut failing: Vec<&str> = said
        .iter()
        .filter(|condition| condition.status == "False")
        .filter_map(|condition| condition.message.as_deref())
        .collect();
    // Replicas have the same rights, and mostly the same to say.
    failing.sort_unstable();
    failing.dedup();
    if said.is_empty() {
        None
    } else if failing.is_empty() {
        Some(Finding::new(SUBJECT, Level::Good, "all are followed"))
    } else {
        let text = format!("objects of some kinds have no effect: {}", failing.join(". "));
        Some(Finding::new(SUBJECT, Level::Warning, text))
    }
}

fn condition(pod: &Pod) -> Option<&PodCondition> {
    let mut conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.find(|condition| condition.type_ == KINDS_CONDITION)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(conditions: serde_json::Value) -> Pod {
        serde_json::from_value(json!({"metadata": {}, "status": {"conditions": conditions}}))
            .unwrap()
    }

    fn says(status: &str, message: &str) -> serde_json::Value {
        json!([{"type": "Ready", "status": "True"},
            {"type": KINDS_CONDITION, "status": status, "message": message}])
    }

    #[test]
    fn one_replica_that_lacks_a_kind_is_enough_and_two_that_say_the_same_say_it_once() {
        assert_eq!(said(&[pod(json!([]))]), None);
        let good = said(&[pod(says("True", "")), pod(json!([]))]).unwrap();
        assert_eq!(good.level, Level::Good);
        let lacking = || pod(says("False", "HTTPRoute cannot be followed: forbidden"));
        let bad = said(&[pod(says("True", "")), lacking(), lacking()]).unwrap();
        assert_eq!(bad.level, Level::Warning);
        assert_eq!(bad.text.matches("HTTPRoute").count(), 1, "{}", bad.text);
    }
}
