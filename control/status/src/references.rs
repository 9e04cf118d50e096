//! Determines whether the references of a route lead to existing services.

use leno_index::Index;
use leno_resources::gateway::{BackendObject, ParentRef};
use leno_types::ServiceName;
use leno_types::routes::InvalidTarget;

use crate::conditions::ConditionProblem;
use crate::route::Route;

/// How many broken references one message names. A user can begin with these.
const NAMED: usize = 8;

/// Whether all references lead to a port of a service, for one parent. The reason of a failure is that of the
/// first broken reference.
pub(crate) fn resolved(
    index: &Index,
    route: &Route<'_>,
    parent: &ParentRef,
) -> Result<(), ConditionProblem> {
    // If the parent is not a service, an empty name stands for it, which no service has. Then only references
    // within the route's own namespace need no grant.
    let parent = route
        .parent(parent)
        .unwrap_or_else(|| ServiceName { namespace: route.namespace.into(), name: "".into() });
    let references = route.references();
    let wrong = references.iter().filter_map(|(path, object)| {
        let reason = reference(index, route, &parent, object).err()?;
        Some((reason, said(path, route, object, reason)))
    });
    let wrong: Vec<(InvalidTarget, String)> = wrong.take(NAMED).collect();
    let Some((first, _)) = wrong.first() else { return Ok(()) };
    let reason = match first {
        InvalidTarget::Kind => "InvalidKind",
        InvalidTarget::NotGranted => "RefNotPermitted",
        InvalidTarget::NotFound | InvalidTarget::NoSuchPort => "BackendNotFound",
    };
    let message = wrong.into_iter().map(|(_, said)| said).collect::<Vec<_>>().join("; ");
    Err(ConditionProblem { reason, message })
}

fn reference(
    index: &Index,
    route: &Route<'_>,
    parent: &ServiceName,
    object: &BackendObject,
) -> Result<(), InvalidTarget> {
    if !object.is_service() {
        return Err(InvalidTarget::Kind);
    }
    let namespace = object.namespace.as_deref().unwrap_or(route.namespace);
    let to = ServiceName::new(namespace, &object.name).map_err(|_| InvalidTarget::NotFound)?;
    // No service has port 0. So a reference without a valid port fails, but an earlier problem is reported first.
    let port = object.port.and_then(|port| u16::try_from(port).ok()).unwrap_or(0);
    index.refers((route.kind, route.namespace), parent, (&to, port))
}

fn said(path: &str, route: &Route<'_>, object: &BackendObject, reason: InvalidTarget) -> String {
    let namespace = object.namespace.as_deref().unwrap_or(route.namespace);
    let name = format!("{namespace}/{}", object.name);
    match reason {
        InvalidTarget::Kind => {
            let kind = object.kind.as_deref().unwrap_or("Service");
            format!("{path}: a {kind} cannot be a backend here")
        }
        InvalidTarget::NotGranted => {
            format!(
                "{path}: no ReferenceGrant of {namespace} permits this route to refer to {name}"
            )
        }
        InvalidTarget::NotFound => format!("{path}: there is no Service {name}"),
        InvalidTarget::NoSuchPort => match object.port {
            Some(port) => format!("{path}: {name} has no port {port}"),
            None => format!("{path}: names no port of {name}"),
        },
    }
}
