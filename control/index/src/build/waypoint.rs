//! Builds a service behind a waypoint, a proxy that applies the routes and policies of services for all their clients:
//! what the clients receive, and which policies the waypoint enforces.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use leno_resources::{Kind, ObjectKey, WaypointUse};
use leno_types::authorization::{
    Action, Authorization, AuthorizationPolicy, DefaultAuthorization, PathReading, PermissionRule,
};
use leno_types::mesh::{
    Distribution, Endpoint, PortProtocol, ServerPolicy, Service, ServicePort, Topology, WireForm,
};
use leno_types::routes::{InvalidTarget, Route, RouteTarget};
use leno_types::traffic::{PolicySource, RateLimit};
use leno_types::{Egress, Identity, InstanceName, MtlsMode, ServiceName, ports};

use super::{BuiltService, policies, routes, slice_port, target_number};
use crate::facts::Facts;
use crate::rows::authorization::AuthorizationRow;
use crate::rows::policies::TargetRow;
use crate::rows::routes::RouteRow;
use crate::rows::{EndpointRow, ServicePortRow, ServiceRow, TargetPort as Number};

/// Changes a service that uses a waypoint. Its clients receive the endpoints of the waypoint, but no routes and
/// client policies, because the waypoint applies these. If the waypoint does not exist, clients receive no
/// endpoint.
pub(super) fn behind(
    facts: &Facts,
    said: &WaypointUse,
    (row, direct): (&ServiceRow, Service),
) -> BuiltService {
    let mut consumers = BTreeMap::new();
    let endpoints = endpoints(facts, said, &direct);
    // A waypoint among the service's own endpoints is dropped. It would connect to itself, and give its clients
    // access to services of other namespaces.
    let is_server = |one: &&Endpoint| {
        one.workload.as_ref().is_none_or(|name| facts.waypoint_of(name).is_none())
    };
    let mut direct = direct;
    for port in &mut direct.ports {
        if !port.endpoints.iter().all(|one| is_server(&one)) {
            port.endpoints = port.endpoints.iter().filter(is_server).cloned().collect();
        }
    }
    // Without this permission, another namespace could make the waypoint connect to any address.
    if let WaypointUse::Through(waypoint) = said
        && facts.is_open(waypoint, &direct.name.namespace)
    {
        let policy = policy(facts, (&direct, row)).map(Arc::new);
        let routes = enforced(facts, &direct, (row, waypoint), policy.as_deref());
        let own = Service { waypoint: policy, routes, ..direct.clone() };
        consumers.insert(waypoint.to_string().into(), own);
    }
    let port =
        |port: ServicePort| ServicePort { endpoints: endpoints.clone(), external: None, ..port };
    let ports = direct.ports.into_iter().map(port).collect();
    let service = Service { ports, routes: [].into(), traffic: [].into(), ..direct };
    BuiltService { service, consumers }
}

/// The endpoints of the waypoint, ordered by name. If none is ready, those that are terminating but still serve.
fn endpoints(facts: &Facts, said: &WaypointUse, service: &Service) -> Arc<[Endpoint]> {
    let WaypointUse::Through(waypoint) = said else { return [].into() };
    let all = || facts.waypoint_endpoints(waypoint, &service.name.namespace);
    let any_ready = all().any(|(_, _, endpoint)| endpoint.ready);
    let serves = |row: &EndpointRow| if any_ready { row.ready } else { row.lingers };
    let mut found: BTreeMap<&InstanceName, (BTreeSet<IpAddr>, &Identity, &Topology)> =
        BTreeMap::new();
    for (name, row, endpoint) in all().filter(|(_, _, endpoint)| serves(endpoint)) {
        let known = found.entry(name).or_insert((BTreeSet::new(), &row.identity, &endpoint.place));
        let has_family = known.0.iter().any(|ip| ip.is_ipv4() == endpoint.ip.is_ipv4());
        if !has_family {
            known.0.insert(endpoint.ip);
        }
    }
    let is_near = service.distribution != Distribution::Any;
    let endpoint = |(name, (addresses, identity, place)): (
        &InstanceName,
        (BTreeSet<_>, &Identity, &Topology),
    )| Endpoint {
        workload: Some(name.clone()),
        // IPv4 addresses come first in this order.
        addresses: addresses.into_iter().collect(),
        port: ports::HBONE,
        identity: Some(identity.clone()),
        place: if is_near { place.clone() } else { Topology::default() },
        wire: WireForm::Waypoint,
    };
    found.into_iter().map(endpoint).collect()
}

/// The policy that the waypoint enforces for a service. `None` if the policies cannot be applied; the waypoint
/// then rejects all clients of the service.
fn policy(facts: &Facts, (service, row): (&Service, &ServiceRow)) -> Option<ServerPolicy> {
    let authorization = authorization(facts, &service.name, row);
    if let Some(reason) = &authorization.unusable {
        tracing::error!(service = %service.name, %reason, "its waypoint cannot serve its clients");
        return None;
    }
    let port = |port: &ServicePort| PortProtocol { port: port.port, protocol: port.protocol };
    let ServiceName { namespace, name } = service.name.clone();
    Some(ServerPolicy {
        workload: InstanceName { namespace, name },
        mtls: MtlsMode::Strict,
        ports: service.ports.iter().map(port).collect(),
        limits: limits(facts, &service.name, row),
        egress: Egress::Allow,
        place: Topology::default(),
        ending: false,
        removal: facts.removal(),
        authorization: Arc::new(authorization),
    })
}

/// The rate limits that the waypoint enforces for a service: those of policies that are attached to the service.
fn limits(facts: &Facts, name: &ServiceName, row: &ServiceRow) -> Arc<[RateLimit]> {
    let mut found: Vec<RateLimit> = Vec::new();
    for policy in facts.rate_limits().of_service(name) {
        for port in own_ports(&policy.targets, (name, row)) {
            for limit in &policy.limits {
                let limit = RateLimit { port: Some(port), ..limit.clone() };
                if !found.contains(&limit) {
                    found.push(limit);
                }
            }
        }
    }
    found.into()
}

/// The authorization policies that apply to a service: those of the mesh, of the service, and of all workloads
/// behind it.
fn authorization(facts: &Facts, name: &ServiceName, row: &ServiceRow) -> Authorization {
    let all = facts.authorizations();
    let instances: BTreeSet<&InstanceName> = facts
        .slices(name)
        .flat_map(|slice| &slice.endpoints)
        .filter_map(|endpoint| endpoint.instance.as_ref())
        .filter(|instance| instance.namespace == name.namespace)
        .collect();
    let rows = || instances.iter().filter_map(|instance| facts.instance(instance));
    let targets = TargetPorts::new(facts, name, row);
    let mut selected: BTreeMap<_, (AuthorizationPolicy, usize)> = BTreeMap::new();
    let mut add = |row: &AuthorizationRow, ports: Option<Vec<u16>>| {
        let source = &row.policy.source;
        let key = (Arc::clone(&source.namespace), Arc::clone(&source.name));
        let ports: Option<Arc<[u16]>> = match (selected.get(&key), ports) {
            (Some((known, _)), Some(ports)) => known.ports.as_ref().map(|known| {
                let both: BTreeSet<u16> = known.iter().copied().chain(ports).collect();
                both.into_iter().collect()
            }),
            (_, ports) => ports.map(Into::into),
        };
        let (rules, action) = (row.policy.rules.iter(), row.policy.action);
        let rules = rules.filter_map(|rule| targets.of_service(rule, action)).collect();
        selected
            .insert(key, (AuthorizationPolicy { ports, rules, ..row.policy.clone() }, row.bytes));
    };
    let none = BTreeMap::new();
    let selects = |row: &&AuthorizationRow| {
        row.selects(&none) || rows().any(|instance| row.selects(&instance.labels))
    };
    for row in facts.authorizations_of_mesh().chain(all.selecting(&name.namespace).filter(selects))
    {
        add(row, None);
    }
    let owners: BTreeSet<_> = instances.iter().filter_map(|one| facts.owner(one)).collect();
    for policy in owners.iter().flat_map(|owner| all.attached().of_object(owner)) {
        add(policy, None);
    }
    for policy in all.attached().of_service(name) {
        let ports = own_ports(&policy.targets, (name, row));
        if !ports.is_empty() {
            add(policy, Some(ports));
        }
    }
    // Without this exception, the waypoint would ask the authorizer about the requests to the authorizer, without
    // end.
    let is_own = |policy: &AuthorizationPolicy| {
        policy.external.as_deref().is_some_and(|authorizer| authorizer.service == *name)
    };
    selected.retain(|_, (policy, _)| !is_own(policy));
    let unusable = super::authorization::too_many(selected.values().map(|(_, bytes)| *bytes));
    let readings: Vec<PathReading> = instances.iter().map(|one| facts.path_reading(one)).collect();
    Authorization {
        policies: selected.into_values().map(|(policy, _)| policy).collect(),
        default: facts.default_authorization(&name.namespace),
        // If the workloads interpret paths in different ways, ambiguous paths are rejected.
        paths: match readings.split_first() {
            Some((first, rest)) if rest.iter().all(|one| one == first) => *first,
            Some(_) => PathReading::default(),
            None => facts.namespace_path_reading(&name.namespace),
        },
        trust_domain: facts.trust_domain().clone(),
        unusable,
    }
}

/// The ports of the service to which a policy is attached.
fn own_ports(targets: &[TargetRow], (name, row): (&ServiceName, &ServiceRow)) -> Vec<u16> {
    let sections = targets.iter().filter_map(|target| match target {
        TargetRow::Service(of, section) if of == name => Some(section.as_deref()),
        _ => None,
    });
    let sections: Vec<Option<&str>> = sections.collect();
    let is_named = |port: &&ServicePortRow| {
        sections
            .iter()
            .any(|section| section.is_none_or(|section| policies::is_named(port, section)))
    };
    row.ports.iter().filter(is_named).map(|port| port.number).collect()
}

/// How the ports of a service relate to the ports of the workloads behind it.
struct TargetPorts {
    /// The ports of the service that lead to each port of the workloads.
    known: BTreeMap<u16, BTreeSet<u16>>,
    /// The ports of the service for which it is not known where they lead.
    unknown: BTreeSet<u16>,
}

impl TargetPorts {
    fn new(facts: &Facts, name: &ServiceName, row: &ServiceRow) -> Self {
        let mut known: BTreeMap<u16, BTreeSet<u16>> = BTreeMap::new();
        for port in &row.ports {
            let mut note = |number: Option<u16>| {
                if let Some(number) = number {
                    known.entry(number).or_default().insert(port.number);
                }
            };
            if let (Some(_), Number::Number(number)) = (&row.external_name, &port.target) {
                note(Some(*number));
            }
            for slice in facts.slices(name) {
                let Some(served) = slice_port(slice, port) else { continue };
                if !slice.names.is_empty() {
                    note(target_number(port, served, None));
                }
                for endpoint in &slice.endpoints {
                    let instance = endpoint.instance.as_ref();
                    let instance = instance.and_then(|instance| facts.instance(instance));
                    note(target_number(port, served, instance));
                }
            }
        }
        let is_unknown = |port: &u16| !known.values().any(|ports| ports.contains(port));
        let unknown = row.ports.iter().map(|port| port.number).filter(is_unknown).collect();
        Self { known, unknown }
    }

    /// The rule of a workload's policy, with the ports of the service instead of the workload's. `None` if no port
    /// of the service leads to a port in the rule. A rule that denies also covers ports of the service for which
    /// it is not known where they lead.
    fn of_service(&self, rule: &PermissionRule, action: Action) -> Option<PermissionRule> {
        let mut rule = rule.clone();
        if rule.to.is_empty() {
            return Some(rule);
        }
        rule.to.retain_mut(|request| {
            if request.ports.is_empty() {
                return true;
            }
            let own = request.ports.iter().filter_map(|port| self.known.get(port)).flatten();
            let unknown = self.unknown.iter().filter(|_| action != Action::Allow);
            let own: BTreeSet<u16> = own.chain(unknown).copied().collect();
            request.ports = own.into_iter().collect();
            !request.ports.is_empty()
        });
        (!rule.to.is_empty()).then_some(rule)
    }
}

/// The routes as the waypoint applies them. A target becomes invalid if requests would reach it without the
/// policies of the target's own service.
fn enforced(
    facts: &Facts,
    service: &Service,
    (row, waypoint): (&ServiceRow, &ServiceName),
    policy: Option<&ServerPolicy>,
) -> Arc<[Arc<Route>]> {
    let check = |route: &Arc<Route>| {
        let mut route = Route::clone(route);
        let from = std::mem::take(&mut route.ports);
        let mut check = |target: &mut RouteTarget| {
            let RouteTarget::Service { name, port } = &*target else { return };
            let is_permitted = match facts.waypoint_use(name) {
                _ if *name == service.name => {
                    let alone = row.ports.iter().map(|port| port.number);
                    let from = if from.is_empty() { alone.collect() } else { from.clone() };
                    from.iter().all(|from| from == port)
                        || policy.is_some_and(|policy| is_alike(facts, policy, (&from, *port)))
                }
                Some(WaypointUse::Through(other)) if other == waypoint => {
                    policy.is_some_and(|policy| has_policies_of(facts, policy, name))
                }
                Some(WaypointUse::Through(other)) => !leads_on(facts, name, other),
                _ => true,
            };
            if !is_permitted {
                *target = RouteTarget::Invalid(InvalidTarget::NotGranted);
            }
        };
        for rule in &mut route.rules {
            routes::mirrors(&mut rule.filters, &mut check);
            for backend in &mut rule.backends {
                check(&mut backend.target);
                routes::mirrors(&mut backend.filters, &mut check);
            }
        }
        route.ports = from;
        Arc::new(route)
    };
    service.routes.iter().map(check).collect()
}

/// Whether a rule of a policy names ports of workloads, or the policy does not exist. For each service, such a rule
/// means other requests, because different ports of the services lead to those ports.
fn names_ports(facts: &Facts, policy: &AuthorizationPolicy) -> bool {
    let PolicySource { namespace, name, .. } = &policy.source;
    let (namespace, name) = (namespace.to_string(), name.to_string());
    let key = ObjectKey { kind: Kind::AuthorizationPolicy, namespace, name };
    let row = facts.authorizations().attached().get(&key);
    let mut requests =
        row.into_iter().flat_map(|row| row.policy.rules.iter()).flat_map(|rule| &rule.to);
    row.is_none() || requests.any(|request| !request.ports.is_empty())
}

/// Whether all policies and limits of a service apply to the port `to` in the same way as to each port in `from`.
fn is_alike(facts: &Facts, policy: &ServerPolicy, (from, to): (&[u16], u16)) -> bool {
    let has = |ports: Option<&Arc<[u16]>>, port: u16| ports.is_none_or(|all| all.contains(&port));
    let is_of_both = |one: &AuthorizationPolicy| {
        let of = has(one.ports.as_ref(), to);
        !names_ports(facts, one) && from.iter().all(|port| has(one.ports.as_ref(), *port) == of)
    };
    let limits = |port: u16| {
        let all = policy.limits.iter().filter(move |limit| limit.port.is_none_or(|of| of == port));
        all.map(|limit| RateLimit { port: None, ..limit.clone() }).collect::<Vec<_>>()
    };
    policy.authorization.policies.iter().all(is_of_both)
        && from.iter().all(|port| limits(*port) == limits(to))
}

/// Whether `policy` denies all requests that the policies of `to`, another service of the same waypoint, deny. The
/// waypoint connects to `to` directly, and applies only the policies of the service to which the request was sent.
fn has_policies_of(facts: &Facts, policy: &ServerPolicy, to: &ServiceName) -> bool {
    let Some(row) = facts.service(to) else { return true };
    let (own, known) = (authorization(facts, to, row), &policy.authorization);
    let has = |of: &AuthorizationPolicy| {
        let same = |one: &&AuthorizationPolicy| one.source == of.source && one.ports.is_none();
        known.policies.iter().any(|one| same(&one) && one.rules == of.rules)
            && !names_ports(facts, of)
    };
    // An additional Allow policy permits more requests, unless the service has none, because then all clients are
    // permitted.
    let permit =
        |all: &Authorization| all.policies.iter().filter(|one| one.action == Action::Allow).count();
    let adds_none = match permit(&own) {
        0 => own.default == DefaultAuthorization::All || permit(known) == 0,
        number => permit(known) == number,
    };
    limits(facts, to, row).is_empty()
        && own.unusable.is_none()
        && own.policies.iter().all(has)
        && adds_none
        && known.default == own.default
        && known.paths == own.paths
}

/// Whether a route of a service with a waypoint leads to a service with another waypoint. A request passes at most
/// two waypoints, so that none loops between them.
fn leads_on(facts: &Facts, service: &ServiceName, waypoint: &ServiceName) -> bool {
    let is_other = |to: &ServiceName| matches!(facts.waypoint_use(to), Some(WaypointUse::Through(other)) if other != waypoint);
    facts.routes().of(service).flat_map(RouteRow::targets).any(is_other)
}
