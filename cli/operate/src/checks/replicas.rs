//! Checks what the replicas of the control plane report in the conditions of their pods.

use k8s_openapi::api::core::v1::{Pod, PodCondition};
use leno_checks::{Check, CheckResult};
use leno_kube::api::ListParams;
use leno_kube::{Api, Client};
use leno_resources::KINDS_CONDITION;

use crate::Error;
use crate::removal::CONTROLLER;

/// A condition of a pod and its output: the check, the text if the condition is true, and the beginning of the
/// text if it is false.
struct ConditionCheck {
    condition: &'static str,
    subject: &'static str,
    asks: &'static str,
    good: &'static str,
    bad: &'static str,
}

const ALL: [ConditionCheck; 2] = [
    ConditionCheck {
        condition: KINDS_CONDITION,
        subject: "kinds of objects",
        asks: "Does the control plane follow every kind of object?",
        good: "all are followed",
        bad: "objects of some kinds have no effect",
    },
    ConditionCheck {
        // The type of a condition that `leno-cluster` writes.
        condition: "leno.dev/PoliciesEnforced",
        subject: "policies",
        asks: "Do the proxies enforce every policy?",
        good: "connected proxies enforce all that they were sent",
        bad: "not enforced by all proxies",
    },
];

/// The first check. An error that concerns all checks is reported under its name.
pub(super) fn check() -> Check {
    ALL[0].check()
}

impl ConditionCheck {
    fn check(&self) -> Check {
        Check::new(self.subject, self.asks)
    }
}

/// Checks what the replicas report. A condition that no replica has is left out, for example because all replicas
/// have just started.
pub(super) async fn replicas(client: &Client, namespace: &str) -> Result<Vec<CheckResult>, Error> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let ours = ListParams::default().labels(&format!("app.kubernetes.io/name={CONTROLLER}"));
    let pods = pods.list(&ours).await.map_err(Error::api("list the control plane's pods"))?;
    Ok(ALL.iter().filter_map(|said| finding(said, &pods.items)).collect())
}

fn finding(said: &ConditionCheck, pods: &[Pod]) -> Option<CheckResult> {
    let of_pods = pods.iter().filter_map(|pod| condition(pod, said.condition));
    let conditions: Vec<&PodCondition> = of_pods.collect();
    let mut failing: Vec<&str> = conditions
        .iter()
        .filter(|condition| condition.status == "False")
        .filter_map(|condition| condition.message.as_deref())
        .collect();
    // All replicas have the same rights, so most of their reports are equal.
    failing.sort_unstable();
    failing.dedup();
    if conditions.is_empty() {
        None
    } else if failing.is_empty() {
        Some(said.check().good(said.good))
    } else {
        Some(said.check().warning(format!("{}: {}", said.bad, failing.join(". "))))
    }
}

fn condition<'p>(pod: &'p Pod, kind: &str) -> Option<&'p PodCondition> {
    let mut conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.find(|condition| condition.type_ == kind)
}

#[cfg(test)]
mod tests {
    use leno_checks::Level;
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
        let said = |pods: &[Pod]| finding(&ALL[0], pods);
        assert_eq!(said(&[pod(json!([]))]), None);
        let good = said(&[pod(says("True", "")), pod(json!([]))]).unwrap();
        assert_eq!(good.level, Level::Good);
        let lacking = || pod(says("False", "cannot watch HTTPRoute: forbidden"));
        let bad = said(&[pod(says("True", "")), lacking(), lacking()]).unwrap();
        assert_eq!(bad.level, Level::Warning);
        assert_eq!(bad.text.matches("HTTPRoute").count(), 1, "{}", bad.text);
        assert_eq!(finding(&ALL[1], &[lacking()]), None, "it says nothing of policies");
    }
}
