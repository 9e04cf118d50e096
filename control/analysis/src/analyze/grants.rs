//! Finds ReferenceGrants that no reference uses.

use leno_resources::gateway::{BackendObject, BackendRef, ReferenceGrant, RouteFilter};
use leno_resources::{Object, ObjectKey};

use super::finding::{Findings, Mistake};
use crate::mesh::MeshModel;

/// A reference from one namespace to another.
struct Reference {
    from: ObjectKey,
    namespace: String,
    name: String,
}

pub(super) fn grants(mesh: &MeshModel, findings: &mut Findings<'_>) {
    let references: Vec<Reference> = mesh.objects.iter().flat_map(of_route).collect();
    for (at, object) in findings.objects() {
        let Object::ReferenceGrant(grant) = object else { continue };
        let namespace = object.key().namespace;
        let used = references.iter().any(|one| one.namespace == namespace && allows(grant, one));
        if !used {
            let reason = "no route uses what this grants".to_owned();
            let remedy = "check kind, namespace and name of both ends, or remove it".to_owned();
            findings.push(at, "spec", Mistake::warning("grant-unused", reason, remedy));
        }
    }
}

fn allows(grant: &ReferenceGrant, reference: &Reference) -> bool {
    let from = grant.spec.from.iter().any(|from| {
        from.kind == reference.from.kind.as_str() && from.namespace == reference.from.namespace
    });
    let to = grant.spec.to.iter().any(|to| {
        let name = to.name.as_deref().filter(|name| !name.is_empty());
        to.kind == "Service" && name.is_none_or(|name| name == reference.name)
    });
    from && to
}

fn of_route(object: &Object) -> Vec<Reference> {
    let mut targets: Vec<BackendObject> = Vec::new();
    let mut rule = |filters: Option<&[RouteFilter]>, backends: Option<&[BackendRef]>| {
        let backends = backends.unwrap_or_default();
        let of_backends = backends.iter().flat_map(|one| one.filters.iter().flatten());
        let filters = filters.unwrap_or_default().iter().chain(of_backends);
        let mirrors = filters.filter_map(|filter| filter.request_mirror.as_ref());
        targets.extend(mirrors.map(|mirror| mirror.backend_ref.clone()));
        targets.extend(backends.iter().map(BackendRef::object));
    };
    match object {
        Object::HttpRoute(route) => {
            for one in route.spec.rules.iter().flatten() {
                rule(one.filters.as_deref(), one.backend_refs.as_deref());
            }
        }
        Object::GrpcRoute(route) => {
            for one in route.spec.rules.iter().flatten() {
                rule(one.filters.as_deref(), one.backend_refs.as_deref());
            }
        }
        Object::TlsRoute(route) => {
            for one in &route.spec.rules {
                rule(None, Some(&one.backend_refs));
            }
        }
        Object::TcpRoute(route) => {
            for one in &route.spec.rules {
                rule(None, Some(&one.backend_refs));
            }
        }
        _ => {}
    }
    let reference = |target: BackendObject| {
        let from = object.key();
        let namespace = target.namespace.filter(|namespace| *namespace != from.namespace)?;
        Some(Reference { from, namespace, name: target.name })
    };
    targets.into_iter().filter_map(reference).collect()
}
