//! Kinds that a cluster has while their CustomResourceDefinitions are installed.

use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client};
use leno_resources::gateway::RouteStatus;
use leno_resources::{DEFAULT_NAMESPACE, Kind, Object, ObjectKey, Problem, parse};
use serde_json::{Value, json};

use super::{NoObject, Scope};

/// API clients for the objects of a kind: one for each version that the kind may have.
pub(super) fn versions(client: &Client, kind: Kind, scope: &Scope) -> Vec<Api<DynamicObject>> {
    let way = |given: &&str| {
        let (group, version) = given.split_once('/').unwrap_or(("", given));
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind.as_str()));
        match scope {
            Scope::All => Api::all_with(client.clone(), &resource),
            Scope::Namespace(name) => Api::namespaced_with(client.clone(), name, &resource),
        }
    };
    kind.api_versions().iter().map(way).collect()
}

/// Converts an object by the same rules as a document of a file.
pub(super) fn object(kind: Kind, given: DynamicObject) -> Result<Object, NoObject> {
    let name = given.metadata.name.unwrap_or_default();
    let namespace = given.metadata.namespace.unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned());
    let key = ObjectKey { kind, namespace: namespace.clone(), name: name.clone() };
    let mut metadata = json!({
        "name": name,
        "namespace": namespace,
        "labels": given.metadata.labels.unwrap_or_default(),
        "annotations": given.metadata.annotations.unwrap_or_default(),
    });
    // These kinds resolve conflicts by age (GEP-1426, GEP-713 and the Gateway API's rules on
    // conflicts; two Workloads with one address, too), so that they keep the creation time.
    let has_age = matches!(kind, Kind::BackendTlsPolicy | Kind::TrafficPolicy | Kind::Workload);
    if has_age || Kind::ROUTES.contains(&kind) {
        metadata["creationTimestamp"] = json!(given.metadata.creation_timestamp);
    }
    // The status is written in the version that the object was read in.
    let read_as = given.types.map(|types| types.api_version);
    let known = |read: &String| kind.api_versions().contains(&read.as_str());
    let version = read_as.filter(known).unwrap_or_else(|| kind.api_version().to_owned());
    let seen = Seen {
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
        // Only a workload's status is an input; Leno writes the status of other kinds itself.
        let read = |field: &str| field == "spec" || (field == "status" && kind == Kind::Workload);
        fields.extend(rest.into_iter().filter(|(field, _)| read(field)));
    }
    // JSON is valid YAML.
    match parse(&key.to_string(), &document.to_string()) {
        Ok(documents) => documents
            .objects
            .into_iter()
            .next()
            .map(|located| seen.attach(located.value))
            .ok_or_else(|| NoObject::Bad {
                key,
                reason: "it is none of Leno's".to_owned(),
                route: None,
            }),
        Err(problems) => {
            let lines: Vec<String> = problems.iter().map(said).collect();
            let route = outline(kind, document).map(|route| Box::new(seen.attach(route)));
            Err(NoObject::Bad { key, reason: lines.join("; "), route })
        }
    }
}

/// A problem without its position: the text was generated, so that a position means nothing to
/// users.
fn said(problem: &Problem) -> String {
    match problem.path.as_str() {
        "" => problem.reason.clone(),
        path => format!("{path} {}", problem.reason),
    }
}

/// An invalid route, reduced to its names and its parents; `None` if even those are invalid.
fn outline(kind: Kind, mut document: Value) -> Option<Object> {
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

/// The fields of a route that writing its status needs.
struct Seen {
    /// The generation that the status refers to.
    generation: Option<i64>,
    /// The resource version that a new status replaces.
    version: Option<String>,
    /// The present status, with the entries of all controllers.
    status: Option<Value>,
}

impl Seen {
    /// Adds the fields to a route. A present status that cannot be parsed must not be replaced, so
    /// that no resource version is added either.
    fn attach(self, mut object: Object) -> Object {
        let (metadata, status) = match &mut object {
            Object::HttpRoute(route) => (&mut route.metadata, &mut route.status),
            Object::GrpcRoute(route) => (&mut route.metadata, &mut route.status),
            Object::TlsRoute(route) => (&mut route.metadata, &mut route.status),
            Object::TcpRoute(route) => (&mut route.metadata, &mut route.status),
            _ => return object,
        };
        metadata.generation = self.generation;
        match self.status.map(serde_json::from_value::<RouteStatus>).transpose() {
            Ok(said) => {
                *status = said;
                metadata.resource_version = self.version;
            }
            Err(error) => {
                let (name, namespace) = (&metadata.name, &metadata.namespace);
                tracing::warn!(?namespace, ?name, %error, "the route's status cannot be read");
            }
        }
        object
    }
}

#[cfg(test)]
mod tests {
    use leno_types::traffic::Scope;

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
        assert_eq!(read.traffic(Scope::Service).source.created, 1_767_323_045);
    }

    #[test]
    fn what_is_not_understood_says_which_object_and_why() {
        let spec = r#"{"parentRefs":[{"group":"","kind":"Service","name":"web"}],"rule":[]}"#;
        let Err(NoObject::Bad { key, reason, route }) = object(Kind::HttpRoute, route(spec)) else {
            panic!()
        };
        assert_eq!((&*key.namespace, &*key.name), ("shop", "r"));
        assert!(reason.starts_with("spec.rule "), "{reason}");
        let Some(Object::HttpRoute(route)) = route.as_deref() else { panic!("{route:?}") };
        assert_eq!(route.metadata.generation, Some(4));
        assert_eq!(route.metadata.resource_version.as_deref(), Some("7"));
        assert_eq!(route.spec.parent_refs.as_ref().unwrap()[0].name, "web");
    }
}
