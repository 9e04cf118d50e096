//! What has to be allowed to take an installation away, so that none is left halfway for want of a right.

use kube::api::{ApiResource, GroupVersionKind};
use leno_charts::INSTALLED;

use super::{AGENT, CONTROLLER, ROOTS};
use crate::objects::Named;
use crate::rights::Need;

/// All that is asked of the API server on the way, of these objects and besides.
pub(super) fn all<'a>(namespace: &str, gone: impl Iterator<Item = &'a Named>) -> Vec<Need> {
    let ours = Some(namespace);
    let mut needs: Vec<Need> = gone.flat_map(of).collect();
    let besides = [
        // The step, and whether the mesh was installed meanwhile.
        Need::new("get", "", "namespaces").named(namespace),
        Need::new("patch", "", "namespaces").named(namespace),
        // Proxies are asked whether they have taken it.
        Need::new("list", "", "pods"),
        Need::new("get", "", "pods/portforward"),
        Need::new("create", "", "pods/portforward"),
        Need::new("list", "", "nodes"),
        Need::new("get", "apps", "deployments").inside(ours).named(CONTROLLER),
        Need::new("get", "apps", "daemonsets").inside(ours).named(AGENT),
        // Pods that clean the nodes.
        Need::new("get", "", "pods").inside(ours),
        Need::new("create", "", "pods").inside(ours),
        Need::new("deletecollection", "", "pods").inside(ours),
        // What says that something is installed goes last, and roots wherever they are.
        Need::new("get", "", "configmaps").inside(ours).named(INSTALLED),
        Need::new("delete", "", "configmaps").inside(ours).named(INSTALLED),
        Need::new("list", "", "configmaps"),
        Need::new("delete", "", "configmaps").named(ROOTS),
    ];
    needs.extend(besides);
    needs
}

/// Objects are applied: made where they are not there, else changed.
pub(super) fn applied<'a>(made: impl Iterator<Item = &'a Named>) -> Vec<Need> {
    let verbs = |one: &'a Named| ["create", "patch"].map(|verb| to(verb, one));
    made.flat_map(verbs).collect()
}

/// An object is deleted, and looked for until it is gone.
fn of(one: &Named) -> [Need; 2] {
    ["delete", "get"].map(|verb| to(verb, one))
}

fn to(verb: &'static str, one: &Named) -> Need {
    let kind = GroupVersionKind::gvk(&one.group, &one.version, &one.kind);
    let resource = ApiResource::from_gvk(&kind).plural;
    let need = Need::new(verb, &one.group, &resource).inside(one.namespace.as_deref());
    // What is made has no name yet, for whoever decides.
    if verb == "create" { need } else { need.named(&one.name) }
}
