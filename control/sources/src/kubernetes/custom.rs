//! Kinds that a cluster has only while their CustomResourceDefinitions are installed.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use leno_kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use leno_kube::{Api, Client};
use leno_resources::{DEFAULT_NAMESPACE, Kind, Metadata, Object, ObjectKey, Problem, parse};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{ObjectScope, SkippedObject};

/// API clients for the objects of a kind: one for each version that the kind may have.
pub(super) fn versions(
    client: &Client,
    kind: Kind,
    scope: &ObjectScope,
) -> Vec<Api<DynamicObject>> {
    let way = |given: &&str| {
        let (group, version) = given.split_once('/').unwrap_or(("", given));
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind.as_str()));
        match scope {
            ObjectScope::All => Api::all_with(client.clone(), &resource),
            ObjectScope::Namespace(name) => Api::namespaced_with(client.clone(), name, &resource),
        }
    };
    kind.api_versions().iter().map(way).collect()
}

/// Converts an object by the same rules as a document in a file.
pub(super) fn object(kind: Kind, given: DynamicObject) -> Result<Object, SkippedObject> {
    let name = given.metadata.name.unwrap_or_default();
    let namespace = given.metadata.namespace.unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned());
    let key = ObjectKey { kind, namespace: namespace.clone(), name: name.clone() };
    // The creation time is kept because it decides between objects with the same claim, such as two Workloads with
    // the same address: the older one takes precedence (GEP-1426, GEP-713 and the Gateway API's rules on
    // conflicts).
    let metadata = json!({
        "name": name,
        "namespace": namespace,
        "labels": given.metadata.labels.unwrap_or_default(),
        "annotations": given.metadata.annotations.unwrap_or_default(),
        "creationTimestamp": given.metadata.creation_timestamp,
    });
    // The API version in which the object was read is kept, because the status is written in the same version.
    let read_as = given.types.map(|types| types.api_version);
    let known = |read: &String| kind.api_versions().contains(&read.as_str());
    let version = read_as.filter(known).unwrap_or_else(|| kind.api_version().to_owned());
    let seen = StatusFields {
        generation: given.metadata.generation,
        version: given.metadata.resource_version,
        status: given.data.get("status").cloned(),
    };
    let mut document = json!({
        "apiVersion": version,
        "kind": kind.as_str(),
        "metadata": metadata,
    });
    if let (Value::Object(fields), Value::Object(rest)) = (&mut document, given.data) {
        // Only the status of a Workload is an input. Leno itself writes the status of the other kinds.
        let read = |field: &str| field == "spec" || (field == "status" && kind == Kind::Workload);
        fields.extend(rest.into_iter().filter(|(field, _)| read(field)));
    }
    // JSON is also valid YAML.
    match parse(&key.to_string(), &document.to_string()) {
        Ok(documents) => documents
            .objects
            .into_iter()
            .next()
            .map(|located| seen.attach(located.value))
            .ok_or_else(|| SkippedObject::Bad {
                key,
                reason: "it is not a kind of Leno".to_owned(),
                outline: None,
            }),
        Err(problems) => {
            let lines: Vec<String> = problems.iter().map(said).collect();
            let outline = outline(kind, document).map(|object| Box::new(seen.attach(object)));
            Err(SkippedObject::Bad { key, reason: lines.join("; "), outline })
        }
    }
}

/// The text of a problem without its position, because the position is in generated text that users do not see.
fn said(problem: &Problem) -> String {
    match problem.path.as_str() {
        "" => problem.reason.clone(),
        path => format!("{path} {}", problem.reason),
    }
}

/// An invalid route or policy, reduced to its names and its targets; `None` if even those are invalid. A reduced
/// authorization policy denies every client, unless it only audits.
fn outline(kind: Kind, mut document: Value) -> Option<Object> {
    if kind.is_policy() {
        let is_audit = document["spec"]["action"] == "Audit";
        let targets = document["spec"]["targetRefs"].take();
        document["spec"] = match (targets, document["spec"]["selector"].take()) {
            (Value::Null, selector @ Value::Object(_)) => json!({"selector": selector}),
            (targets, _) => json!({"targetRefs": targets}),
        };
        if kind == Kind::AuthorizationPolicy {
            // An Allow policy without rules permits nothing, and an Audit policy without rules records nothing.
            document["spec"]["action"] = if is_audit { json!("Audit") } else { json!("Allow") };
        }
        return Object::unchecked_policy(kind, document);
    }
    let parents = document["spec"]["parentRefs"].take();
    document["spec"] = json!({"parentRefs": parents, "hostnames": [], "rules": []});
    match kind {
        Kind::HttpRoute => serde_json::from_value(document).ok().map(Object::HttpRoute),
        Kind::GrpcRoute => serde_json::from_value(document).ok().map(Object::GrpcRoute),
        Kind::TlsRoute => serde_json::from_value(document).ok().map(Object::TlsRoute),
        Kind::TcpRoute => serde_json::from_value(document).ok().map(Object::TcpRoute),
        _ => None,
    }
}

/// The fields of a route or a policy that are needed to write its status.
struct StatusFields {
    /// The generation to which the status refers.
    generation: Option<i64>,
    /// The resource version that a new status replaces.
    version: Option<String>,
    /// The present status, with the entries of all controllers.
    status: Option<Value>,
}

impl StatusFields {
    /// Adds the fields to a route or a policy. If the present status cannot be parsed, no resource version is
    /// added, so that the status is not replaced.
    fn attach(self, mut object: Object) -> Object {
        let key = object.key();
        match &mut object {
            Object::HttpRoute(route) => self.of_route(&key, &mut route.metadata, &mut route.status),
            Object::GrpcRoute(route) => self.of_route(&key, &mut route.metadata, &mut route.status),
            Object::TlsRoute(route) => self.of_route(&key, &mut route.metadata, &mut route.status),
            Object::TcpRoute(route) => self.of_route(&key, &mut route.metadata, &mut route.status),
            Object::BackendTlsPolicy(policy) => {
                self.of_route(&key, &mut policy.metadata, &mut policy.status);
            }
            Object::TrafficPolicy(policy) => {
                self.of_policy(&key, &mut policy.metadata, &mut policy.status);
            }
            Object::RateLimitPolicy(policy) => {
                self.of_policy(&key, &mut policy.metadata, &mut policy.status);
            }
            Object::AuthorizationPolicy(policy) => {
                self.of_policy(&key, &mut policy.metadata, &mut policy.status);
            }
            _ => {}
        }
        object
    }

    fn of_route<S: DeserializeOwned>(
        self,
        key: &ObjectKey,
        metadata: &mut ObjectMeta,
        status: &mut Option<S>,
    ) {
        metadata.generation = self.generation;
        metadata.resource_version = self.read(key, status);
    }

    fn of_policy<S: DeserializeOwned>(
        self,
        key: &ObjectKey,
        metadata: &mut Metadata,
        status: &mut Option<S>,
    ) {
        metadata.generation = self.generation;
        metadata.resource_version = self.read(key, status);
    }

    /// Parses the present status. Returns the version that a new status replaces.
    fn read<S: DeserializeOwned>(self, key: &ObjectKey, status: &mut Option<S>) -> Option<String> {
        match self.status.map(serde_json::from_value::<S>).transpose() {
            Ok(said) => {
                *status = said;
                self.version
            }
            Err(error) => {
                tracing::warn!(%key, %error, "the object's status cannot be read");
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use leno_types::traffic::PolicyScope;

    use super::*;

    fn route(spec: &str) -> DynamicObject {
        serde_json::from_str(&format!(
            r#"{{"apiVersion":"gateway.networking.k8s.io/v1","kind":"HTTPRoute","metadata":{{
                "name":"r","namespace":"shop","uid":"u","resourceVersion":"7","generation":4,
                "creationTimestamp":"2026-01-02T03:04:05Z","managedFields":[]}},
                "spec":{spec},"status":{{"observed":true,"parents":[{{"parentRef":{{"name":"g"}},
                "controllerName":"example.com/other","conditions":[]}}]}}}}"#
        ))
        .unwrap()
    }

    #[test]
    fn a_route_is_read_with_its_age_and_without_what_the_api_server_adds() {
        let spec = r#"{"parentRefs":[{"group":"","kind":"Service","name":"web"}],"rules":[]}"#;
        let Ok(Object::HttpRoute(read)) = object(Kind::HttpRoute, route(spec)) else { panic!() };
        assert_eq!(read.metadata.name.as_deref(), Some("r"));
        assert!(read.metadata.creation_timestamp.is_some());
        assert_eq!(read.metadata.generation, Some(4));
        assert_eq!(read.metadata.resource_version.as_deref(), Some("7"));
        assert_eq!(read.metadata.uid, None);
        assert_eq!(read.status.unwrap().parents[0].controller_name, "example.com/other");
    }

    #[test]
    fn a_traffic_policy_is_read_with_its_age() {
        let given = serde_json::from_str(
            r#"{"apiVersion":"leno.dev/v1alpha1","kind":"TrafficPolicy","metadata":{"name":"p",
                "namespace":"shop","creationTimestamp":"2026-01-02T03:04:05Z"},"spec":{
                "targetRefs":[{"group":"","kind":"Service","name":"web"}],
                "timeouts":{"request":"1s"}}}"#,
        )
        .unwrap();
        let Ok(Object::TrafficPolicy(read)) = object(Kind::TrafficPolicy, given) else { panic!() };
        assert_eq!(read.traffic(PolicyScope::Service).source.created, 1_767_323_045);
    }

    #[test]
    fn what_is_not_understood_says_which_object_and_why() {
        let spec = r#"{"parentRefs":[{"group":"","kind":"Service","name":"web"}],"rule":[]}"#;
        let bad = object(Kind::HttpRoute, route(spec));
        let Err(SkippedObject::Bad { key, reason, outline }) = bad else { panic!() };
        assert_eq!((&*key.namespace, &*key.name), ("shop", "r"));
        assert!(reason.starts_with("spec.rule "), "{reason}");
        let Some(Object::HttpRoute(route)) = outline.as_deref() else { panic!("{outline:?}") };
        assert_eq!(route.metadata.generation, Some(4));
        assert_eq!(route.metadata.resource_version.as_deref(), Some("7"));
        assert_eq!(route.spec.parent_refs.as_ref().unwrap()[0].name, "web");
    }

    /// The rules that cannot be parsed could have denied any client.
    #[test]
    fn an_authorization_policy_that_is_not_understood_is_one_that_denies_every_client() {
        let read = |attached: &str, action: &str| {
            let spec =
                format!("{{{attached},\"action\":\"{action}\",\"rules\":[{{\"form\":[]}}]}}");
            let mut given = policy(&spec);
            given.types.as_mut().unwrap().kind = "AuthorizationPolicy".to_owned();
            let bad = object(Kind::AuthorizationPolicy, given);
            let Err(SkippedObject::Bad { outline: Some(outline), .. }) = bad else { panic!() };
            let Object::AuthorizationPolicy(outline) = *outline else { panic!("{outline:?}") };
            assert!(outline.spec.rules.is_empty() && outline.spec.tokens.is_empty());
            outline.spec
        };
        let selector = r#""selector":{"matchLabels":{"app":"web"}}"#;
        for action in ["Allow", "Deny", "External", "Deni"] {
            let spec = read(selector, action);
            assert_eq!(spec.action, leno_resources::AuthorizationAction::Allow, "{action}");
            assert_eq!(spec.selector.unwrap().match_labels["app"], "web");
        }
        let targets = r#""targetRefs":[{"group":"","kind":"Service","name":"web"}]"#;
        assert_eq!(read(targets, "Deny").target_refs[0].name, "web");
        let audit = read(targets, "Audit");
        assert_eq!(audit.action, leno_resources::AuthorizationAction::Audit);
    }

    fn policy(spec: &str) -> DynamicObject {
        serde_json::from_str(&format!(
            r#"{{"apiVersion":"leno.dev/v1alpha1","kind":"TrafficPolicy","metadata":{{
                "name":"p","namespace":"shop","uid":"u","resourceVersion":"7","generation":4,
                "creationTimestamp":"2026-01-02T03:04:05Z","managedFields":[]}},
                "spec":{spec},"status":{{"ancestors":[{{"ancestorRef":{{"name":"web"}},
                "controllerName":"leno.dev/controller","conditions":[]}}]}}}}"#
        ))
        .unwrap()
    }

    #[test]
    fn a_policy_is_read_with_its_age_and_what_its_status_is_written_by() {
        let spec =
            r#"{"targetRefs":[{"group":"","kind":"Service","name":"web"}],"RETRIES":{"on":[503]}}"#;
        let read = object(Kind::TrafficPolicy, policy(&spec.replace("RETRIES", "retries")));
        let Ok(Object::TrafficPolicy(read)) = read else { panic!("{read:?}") };
        assert!(read.metadata.creation_timestamp.is_some());
        let version = read.metadata.resource_version.as_deref();
        assert_eq!((read.metadata.generation, version), (Some(4), Some("7")));
        assert_eq!(read.status.unwrap().ancestors[0].ancestor_ref.name, "web");

        let bad = object(Kind::TrafficPolicy, policy(&spec.replace("RETRIES", "retrys")));
        let Err(SkippedObject::Bad { outline: Some(outline), reason, .. }) = bad else { panic!() };
        assert!(reason.starts_with("spec.retrys "), "{reason}");
        let Object::TrafficPolicy(outline) = *outline else { panic!("{outline:?}") };
        assert_eq!(outline.spec.target_refs[0].name, "web");
        assert_eq!(outline.metadata.resource_version.as_deref(), Some("7"));
    }
}
