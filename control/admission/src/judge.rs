//! Decides whether an object of the mesh may be stored, by the checks of `leno analyze`.
//!
//! An object of Leno's own API group that cannot be parsed is denied, because no part of it would apply. An object
//! of the Gateway API is never denied: it may also have a gateway as its parent that supports it, and its status
//! shows what Leno does not support. All other findings become warnings, because objects may be stored in any
//! order: a route may be stored before its service. A route that is not attached to any Service does not concern
//! the mesh, and is not checked.

use std::sync::Arc;

use leno_analysis::{KEYS_NOT_PERMITTED, analyze};
use leno_resources::gateway::ParentRef;
use leno_resources::{Documents, Kind, Object, Problem, parse};

use crate::review::{AdmissionReview, ReviewAnswer};
use crate::value::JsonValue;

/// The API group of Leno's own kinds.
const GROUP: &str = "leno.dev";
/// The code of the finding that no reference uses a grant. Such a finding depends on routes of other namespaces.
const UNUSED_GRANT: &str = "grant-unused";
/// A placeholder name for an object whose name the API server generates later.
const UNNAMED: &str = "x";

/// Checks the object of a review. `neighbours` are the stored objects that it is checked against
/// ([`StoredObjects::neighbours`](crate::StoredObjects::neighbours)); if there are none, the object is checked on
/// its own, so that the answer reveals nothing about stored objects. Returns `None` once `cancelled` returns true.
#[must_use]
pub fn judge(
    review: &AdmissionReview,
    neighbours: Option<&[Arc<Object>]>,
    cancelled: impl Fn() -> bool,
) -> Option<ReviewAnswer> {
    if is_unjudged(review) {
        return Some(ReviewAnswer::default());
    }
    let object = &review.object;
    let text = serde_json::to_string(&document(review)).expect("a value is JSON");
    // The YAML parser also reads JSON.
    let documents = match parse("", &text) {
        Ok(documents) => documents,
        Err(problems) => {
            let lines: Vec<String> = problems.iter().map(problem).collect();
            return Some(if is_ours(object) {
                ReviewAnswer::denied(lines.join("; "))
            } else {
                let warned = |line: String| format!("{line}: the mesh ignores this object");
                ReviewAnswer {
                    warnings: lines.into_iter().map(warned).collect(),
                    ..ReviewAnswer::default()
                }
            });
        }
    };
    // Parsing and checking each take a bounded time, so cancellation is only checked between them.
    if cancelled() {
        return None;
    }
    let warnings = neighbours.map(|neighbours| findings(review, &documents, neighbours));
    Some(ReviewAnswer { warnings: warnings.unwrap_or_default(), ..ReviewAnswer::default() })
}

/// Whether an object is allowed without a check: it is being deleted, or its spec does not change, or it does not
/// concern the mesh.
#[must_use]
pub fn is_unjudged(review: &AdmissionReview) -> bool {
    let object = &review.object;
    let ends = object.at(&["metadata", "deletionTimestamp"]).is_some();
    let same = review.old.as_ref().is_some_and(|old| old.get("spec") == object.get("spec"));
    ends || same || !is_of_the_mesh(object)
}

fn findings(
    review: &AdmissionReview,
    documents: &Documents,
    neighbours: &[Arc<Object>],
) -> Vec<String> {
    let judged: Vec<Object> = documents.objects.iter().map(|one| one.value.clone()).collect();
    let others = neighbours.iter().filter(|one| judged.iter().all(|own| own.key() != one.key()));
    let objects = others.map(|one| Object::clone(one)).chain(judged.iter().cloned()).collect();
    let mut found = analyze(documents, objects);
    // Keys are not checked here, because the control plane's Namespace is not among the neighbours. The policy's
    // status shows whether the keys may be fetched.
    found.retain(|one| one.code != UNUSED_GRANT && one.code != KEYS_NOT_PERMITTED);
    found.retain(|one| !is_of_foreign_parent(review, &one.path));
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

/// Whether a finding is about a parent in another namespace. A user may have no permission to learn which services
/// and ports that namespace has. The status of the route shows whether it is attached.
fn is_of_foreign_parent(review: &AdmissionReview, path: &str) -> bool {
    let index = path.strip_prefix("spec.parentRefs[").and_then(|rest| rest.split_once(']'));
    let Some(index) = index.and_then(|(index, _)| index.parse::<usize>().ok()) else {
        return false;
    };
    let parents = review.object.at(&["spec", "parentRefs"]).map_or(&[][..], JsonValue::items);
    let namespace =
        parents.get(index).and_then(|one| one.get("namespace")).and_then(JsonValue::text);
    namespace.is_some_and(|namespace| namespace != review.namespace)
}

/// The text of a problem without its line, because the object comes from the API server and not from a file.
fn problem(problem: &Problem) -> String {
    match problem.path.as_str() {
        "" => problem.reason.clone(),
        path => format!("{path}: {}", problem.reason),
    }
}

/// Whether the object's kind belongs to Leno, so that no other program reads it.
fn is_ours(object: &JsonValue) -> bool {
    let version = object.get("apiVersion").and_then(JsonValue::text).unwrap_or_default();
    version.split_once('/').is_some_and(|(group, _)| group == GROUP)
}

/// Whether the object concerns the mesh. A route that is only attached to gateways does not, and may have fields
/// that Leno does not support.
fn is_of_the_mesh(object: &JsonValue) -> bool {
    let kind = object.get("kind").and_then(JsonValue::text).unwrap_or_default();
    if !Kind::ROUTES.iter().any(|route| route.as_str() == kind) {
        return true;
    }
    let parents = object.at(&["spec", "parentRefs"]).map_or(&[][..], JsonValue::items);
    parents.iter().any(|parent| {
        let parent = serde_json::to_value(parent).and_then(serde_json::from_value::<ParentRef>);
        parent.is_ok_and(|parent| parent.is_service())
    })
}

/// The object in the form in which a user would write it.
fn document(review: &AdmissionReview) -> JsonValue {
    let object = &review.object;
    let mut metadata = JsonValue::map();
    let name = object.at(&["metadata", "name"]).and_then(JsonValue::text).unwrap_or(UNNAMED);
    metadata.set("name", name);
    metadata.set("namespace", review.namespace.as_str());
    for map in ["labels", "annotations"] {
        if let Some(given) = object.at(&["metadata", map]) {
            metadata.set(map, given.clone());
        }
    }
    // The annotation in which `kubectl apply` keeps the whole object is dropped, so that it is not checked.
    let mut document = JsonValue::map();
    for field in ["apiVersion", "kind"] {
        document.set(field, object.get(field).cloned().unwrap_or(JsonValue::Null));
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
    use crate::StoredObjects;

    fn review(object: &Json, old: Option<&Json>) -> AdmissionReview {
        let review = json!({"apiVersion": "admission.k8s.io/v1", "request": {
            "uid": "u", "namespace": "shop", "object": object, "oldObject": old}});
        AdmissionReview::parse(review.to_string().as_bytes()).unwrap()
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

    /// The answer to a review while these objects are stored.
    fn judged(review: &AdmissionReview, objects: Vec<Object>) -> ReviewAnswer {
        let mut stored = StoredObjects::default();
        objects.iter().for_each(|object| stored.put(object));
        judge(review, Some(&stored.neighbours(review)), || false).unwrap()
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
        let answer = judged(&review(&misspelt, None), services(&["web"]));
        let reason = answer.denied.unwrap();
        assert!(reason.starts_with("spec.timeout: unknown field"), "{reason}");
        // Changing the labels of an invalid object is allowed, and so is deleting it.
        assert_eq!(
            judged(&review(&misspelt, Some(&misspelt)), Vec::new()),
            ReviewAnswer::default()
        );
        let mut going = misspelt;
        going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert_eq!(judged(&review(&going, None), Vec::new()), ReviewAnswer::default());
    }

    #[test]
    fn what_leads_nowhere_yet_is_a_warning() {
        let policy = policy(json!({"timeouts": {"request": "1s"},
            "targetRefs": [{"group": "", "kind": "Service", "name": "wbe"}]}));
        let answer = judged(&review(&policy, None), services(&["web"]));
        assert_eq!(answer.denied, None);
        let [warning] = &answer.warnings[..] else { panic!("{answer:?}") };
        assert!(warning.starts_with("spec.targetRefs[0].name: [target-not-found] "), "{warning}");
        assert!(warning.ends_with("did you mean web?"), "{warning}");
    }

    #[test]
    fn routes_of_services_are_judged_and_those_of_gateways_are_not() {
        let service = json!([{"group": "", "kind": "Service", "name": "web"}]);
        let good = json!([{"backendRefs": [{"name": "web", "port": 80}]}]);
        let told = |parents: &Json, rules: &Json| {
            judged(&review(&route(parents.clone(), rules.clone()), None), services(&["web"]))
        };
        assert_eq!(told(&service, &good), ReviewAnswer::default());
        let newer = json!([{"backendRefs": [], "invented": 1}]);
        let gateway = json!([{"name": "public"}]);
        let both = json!([service[0], gateway[0]]);
        for parents in [&service, &both] {
            let answer = told(parents, &newer);
            assert_eq!(answer.denied, None, "a gateway may know the field");
            assert!(answer.warnings[0].contains("invented: unknown field"), "{answer:?}");
        }
        assert_eq!(told(&gateway, &newer), ReviewAnswer::default());
        let nowhere = json!([{"backendRefs": [{"name": "crat", "port": 80}]}]);
        let answer = told(&service, &nowhere);
        assert!(answer.warnings[0].contains("[backend-not-found]"), "{answer:?}");
    }

    /// The answer must not depend on objects of other namespaces, because everyone who may store objects in one
    /// namespace can read it.
    #[test]
    fn an_answer_tells_nothing_of_other_namespaces() {
        let elsewhere = |name: &str| {
            let text = format!(
                "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: bank}}\n\
                 spec: {{ports: [{{port: 443, appProtocol: https}}]}}\n---\n\
                 apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\n\
                 metadata: {{name: r, namespace: bank}}\nspec:\n  \
                 parentRefs: [{{group: '', kind: Service, name: {name}}}]\n"
            );
            let stored = parse("", &text).unwrap().objects.into_iter().map(|one| one.value);
            stored.chain(services(&["web"])).collect::<Vec<_>>()
        };
        let refers = |namespace: &str, parent: &str, backend: &str| {
            route(
                json!([{"group": "", "kind": "Service", "name": parent, "namespace": namespace}]),
                json!([{"backendRefs": [{"name": backend, "namespace": "bank", "port": 80}]}]),
            )
        };
        let grant = json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "ReferenceGrant",
            "metadata": {"name": "g"}, "spec": {
                "from": [{"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "namespace": "bank"}],
                "to": [{"group": "", "kind": "Service"}]}});
        let policy = policy(json!({"timeouts": {"request": "1s"},
            "targetRefs": [{"group": "", "kind": "Service", "name": "vault"}]}));
        for object in [
            refers("bank", "vault", "vault"),
            refers("bank", "valut", "web"),
            refers("shop", "web", "vault"),
            refers("shop", "vault", "vault"),
            grant,
            policy,
        ] {
            let answers =
                ["vault", "other"].map(|name| judged(&review(&object, None), elsewhere(name)));
            assert_eq!(answers[0], answers[1], "{object}");
        }
    }

    /// An object that is checked on its own reveals nothing about stored objects.
    #[test]
    fn without_neighbours_an_object_is_judged_by_itself() {
        let targets = json!([{"group": "", "kind": "Service", "name": "nothing"}]);
        let alone = |spec: Json| judge(&review(&policy(spec), None), None, || false).unwrap();
        let good = alone(json!({"targetRefs": targets, "timeouts": {"request": "1s"}}));
        assert_eq!(good, ReviewAnswer::default());
        assert!(alone(json!({"targetRefs": targets, "timeout": {}})).denied.is_some());
    }

    #[test]
    fn a_judgement_that_was_cancelled_ends() {
        let policy = policy(json!({"timeouts": {"request": "1s"},
            "targetRefs": [{"group": "", "kind": "Service", "name": "web"}]}));
        assert_eq!(judge(&review(&policy, None), Some(&[]), || true), None);
    }

    /// In a namespace with a thousand services and routes, a route is only compared with the few to which it is
    /// related.
    #[test]
    fn a_route_is_judged_against_what_it_touches() {
        let mut stored = StoredObjects::default();
        let names: Vec<String> = (0..1000).map(|number| format!("service-{number}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        services(&names).iter().for_each(|object| stored.put(object));
        for name in &names {
            let text = format!(
                "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\n\
                 metadata: {{name: {name}, namespace: shop}}\nspec:\n  \
                 parentRefs: [{{group: '', kind: Service, name: {name}}}]\n"
            );
            stored.put(&parse("", &text).unwrap().objects[0].value);
        }
        let route = route(
            json!([{"group": "", "kind": "Service", "name": "service-7"}]),
            json!([{"backendRefs": [{"name": "service-8", "port": 80}]}]),
        );
        let near = stored.neighbours(&review(&route, None));
        let mut near: Vec<String> = near.iter().map(|one| one.key().to_string()).collect();
        near.sort();
        assert_eq!(
            near,
            ["HTTPRoute shop/service-7", "Service shop/service-7", "Service shop/service-8"]
        );
    }
}
