//! Selects the routes of a service that its clients receive.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use leno_types::ServiceName;
use leno_types::routes::{Filter, InvalidTarget, Route, RouteTarget};

use crate::facts::Facts;
use crate::rows::ServiceRow;
use crate::rows::routes::RouteRow;

/// Routes of a service, ordered by name.
pub(super) type Routes = Arc<[Arc<Route>]>;

/// The routes of a service: producer routes, which are in the service's namespace and apply to every client, and
/// consumer routes, by the namespace of the client. A namespace that has consumer routes uses only those
/// (GEP-1294).
pub(super) fn routes(
    facts: &Facts,
    name: &ServiceName,
    service: &ServiceRow,
) -> (Routes, BTreeMap<Arc<str>, Routes>) {
    let mut by_namespace: BTreeMap<Arc<str>, Vec<Arc<Route>>> = BTreeMap::new();
    for row in facts.routes().of(name) {
        if let Some(route) = attached(facts, name, service, row) {
            by_namespace.entry(row.route.namespace.clone()).or_default().push(Arc::new(route));
        }
    }
    let producers = by_namespace.remove(&name.namespace).unwrap_or_default().into();
    let consumers = by_namespace.into_iter().map(|(of, routes)| (of, routes.into())).collect();
    (producers, consumers)
}

/// A route as it applies to a service; `None` if the service does not have the ports to which the route attaches.
fn attached(
    facts: &Facts,
    name: &ServiceName,
    service: &ServiceRow,
    row: &RouteRow,
) -> Option<Route> {
    let (mut ports, mut all) = (BTreeSet::new(), false);
    for parent in row.parents.iter().filter(|parent| parent.service == *name) {
        if parent.port.is_none() && parent.section.is_none() {
            all = true;
        }
        let named = service.ports.iter().filter(|port| {
            parent.port.is_none_or(|number| number == port.number)
                && parent.section.as_deref().is_none_or(|section| *section == *port.name)
        });
        ports.extend(named.map(|port| port.number));
    }
    if ports.is_empty() {
        return None;
    }
    let ports = if all { Vec::new() } else { ports.into_iter().collect() };
    let mut route = Route { ports, ..row.route.clone() };
    let from = (route.kind, Arc::clone(&route.namespace));
    let mut resolve = |target: &mut RouteTarget| {
        if let RouteTarget::Service { name: to, port } = target
            && let Err(reason) = resolved(facts, name, &from, (&*to, *port))
        {
            *target = RouteTarget::Invalid(reason);
        }
    };
    for rule in &mut route.rules {
        mirrors(&mut rule.filters, &mut resolve);
        for backend in &mut rule.backends {
            resolve(&mut backend.target);
            mirrors(&mut backend.filters, &mut resolve);
        }
    }
    Some(route)
}

/// Applies `resolve` to the target of every mirror.
pub(super) fn mirrors(filters: &mut [Filter], resolve: &mut impl FnMut(&mut RouteTarget)) {
    for filter in filters {
        if let Filter::Mirror(mirror) = filter {
            resolve(&mut mirror.target);
        }
    }
}

/// Checks that a reference is permitted and that the service and port exist. A route may refer to services in its
/// own namespace and in that of its parent service, which clients call anyway. Any other namespace has to grant
/// the reference.
pub(crate) fn resolved(
    facts: &Facts,
    parent: &ServiceName,
    (kind, from): &(leno_types::routes::RouteKind, Arc<str>),
    (to, port): (&ServiceName, u16),
) -> Result<(), InvalidTarget> {
    let near = to.namespace == *from || to.namespace == parent.namespace;
    if !near && !facts.routes().is_granted(*kind, from, to) {
        return Err(InvalidTarget::NotGranted);
    }
    let service = facts.service(to).ok_or(InvalidTarget::NotFound)?;
    let known = service.ports.iter().any(|known| known.number == port);
    if known { Ok(()) } else { Err(InvalidTarget::NoSuchPort) }
}
