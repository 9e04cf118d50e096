//! The rights that a removal needs. They are checked first, so that no removal stops halfway for
//! lack of one.

use leno_charts::INSTALLED;
use leno_kube::Need;
use leno_kube::api::{ApiResource, GroupVersionKind};

use super::{AGENT, CONTROLLER, ROOTS};
use crate::objects::ObjectReference;

/// The rights for all requests of a removal: for these objects, and for its other actions.
pub(super) fn all<'a>(
    namespace: &str,
    gone: impl Iterator<Item = &'a ObjectReference>,
) -> Vec<Need> {
    let ours = Some(namespace);
    let mut needs: Vec<Need> = gone.flat_map(of).collect();
    let besides = [
        // To write the step, and to check whether the mesh was installed meanwhile.
        Need::new("get", "", "namespaces").named(namespace),
        Need::new("patch", "", "namespaces").named(namespace),
        // To query which step proxies have applied.
        Need::new("list", "", "pods"),
        Need::new("get", "", "pods/portforward"),
        Need::new("create", "", "pods/portforward"),
        Need::new("list", "", "nodes"),
        Need::new("get", "apps", "deployments").inside(ours).named(CONTROLLER),
        Need::new("get", "apps", "daemonsets").inside(ours).named(AGENT),
        // For the pods that clean the nodes.
        Need::new("get", "", "pods").inside(ours),
        Need::new("create", "", "pods").inside(ours),
        Need::new("deletecollection", "", "pods").inside(ours),
        // For the record of the installation, which is deleted last, and the roots in all
        // namespaces.
        Need::new("get", "", "configmaps").inside(ours).named(INSTALLED),
        Need::new("delete", "", "configmaps").inside(ours).named(INSTALLED),
        Need::new("list", "", "configmaps"),
        Need::new("delete", "", "configmaps").named(ROOTS),
    ];
    needs.extend(besides);
    needs
}

/// The rights to apply objects: to create or to change each.
pub(super) fn applied<'a>(made: impl Iterator<Item = &'a ObjectReference>) -> Vec<Need> {
    let verbs = |one: &'a ObjectReference| ["create", "patch"].map(|verb| to(verb, one));
    made.flat_map(verbs).collect()
}

/// The rights to delete an object, and to wait until it is gone.
fn of(one: &ObjectReference) -> [Need; 2] {
    ["delete", "get"].map(|verb| to(verb, one))
}

fn to(verb: &'static str, one: &ObjectReference) -> Need {
    let kind = GroupVersionKind::gvk(&one.group, &one.version, &one.kind);
    let resource = ApiResource::from_gvk(&kind).plural;
    let need = Need::new(verb, &one.group, &resource).inside(one.namespace.as_deref());
    // RBAC cannot restrict `create` by name.
    if verb == "create" { need } else { need.named(&one.name) }
}
