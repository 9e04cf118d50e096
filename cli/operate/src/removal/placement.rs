//! Finds the nodes on which agents may have run, from the labels that the agents' pods require.
//!
//! Taints are ignored: a node that was tainted later may have had an agent before.

use k8s_openapi::api::core::v1::{Node, NodeSelectorRequirement, NodeSelectorTerm, PodSpec};
use leno_kube::ResourceExt as _;

/// Whether the node selector and the required affinity of this specification allow its pod to run on a node.
pub(super) fn may_run(pod: &PodSpec, node: &Node) -> bool {
    let selected = pod.node_selector.iter().flatten();
    let mut selected = selected.map(|(key, value)| node.labels().get(key) == Some(value));
    let affinity = pod.affinity.as_ref().and_then(|all| all.node_affinity.as_ref());
    let required = affinity
        .and_then(|nodes| nodes.required_during_scheduling_ignored_during_execution.as_ref());
    let terms = required.map(|required| required.node_selector_terms.as_slice());
    selected.all(|is_so| is_so)
        && terms.is_none_or(|terms| terms.iter().any(|term| holds(term, node)))
}

/// Whether a term matches a node. As in the scheduler, a term without requirements matches no node.
fn holds(term: &NodeSelectorTerm, node: &Node) -> bool {
    let expressions = term.match_expressions.iter().flatten();
    let fields = term.match_fields.iter().flatten();
    let name = node.name_any();
    let mut all = expressions
        .map(|one| meets(one, node.labels().get(&one.key).map(String::as_str)))
        // The scheduler supports only the field metadata.name.
        .chain(fields.map(|one| meets(one, (one.key == "metadata.name").then_some(&name))))
        .peekable();
    all.peek().is_some() && all.all(|is_so| is_so)
}

fn meets(wanted: &NodeSelectorRequirement, given: Option<&str>) -> bool {
    let values = || wanted.values.iter().flatten();
    let listed = || given.is_some_and(|given| values().any(|value| value == given));
    let number = |text: &str| text.parse::<i64>().ok();
    let compared = || given.and_then(number).zip(values().next().and_then(|value| number(value)));
    match wanted.operator.as_str() {
        "In" => listed(),
        "NotIn" => !listed(),
        "Exists" => given.is_some(),
        "DoesNotExist" => given.is_none(),
        "Gt" => compared().is_some_and(|(given, value)| given > value),
        "Lt" => compared().is_some_and(|(given, value)| given < value),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn runs(pod: &Value) -> bool {
        let node = json!({"metadata": {"name": "n1", "labels": {"pool": "apps", "cores": "8"}}});
        let node: Node = serde_json::from_value(node).unwrap();
        let mut pod = pod.clone();
        pod["containers"] = json!([]);
        may_run(&serde_json::from_value(pod).unwrap(), &node)
    }

    fn requires(terms: Value) -> Value {
        json!({"affinity": {"nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}})
    }

    fn expression(key: &str, operator: &str, values: &[&str]) -> Value {
        json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]})
    }

    #[test]
    fn a_node_is_chosen_as_the_scheduler_chooses_it() {
        assert!(runs(&json!({})));
        assert!(runs(&json!({"nodeSelector": {"pool": "apps"}})));
        assert!(!runs(&json!({"nodeSelector": {"pool": "apps", "disk": "ssd"}})));
        for (key, operator, values, wanted) in [
            ("pool", "In", &["apps", "other"][..], true),
            ("pool", "In", &["other"], false),
            ("pool", "NotIn", &["virtual"], true),
            ("pool", "NotIn", &["apps"], false),
            ("disk", "NotIn", &["ssd"], true),
            ("pool", "Exists", &[], true),
            ("disk", "Exists", &[], false),
            ("disk", "DoesNotExist", &[], true),
            ("cores", "Gt", &["4"], true),
            ("cores", "Lt", &["4"], false),
            ("pool", "Gt", &["4"], false),
        ] {
            let one = requires(json!([expression(key, operator, values)]));
            assert_eq!(runs(&one), wanted, "{key} {operator} {values:?}");
        }
        let either = [expression("pool", "In", &["other"]), expression("pool", "Exists", &[])];
        assert!(runs(&requires(json!(either))), "terms are alternatives");
        assert!(!runs(&requires(json!([{}]))), "an empty term holds for no node");
        let named = |name| {
            json!([{"matchFields": [
            {"key": "metadata.name", "operator": "In", "values": [name]}]}])
        };
        assert!(runs(&requires(named("n1"))) && !runs(&requires(named("n2"))));
    }
}
