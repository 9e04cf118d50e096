//! The parts that routes of all kinds have in common.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use leno_resources::Object;
use leno_resources::gateway::{
    BackendObject, BackendRef, ParentRef, RouteFilter, RouteStatus, StreamRule,
};
use leno_types::ServiceName;
use leno_types::routes::RouteKind;

/// A route as written.
pub(crate) struct Route<'o> {
    pub(crate) kind: RouteKind,
    pub(crate) namespace: &'o str,
    pub(crate) metadata: &'o ObjectMeta,
    pub(crate) parents: &'o [ParentRef],
    pub(crate) said: Option<&'o RouteStatus>,
    rules: Vec<Rule<'o>>,
}

struct Rule<'o> {
    filters: &'o [RouteFilter],
    backends: &'o [BackendRef],
}

impl<'o> Route<'o> {
    /// The route in an object; `None` if the object is not a route.
    pub(crate) fn new(object: &'o Object) -> Option<Self> {
        let (kind, metadata, parents, said, rules) = match object {
            Object::HttpRoute(route) => {
                let rules = route.spec.rules.iter().flatten();
                let rules = rules.map(|one| rule(&one.filters, &one.backend_refs)).collect();
                let parents = &route.spec.parent_refs;
                (RouteKind::Http, &route.metadata, parents, &route.status, rules)
            }
            Object::GrpcRoute(route) => {
                let rules = route.spec.rules.iter().flatten();
                let rules = rules.map(|one| rule(&one.filters, &one.backend_refs)).collect();
                let parents = &route.spec.parent_refs;
                (RouteKind::Grpc, &route.metadata, parents, &route.status, rules)
            }
            Object::TlsRoute(route) => {
                let rules = route.spec.rules.iter().map(stream_rule).collect();
                let parents = &route.spec.parent_refs;
                (RouteKind::Tls, &route.metadata, parents, &route.status, rules)
            }
            Object::TcpRoute(route) => {
                let rules = route.spec.rules.iter().map(stream_rule).collect();
                let parents = &route.spec.parent_refs;
                (RouteKind::Tcp, &route.metadata, parents, &route.status, rules)
            }
            _ => return None,
        };
        let namespace = metadata.namespace.as_deref().unwrap_or_default();
        let parents = parents.as_deref().unwrap_or_default();
        Some(Self { kind, namespace, metadata, parents, said: said.as_ref(), rules })
    }

    /// The service that a parent names; `None` if no service can have such a name.
    pub(crate) fn parent(&self, parent: &ParentRef) -> Option<ServiceName> {
        ServiceName::new(parent.namespace.as_deref().unwrap_or(self.namespace), &parent.name).ok()
    }

    /// All targets of requests, each with the path of the field that names it.
    pub(crate) fn references(&self) -> Vec<(String, BackendObject)> {
        let mut found = Vec::new();
        for (nth, rule) in self.rules.iter().enumerate() {
            let at = format!("spec.rules[{nth}]");
            mirrors(&mut found, &at, rule.filters);
            for (place, backend) in rule.backends.iter().enumerate() {
                let at = format!("{at}.backendRefs[{place}]");
                found.push((at.clone(), backend.object()));
                mirrors(&mut found, &at, backend.filters.as_deref().unwrap_or_default());
            }
        }
        found
    }
}

fn rule<'o>(
    filters: &'o Option<Vec<RouteFilter>>,
    backends: &'o Option<Vec<BackendRef>>,
) -> Rule<'o> {
    let filters = filters.as_deref().unwrap_or_default();
    Rule { filters, backends: backends.as_deref().unwrap_or_default() }
}

fn stream_rule(rule: &StreamRule) -> Rule<'_> {
    Rule { filters: &[], backends: &rule.backend_refs }
}

fn mirrors(found: &mut Vec<(String, BackendObject)>, at: &str, filters: &[RouteFilter]) {
    for (place, filter) in filters.iter().enumerate() {
        if let Some(mirror) = &filter.request_mirror {
            let path = format!("{at}.filters[{place}].requestMirror.backendRef");
            found.push((path, mirror.backend_ref.clone()));
        }
    }
}
