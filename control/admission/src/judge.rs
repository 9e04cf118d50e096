//! Whether an object of the mesh may be stored: the checks of `leno analyze`, before it is too late.
//!
//! An object of ours that is not understood is denied: nothing of it would hold. One of the Gateway
//! API is not ours to deny: another of its parents may be a gateway, which understands it, and its
//! status says that we do not. What is found beyond that is a warning, since objects may come in any
//! order: a route may be stored before the service that it names. A route that attaches to no Service is
//! none of the mesh's, and nothing is said of it.

use leno_analysis::analyze;
use leno_resources::gateway::ParentRef;
use leno_resources::{Documents, Kind, Object, Problem, parse};

use crate::review::{Answer, Review};
use crate::value::Value;

/// The group of the kinds that are ours.
const GROUP: &str = "leno.dev";
/// What an object whose name the API server makes is called until then.
const UNNAMED: &str = "x";

/// Judges the object of a review. `known` is what else there is in the cluster, without endpoints and
/// pods, which no check asks for.
#[must_use]
pub fn judge(review: &Review, known: Vec<Object>) -> Answer {
    let object = &review.object;
    let ends = object.at(&["metadata", "deletionTimestamp"]).is_some();
    let same = review.old.as_ref().is_some_and(|old| old.get("spec") == object.get("spec"));
    if ends || same || !is_of_the_mesh(object) {
        return Answer::default();
    }
    let text = serde_json::to_string(&document(review)).expect("a value is JSON");
    // JSON is YAML.
    let documents = match parse("", &text) {
        Ok(documents) => documents,
        Err(problems) => {
            let lines: Vec<String> = problems.iter().map(problem).collect();
            return if is_ours(object) {
                Answer::denied(lines.join("; "))
            } else {
                let warned =
                    |line: String| format!("{line}: the mesh does not take this object in");
                Answer { warnings: lines.into_iter().map(warned).collect(), ..Answer::default() }
            };
        }
    };
    Answer { warnings: findings(&documents, known), ..Answer::default() }
}

fn findings(documents: &Documents, mut known: Vec<Object>) -> Vec<String> {
    for located in &documents.objects {
        let key = located.value.key();
        known.retain(|object| object.key() != key);
        known.push(located.value.clone());
    }
    let found = analyze(documents, known);
    let line = |found: leno_analysis::Finding| {
        let mut line = format!("[{}] {}", found.code, found.reason);
        if !found.path.is_empty() {
            line = format!("{}: {line}", found.path);
        }
        if !found.remedy.is_empty() {
            line = format!("{line}; {}", found.remedy);
        }
        line
    };
    found.into_iter().map(line).collect()
}

/// A problem without a place: nobody wrote the text that it is in.
fn problem(problem: &Problem) -> String {
    match problem.path.as_str() {
        "" => problem.reason.clone(),
        path => format!("{path}: {}", problem.reason),
    }
}

/// Whether nobody else reads objects of this kind.
fn is_ours(object: &Value) -> bool {
    let version = object.get("apiVersion").and_then(Value::text).unwrap_or_default();
    version.split_once('/').is_some_and(|(group, _)| group == GROUP)
}

/// Routes are for gateways, too, and those may read fields that we do not.
fn is_of_the_mesh(object: &Value) -> bool {
    let kind = object.get("kind").and_then(Value::text).unwrap_or_default();
    let routes = [Kind::HttpRoute, Kind::GrpcRoute, Kind::TlsRoute, Kind::TcpRoute];
    if !routes.iter().any(|route| route.as_str() == kind) {
        return true;
    }
    let parents = object.at(&["spec", "parentRefs"]).map_or(&[][..], Value::items);
    parents.iter().any(|parent| {
        let parent = serde_json::to_value(parent).and_then(serde_json::from_value::<ParentRef>);
        parent.is_ok_and(|parent| parent.is_service())
    })
}

/// The object as somebody would write it.
fn document(review: &Review) -> Value {
    let object = &review.object;
    let mut metadata = Value::map();
    let name = object.at(&["metadata", "name"]).and_then(Value::text).unwrap_or(UNNAMED);
    metadata.set("name", name);
    metadata.set("namespace", review.namespace.as_str());
    for map in ["labels", "annotations"] {
        if let Some(given) = object.at(&["metadata", map]) {
            metadata.set(map, given.clone());
        }
    }
    // `kubectl apply` keeps what it has read in an annotation, which is ours to read as little as any.
    let mut document = Value::map();
    for field in ["apiVersion", "kind"] {
        document.set(field, object.get(field).cloned().unwrap_or(Value::Null));
    }
    document.set("metadata", metadata);
    for (field, given) in object.fields() {
        if !["apiVersion", "kind", "metadata", "status"].contains(&field.as_str()) {
            document.set(field, given.clone());
        }
    }
    document
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;

    fn review(object: &Json, old: Option<&Json>) -> Review {
        let review = json!({"apiVersion": "admission.k8s.io/v1", "request": {
            "uid": "u", "namespace": "shop", "object": object, "oldObject": old}});
        Review::parse(review.to_string().as_bytes()).unwrap()
    }

    fn policy(spec: Json) -> Json {
        json!({"apiVersion": "leno.dev/v1alpha1", "kind": "TrafficPolicy",
            "metadata": {"name": "p", "namespace": "shop", "managedFields": [{}], "uid": "u"},
            "spec": spec})
    }

    fn route(parents: Json, rules: Json) -> Json {
        json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
            "metadata": {"generateName": "r-"}, "spec": {"parentRefs": parents, "rules": rules},
            "status": {"parents": []}})
    }

    fn services(names: &[&str]) -> Vec<Object> {
        let text: String = names
            .iter()
            .map(|name| {
                format!(
                    "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: shop}}\n\
                     spec: {{ports: [{{port: 80, appProtocol: http}}]}}\n"
                )
            })
            .collect();
        parse("", &text).unwrap().objects.into_iter().map(|located| located.value).collect()
    }

    #[test]
    fn what_is_not_understood_is_denied_with_field_and_reason() {
        let targets = json!([{"group": "", "kind": "Service", "name": "web"}]);
        let misspelt = policy(json!({"targetRefs": targets, "timeout": {}}));
        let answer = judge(&review(&misspelt, None), services(&["web"]));
        let reason = answer.denied.unwrap();
        assert!(reason.starts_with("spec.timeout: unknown field"), "{reason}");
        // Whoever only touches its labels is not to blame, and who removes it is to be let.
        assert_eq!(judge(&review(&misspelt, Some(&misspelt)), Vec::new()), Answer::default());
        let mut going = misspelt;
        going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert_eq!(judge(&review(&going, None), Vec::new()), Answer::default());
    }

    #[test]
    fn what_leads_nowhere_yet_is_a_warning() {
        let policy = policy(json!({"timeouts": {"request": "1s"},
            "targetRefs": [{"group": "", "kind": "Service", "name": "wbe"}]}));
        let answer = judge(&review(&policy, None), services(&["web"]));
        assert_eq!(answer.denied, None);
        let [warning] = &answer.warnings[..] else { panic!("{answer:?}") };
        assert!(warning.starts_with("spec.targetRefs[0].name: [target-not-found] "), "{warning}");
        assert!(warning.ends_with("did you mean web?"), "{warning}");
    }

    #[test]
    fn routes_of_services_are_judged_and_those_of_gateways_are_not() {
        let service = json!([{"group": "", "kind": "Service", "name": "web"}]);
        let good = json!([{"backendRefs": [{"name": "web", "port": 80}]}]);
        let judged = |parents: &Json, rules: &Json| {
            judge(&review(&route(parents.clone(), rules.clone()), None), services(&["web"]))
        };
        assert_eq!(judged(&service, &good), Answer::default());
        let newer = json!([{"backendRefs": [], "invented": 1}]);
        let gateway = json!([{"name": "public"}]);
        let both = json!([service[0], gateway[0]]);
        for parents in [&service, &both] {
            let answer = judged(parents, &newer);
            assert_eq!(answer.denied, None, "a gateway may know the field");
            assert!(answer.warnings[0].contains("invented: unknown field"), "{answer:?}");
        }
        assert_eq!(judged(&gateway, &newer), Answer::default());
        let nowhere = json!([{"backendRefs": [{"name": "crat", "port": 80}]}]);
        let answer = judged(&service, &nowhere);
        assert!(answer.warnings[0].contains("[backend-not-found]"), "{answer:?}");
    }
}
