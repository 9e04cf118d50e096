//! Selects the stored objects that a check needs: those to which the checked object refers, and those in its
//! namespace that compete with it.
//!
//! The selection depends only on objects of the same namespace, and on objects elsewhere that the checked object
//! may refer to. So an answer reveals nothing else about other namespaces.

use std::collections::BTreeMap;
use std::sync::Arc;

use leno_resources::gateway::ParentRef;
use leno_resources::{ExemptSetting, INJECT_ANNOTATION, Kind, MAX_EXEMPTIONS, Object, ObjectKey};
use leno_types::nearest;

use crate::inject::{NamespaceFloor, PodContext};
use crate::review::AdmissionReview;
use crate::value::JsonValue;

/// Most references of one object that are followed. The Gateway API permits 16 rules with 16 backends each.
const MAX_REFERENCES: usize = 512;
/// Most routes with the same parent that a route is compared with. The time for this grows with the square of
/// their number.
const MAX_RIVALS: usize = 64;
/// Most names that are considered as corrections of a misspelt name.
const MAX_NAMES: usize = 1024;
/// Most grants of one namespace that are examined.
const MAX_GRANTS: usize = 64;

/// The names of fields that refer to other objects.
const REFERRING: [&str; 5] =
    ["parentRefs", "backendRefs", "backendRef", "targetRefs", "caCertificateRefs"];

/// All stored objects that checks may use, by kind, namespace and name. Endpoints and pods are left out, because
/// there are too many.
#[derive(Debug, Default)]
pub struct StoredObjects(BTreeMap<ObjectKey, Arc<Object>>);

/// A reference in the checked object.
struct Reference<'a> {
    kind: &'a str,
    namespace: &'a str,
    name: &'a str,
    /// Whether it refers to the parent of a route.
    is_parent: bool,
}

impl StoredObjects {
    /// Adds an object that was stored.
    pub fn put(&mut self, object: &Object) {
        let key = object.key();
        // A pod is represented as a Workload whose name contains a slash, which no stored object's name can.
        let is_pod = key.kind == Kind::Workload && key.name.contains('/');
        if key.kind != Kind::EndpointSlice && !is_pod {
            self.0.insert(key, Arc::new(object.clone()));
        }
    }

    /// Removes an object that was deleted.
    pub fn remove(&mut self, key: &ObjectKey) {
        self.0.remove(key);
    }

    /// The context of the pod in this review; `None` if its namespace is not known.
    #[must_use]
    pub fn enclosing(&self, review: &AdmissionReview) -> Option<PodContext> {
        let key = key(Kind::Namespace, "", &review.namespace);
        let Object::Namespace(found) = self.0.get(&key)?.as_ref() else { return None };
        let label = |name: &str| review.object.at(&["metadata", "labels", name])?.text();
        let exempt = |setting: ExemptSetting| {
            let mut all = self.of(Kind::PodExemption, &review.namespace).take(MAX_EXEMPTIONS);
            all.any(|(_, object)| match object.as_ref() {
                Object::PodExemption(one) => one.exempts(setting, label),
                _ => false,
            })
        };
        // The API server selects namespaces by their labels only, so an annotation does not count here.
        let labels = found.metadata.labels.as_ref();
        let enabled = labels.and_then(|labels| labels.get(INJECT_ANNOTATION));
        let floor = NamespaceFloor {
            inject: enabled.is_some_and(|value| value == "enabled")
                && !exempt(ExemptSetting::Inject),
            capture: !exempt(ExemptSetting::Capture),
        };
        // A label takes precedence over an annotation.
        let mut settings = found.metadata.annotations.clone().unwrap_or_default();
        settings.extend(
            labels.into_iter().flatten().map(|(name, value)| (name.clone(), value.clone())),
        );
        Some(PodContext { floor, ..PodContext::of_namespace(&settings) })
    }

    /// The stored objects that the check of this review needs.
    #[must_use]
    pub fn neighbours(&self, review: &AdmissionReview) -> Vec<Arc<Object>> {
        let own = review.namespace.as_str();
        let mut references = Vec::new();
        if let Some(spec) = review.object.get("spec") {
            collect(spec, own, &mut references);
        }
        let mut found = BTreeMap::new();
        let mut rivals = false;
        for reference in &references {
            let foreign = reference.namespace != own;
            rivals |= reference.is_parent && !foreign;
            // A route may be attached to a service of another namespace, but the answer must not depend on that
            // service.
            if foreign && reference.is_parent {
                continue;
            }
            self.follow(reference, own, &mut found);
        }
        if rivals {
            let parents = references.iter().filter(|one| one.is_parent && one.namespace == own);
            let parents: Vec<&str> = parents.map(|one| one.name).collect();
            self.rivals(own, &parents, &mut found);
        }
        found.into_values().collect()
    }

    /// The object that a reference names; if it does not exist, the object with the most similar name. In another
    /// namespace only objects count that `own` is permitted to refer to, because a user of `own` must not learn
    /// what else exists there.
    fn follow(
        &self,
        reference: &Reference<'_>,
        own: &str,
        found: &mut BTreeMap<ObjectKey, Arc<Object>>,
    ) {
        let kind = Kind::ALL.into_iter().find(|kind| kind.as_str() == reference.kind);
        let Some(kind) = kind else { return };
        let wanted = key(kind, reference.namespace, reference.name);
        let foreign = reference.namespace != own;
        if foreign {
            let lets = |object: &Object| match object {
                Object::ReferenceGrant(grant) => {
                    grant.spec.from.iter().any(|from| from.namespace == own)
                }
                _ => false,
            };
            let grants = self.of(Kind::ReferenceGrant, reference.namespace).take(MAX_GRANTS);
            let grants = grants.filter(|(_, object)| lets(object));
            let grants: Vec<_> =
                grants.map(|(key, object)| (key.clone(), Arc::clone(object))).collect();
            if grants.is_empty() {
                return;
            }
            found.extend(grants);
        }
        let near = || {
            let names = self.of(kind, reference.namespace).take(MAX_NAMES);
            let name = nearest(reference.name, names.map(|(key, _)| key.name.as_str()))?;
            self.0.get_key_value(&key(kind, reference.namespace, name))
        };
        let stored = self.0.get_key_value(&wanted);
        if let Some((key, object)) = stored.or_else(|| if foreign { None } else { near() }) {
            found.insert(key.clone(), Arc::clone(object));
        }
    }

    /// The routes of a namespace that are attached to one of its own services with the names `parents`.
    fn rivals(
        &self,
        namespace: &str,
        parents: &[&str],
        found: &mut BTreeMap<ObjectKey, Arc<Object>>,
    ) {
        let attaches = |object: &Object| {
            parents_of(object).iter().any(|parent| {
                parent.is_service()
                    && parent.namespace.as_deref().is_none_or(|of| of == namespace)
                    && parents.contains(&parent.name.as_str())
            })
        };
        let routes = Kind::ROUTES.into_iter().flat_map(|kind| self.of(kind, namespace));
        let routes = routes.filter(|(_, object)| attaches(object)).take(MAX_RIVALS);
        found.extend(routes.map(|(key, object)| (key.clone(), Arc::clone(object))));
    }

    /// The objects of a kind in a namespace, by name.
    fn of<'a>(
        &'a self,
        kind: Kind,
        namespace: &'a str,
    ) -> impl Iterator<Item = (&'a ObjectKey, &'a Arc<Object>)> {
        let from = self.0.range(key(kind, namespace, "")..);
        from.take_while(move |(key, _)| key.kind == kind && key.namespace == namespace)
    }
}

fn key(kind: Kind, namespace: &str, name: &str) -> ObjectKey {
    ObjectKey { kind, namespace: namespace.to_owned(), name: name.to_owned() }
}

fn parents_of(object: &Object) -> &[ParentRef] {
    let parents = match object {
        Object::HttpRoute(route) => &route.spec.parent_refs,
        Object::GrpcRoute(route) => &route.spec.parent_refs,
        Object::TlsRoute(route) => &route.spec.parent_refs,
        Object::TcpRoute(route) => &route.spec.parent_refs,
        _ => return &[],
    };
    parents.as_deref().unwrap_or_default()
}

/// Finds the references in a value, down to the depth that the API server permits.
fn collect<'a>(value: &'a JsonValue, own: &'a str, found: &mut Vec<Reference<'a>>) {
    for (field, inner) in value.fields() {
        if REFERRING.contains(&field.as_str()) {
            let items = match inner {
                JsonValue::List(items) => items.as_slice(),
                one => std::slice::from_ref(one),
            };
            found.extend(items.iter().filter_map(|item| reference(field, item, own)));
            found.truncate(MAX_REFERENCES);
        }
        collect(inner, own, found);
    }
    value.items().iter().for_each(|item| collect(item, own, found));
}

fn reference<'a>(field: &str, item: &'a JsonValue, own: &'a str) -> Option<Reference<'a>> {
    let text = |name: &str| item.get(name).and_then(JsonValue::text);
    Some(Reference {
        kind: text("kind").unwrap_or(Kind::Service.as_str()),
        namespace: text("namespace").unwrap_or(own),
        name: text("name")?,
        is_parent: field == "parentRefs",
    })
}
