//! Determines whether a route attaches to a parent.

use leno_index::Index;
use leno_resources::gateway::ParentRef;
use leno_types::mesh::{Resolution, Service, ServicePort, Subject};
use leno_types::routes::RouteKind;

use crate::conditions::{ConditionProblem, UNSUPPORTED};
use crate::route::Route;

/// The service or the ports that the route names do not exist.
const NO_PARENT: &str = "NoMatchingParent";
/// A route of a more specific kind takes precedence (GEP-1426, "Route types").
const CONFLICTED: &str = "Conflicted";

/// Whether the route applies to any port of the parent.
pub(crate) fn accepted(
    index: &Index,
    route: &Route<'_>,
    parent: &ParentRef,
) -> Result<(), ConditionProblem> {
    let namespace = parent.namespace.as_deref().unwrap_or(route.namespace);
    let name = format!("{namespace}/{}", parent.name);
    let service = route.parent(parent).and_then(|name| {
        match index.resolve(&Subject::Service(name), route.namespace) {
            Resolution::Service(service) => Some(service),
            _ => None,
        }
    });
    let Some(service) = service else {
        let message = format!("there is no Service {name} that requests can be sent to");
        return Err(ConditionProblem { reason: NO_PARENT, message });
    };
    let named: Vec<&ServicePort> =
        service.ports.iter().filter(|port| names(parent, port)).collect();
    if named.is_empty() {
        let message = format!("{name} has no such port: use one of {}", ports(&service));
        return Err(ConditionProblem { reason: NO_PARENT, message });
    }
    if service.vips.is_empty() {
        let message = format!(
            "{name} has no address of its own (headless), so clients connect to its \
             instances directly"
        );
        return Err(ConditionProblem { reason: UNSUPPORTED, message });
    }
    let displaced = |port: &&ServicePort| {
        service.routes.iter().any(|other| {
            other.kind == RouteKind::Grpc
                && (other.ports.is_empty() || other.ports.contains(&port.port))
        })
    };
    if route.kind == RouteKind::Http && named.iter().all(displaced) {
        let message = format!("a GRPCRoute is attached to the same ports of {name}");
        return Err(ConditionProblem { reason: CONFLICTED, message });
    }
    Ok(())
}

/// Whether a parent reference covers a port.
fn names(parent: &ParentRef, port: &ServicePort) -> bool {
    parent.port.is_none_or(|number| number == i32::from(port.port))
        && parent.section_name.as_deref().is_none_or(|name| name == &*port.name)
}

fn ports(service: &Service) -> String {
    let port = |port: &ServicePort| match &*port.name {
        "" => port.port.to_string(),
        name => format!("{} ({name})", port.port),
    };
    match service.ports.is_empty() {
        true => "none".to_owned(),
        false => service.ports.iter().map(port).collect::<Vec<_>>().join(", "),
    }
}
