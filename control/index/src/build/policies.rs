//! Selects the traffic policies of a service and of its routes, and the rate limits of a workload.

use std::sync::Arc;

use leno_resources::{Kind, ObjectKey};
use leno_types::routes::{Route, RouteKind};
use leno_types::traffic::{
    Algorithm, Balancing, HashOn, PolicyScope, PolicySource, RateLimit, Traffic,
};
use leno_types::{InstanceName, ServiceName};

use super::{slice_port, target_number};
use crate::facts::Facts;
use crate::rows::policies::TargetRow;
use crate::rows::{InstanceRow, ServicePortRow, ServiceRow};

/// The traffic policies of a service and of the routes attached to it. A policy with several
/// matching targets is listed once per target.
pub(super) fn traffic(
    facts: &Facts,
    name: &ServiceName,
    service: &ServiceRow,
    routes: &[Arc<Route>],
) -> Arc<[Arc<Traffic>]> {
    let mut found = Vec::new();
    for row in facts.traffic().of_service(name) {
        for target in &row.targets {
            let TargetRow::Service(of, section) = target else { continue };
            let scope = match section {
                _ if of != name => None,
                None => Some(PolicyScope::Service),
                Some(section) => port(service, section).map(|port| PolicyScope::Port(port.number)),
            };
            found.extend(scope.map(|scope| Traffic { scope, ..row.traffic.clone() }));
        }
    }
    for route in routes {
        let key = route_key(route);
        for row in facts.traffic().of_object(&key) {
            for target in &row.targets {
                let TargetRow::Object(of, rule) = target else { continue };
                if *of != key {
                    continue;
                }
                let scope = PolicyScope::Route {
                    kind: route.kind,
                    namespace: Arc::clone(&route.namespace),
                    name: Arc::clone(&route.name),
                    rule: rule.clone(),
                };
                found.push(Traffic { scope, ..row.traffic.clone() });
            }
        }
    }
    if service.keeps_clients {
        keep_clients(name, &mut found);
    }
    found.into_iter().map(Arc::new).collect()
}

/// Implements `sessionAffinity: ClientIP`: a client keeps its endpoint while the endpoint exists, as with
/// kube-proxy. If a policy names an algorithm, that takes precedence. A policy that only sets other fields of load
/// balancing does not change the affinity.
fn keep_clients(service: &ServiceName, policies: &mut Vec<Traffic>) {
    let by_source = || Some(Algorithm::Maglev(HashOn::Source));
    for balancing in policies.iter_mut().filter_map(|policy| policy.balancing.as_mut()) {
        balancing.algorithm = balancing.algorithm.take().or_else(by_source);
    }
    let (namespace, name) = (Arc::clone(&service.namespace), Arc::clone(&service.name));
    policies.push(Traffic {
        source: PolicySource { created: u64::MAX, namespace, name },
        scope: PolicyScope::Service,
        balancing: Some(Balancing { algorithm: by_source(), ..Balancing::default() }),
        ..Traffic::default()
    });
}

/// The rate limits of a workload. Its own policies apply to all its ports; a policy of a service
/// applies to the ports behind that service.
pub(crate) fn limits(facts: &Facts, name: &InstanceName) -> Arc<[RateLimit]> {
    let mut found: Vec<RateLimit> = Vec::new();
    if let Some(owner) = facts.owner(name) {
        let rows = facts.rate_limits().of_object(&owner);
        found.extend(rows.flat_map(|row| row.limits.iter().cloned()));
    }
    let instance = facts.instance(name);
    for service in facts.services_of(name) {
        let Some(row) = facts.service(service) else { continue };
        for policy in facts.rate_limits().of_service(service) {
            for target in &policy.targets {
                let TargetRow::Service(of, section) = target else { continue };
                if of != service {
                    continue;
                }
                let ports = numbers(facts, (name, instance), (service, row), section.as_deref());
                for number in ports {
                    for limit in &policy.limits {
                        let limit = RateLimit { port: Some(number), ..limit.clone() };
                        // One policy may target two services that lead to the same port.
                        if !found.contains(&limit) {
                            found.push(limit);
                        }
                    }
                }
            }
        }
    }
    found.into()
}

/// The ports of an instance to which a service leads. If `section` is given, only those behind the service's port
/// with that name or number.
pub(super) fn numbers(
    facts: &Facts,
    (name, instance): (&InstanceName, Option<&InstanceRow>),
    (service, row): (&ServiceName, &ServiceRow),
    section: Option<&str>,
) -> Vec<u16> {
    let wanted = |port: &&ServicePortRow| section.is_none_or(|section| is_named(port, section));
    let mut numbers: Vec<u16> = Vec::new();
    for port in row.ports.iter().filter(wanted) {
        for served in facts.slices_of(name, service).filter_map(|slice| slice_port(slice, port)) {
            numbers.extend(target_number(port, served, instance));
        }
    }
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

fn port<'a>(service: &'a ServiceRow, section: &str) -> Option<&'a ServicePortRow> {
    service.ports.iter().find(|port| is_named(port, section))
}

/// Whether a section names this port, by name or by number.
pub(crate) fn is_named(port: &ServicePortRow, section: &str) -> bool {
    *port.name == *section || section.parse() == Ok(port.number)
}

fn route_key(route: &Route) -> ObjectKey {
    let kind = match route.kind {
        RouteKind::Http => Kind::HttpRoute,
        RouteKind::Grpc => Kind::GrpcRoute,
        RouteKind::Tls => Kind::TlsRoute,
        RouteKind::Tcp => Kind::TcpRoute,
    };
    let (namespace, name) = (route.namespace.to_string(), route.name.to_string());
    ObjectKey { kind, namespace, name }
}
