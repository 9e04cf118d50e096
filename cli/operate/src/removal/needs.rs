//! The rights that a removal needs. All are checked first, so that no removal stops halfway for lack of a right.

use leno_charts::INSTALLED;
use leno_kube::RequiredRight;
use leno_kube::api::{ApiResource, GroupVersionKind};

use super::{AGENT, CONTROLLER, ROOTS};
use crate::objects::ObjectReference;

/// The rights for all requests of a removal: those for these objects, and those for its other actions.
pub(super) fn all<'a>(
    namespace: &str,
    gone: impl Iterator<Item = &'a ObjectReference>,
) -> Vec<RequiredRight> {
    let ours = Some(namespace);
    let mut needs: Vec<RequiredRight> = gone.flat_map(of).collect();
    let besides = [
        // To write the step, and to check whether the mesh was installed meanwhile.
        RequiredRight::new("get", "", "namespaces").named(namespace),
        RequiredRight::new("patch", "", "namespaces").named(namespace),
        // To query which step proxies have applied.
        RequiredRight::new("list", "", "pods"),
        RequiredRight::new("get", "", "pods/portforward"),
        RequiredRight::new("create", "", "pods/portforward"),
        RequiredRight::new("list", "", "nodes"),
        RequiredRight::new("get", "apps", "deployments").inside(ours).named(CONTROLLER),
        RequiredRight::new("get", "apps", "daemonsets").inside(ours).named(AGENT),
        // For the pods that clean the nodes.
        RequiredRight::new("get", "", "pods").inside(ours),
        RequiredRight::new("create", "", "pods").inside(ours),
        RequiredRight::new("deletecollection", "", "pods").inside(ours),
        // For the record of the installation, which is deleted last, and the roots in all
        // namespaces.
        RequiredRight::new("get", "", "configmaps").inside(ours).named(INSTALLED),
        RequiredRight::new("delete", "", "configmaps").inside(ours).named(INSTALLED),
        RequiredRight::new("list", "", "configmaps"),
        RequiredRight::new("delete", "", "configmaps").named(ROOTS),
    ];
    needs.extend(besides);
    needs
}

/// The rights to apply these objects: to create each object or to change it.
pub(super) fn applied<'a>(made: impl Iterator<Item = &'a ObjectReference>) -> Vec<RequiredRight> {
    let verbs = |one: &'a ObjectReference| ["create", "patch"].map(|verb| to(verb, one));
    made.flat_map(verbs).collect()
}

/// The rights to delete an object, and to wait until it is gone.
fn of(one: &ObjectReference) -> [RequiredRight; 2] {
    ["delete", "get"].map(|verb| to(verb, one))
}

fn to(verb: &'static str, one: &ObjectReference) -> RequiredRight {
    let kind = GroupVersionKind::gvk(&one.group, &one.version, &one.kind);
    let resource = ApiResource::from_gvk(&kind).plural;
    let need = RequiredRight::new(verb, &one.group, &resource).inside(one.namespace.as_deref());
    // RBAC cannot restrict `create` by name.
    if verb == "create" { need } else { need.named(&one.name) }
}
