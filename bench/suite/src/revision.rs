//! The configuration that changes during the load, as Kubernetes objects: documents of a file in
//! the lab, applied objects in a cluster.

use serde_json::{Value, json};

use crate::application::{ARRIVED, PORT, PUSHED};
use crate::scenario::Scenario;

/// The service whose endpoints come and go.
pub(crate) const CHURNING: &str = "all";

/// A route of the first service. Its contents depend on the revision.
pub(crate) fn route(namespace: &str, scenario: &Scenario, revision: u64) -> Value {
    let service = scenario.service(0);
    let set = json!([{"name": PUSHED, "value": revision.to_string()}]);
    json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
    "metadata": {"name": "pushed", "namespace": namespace},
    "spec": {
        "parentRefs": [{"group": "", "kind": "Service", "name": service, "port": PORT}],
        "rules": [{
            "filters": [{"type": "RequestHeaderModifier", "requestHeaderModifier": {"set": set}}],
            "backendRefs": [{"name": service, "port": PORT}],
        }],
    }})
}

/// How many revisions of a route its application has reported, according to its output.
pub(crate) fn arrived(printed: &str) -> u64 {
    printed.lines().filter(|line| line.contains(ARRIVED)).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_revision_sets_its_number_and_is_told_of_once() {
        let push = crate::scenario::find("push").unwrap();
        let set = "/spec/rules/0/filters/0/requestHeaderModifier/set/0";
        let route = route("bench", &push, 7);
        assert_eq!(route.pointer(set), Some(&json!({"name": "x-pushed", "value": "7"})));
        let printed = "s0: arrived: revision 1\nready\ns0: arrived: revision 2\n";
        assert_eq!((arrived(printed), arrived("")), (2, 0));
    }
}
