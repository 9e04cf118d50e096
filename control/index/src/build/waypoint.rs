//! A service behind a waypoint: what its clients receive, and what the waypoint enforces for it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use leno_resources::WaypointUse;
use leno_types::authorization::{Authorization, AuthorizationPolicy, PathReading, Rule};
use leno_types::mesh::{
    Distribution, Endpoint, PortProtocol, ServerPolicy, Service, ServicePort, Topology, WireForm,
};
use leno_types::routes::{InvalidTarget, Route, Target};
use leno_types::traffic::RateLimit;
use leno_types::{Egress, Identity, InstanceName, MtlsMode, ServiceName, ports};

use super::{BuiltService, policies, routes, slice_port, target_number};
use crate::facts::Facts;
use crate::rows::authorization::AuthorizationRow;
use crate::rows::policies::TargetRow;
use crate::rows::{EndpointRow, ServicePortRow, ServiceRow};

/// Changes a service that uses a waypoint: its clients get the endpoints of the waypoint, and no routes and policies of
/// clients, which the waypoint applies. If there is no such waypoint, clients get no endpoint.
pub(super) fn behind(
    facts: &Facts,
    said: &WaypointUse,
    (row, direct): (&ServiceRow, Service),
) -> BuiltService {
    let mut consumers = BTreeMap::new();
    let endpoints = endpoints(facts, said, &direct);
    if let WaypointUse::Through(waypoint) = said {
        let policy = policy(facts, (&direct, row)).map(Arc::new);
        let routes = enforced(facts, &direct, waypoint, policy.as_deref());
        let own = Service { waypoint: policy, routes, ..direct.clone() };
        consumers.insert(waypoint.to_string().into(), own);
    }
    let port =
        |port: ServicePort| ServicePort { endpoints: endpoints.clone(), external: None, ..port };
    let ports = direct.ports.into_iter().map(port).collect();
    let service = Service { ports, routes: [].into(), traffic: [].into(), ..direct };
    BuiltService { service, consumers }
}

/// The endpoints of the waypoint, ordered by name. If none is ready, those that terminate and still serve.
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
        // IPv4 addresses sort first.
        addresses: addresses.into_iter().collect(),
        port: ports::HBONE,
        identity: Some(identity.clone()),
        place: if is_near { place.clone() } else { Topology::default() },
        wire: WireForm::Waypoint,
    };
    found.into_iter().map(endpoint).collect()
}

/// What the waypoint enforces for a service. `None` if its policies cannot be applied: it then serves no client of it.
fn policy(facts: &Facts, (service, row): (&Service, &ServiceRow)) -> Option<ServerPolicy> {
    let authorization = authorization(facts, &service.name, row);
    if let Some(reason) = &authorization.unusable {
        tracing::error!(service = %service.name, %reason, "its waypoint serves no client of it");
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

/// The rate limits of a service.
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

/// The policies that hold for a service: those of the mesh and of the service, and those of any workload behind it.
fn authorization(facts: &Facts, name: &ServiceName, row: &ServiceRow) -> Authorization {
    let all = facts.authorizations();
    let instances: BTreeSet<&InstanceName> = facts
        .slices(name)
        .flat_map(|slice| &slice.endpoints)
        .filter_map(|endpoint| endpoint.instance.as_ref())
        .filter(|instance| instance.namespace == name.namespace)
        .collect();
    let rows = || instances.iter().filter_map(|instance| facts.instance(instance));
    let targets = target_ports(facts, name, row);
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
        let rules = row.policy.rules.iter().filter_map(|rule| of_service(rule, &targets)).collect();
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
    // The authorizer itself would be asked about what it is asked.
    let is_own = |policy: &AuthorizationPolicy| {
        policy.external.as_deref().is_some_and(|authorizer| authorizer.service == *name)
    };
    selected.retain(|_, (policy, _)| !is_own(policy));
    let unusable = super::authorization::too_many(selected.values().map(|(_, bytes)| *bytes));
    let readings: Vec<PathReading> = instances.iter().map(|one| facts.path_reading(one)).collect();
    Authorization {
        policies: selected.into_values().map(|(policy, _)| policy).collect(),
        default: facts.default_authorization(&name.namespace),
        // What not all workloads read alike is refused.
        paths: match readings.split_first() {
            Some((first, rest)) if rest.iter().all(|one| one == first) => *first,
            Some(_) => PathReading::default(),
            None => facts.namespace_path_reading(&name.namespace),
        },
        trust_domain: facts.trust_domain().clone(),
        unusable,
    }
}

/// The ports of the service that a policy targets.
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

/// For each port of the workloads behind a service, the ports of the service that lead to it.
fn target_ports(
    facts: &Facts,
    name: &ServiceName,
    row: &ServiceRow,
) -> BTreeMap<u16, BTreeSet<u16>> {
    let mut found: BTreeMap<u16, BTreeSet<u16>> = BTreeMap::new();
    for port in &row.ports {
        for slice in facts.slices(name) {
            let Some(served) = slice_port(slice, port) else { continue };
            let instances = slice.endpoints.iter().map(|endpoint| endpoint.instance.as_ref());
            for instance in instances {
                let instance = instance.and_then(|instance| facts.instance(instance));
                if let Some(number) = target_number(port, served, instance) {
                    found.entry(number).or_default().insert(port.number);
                }
            }
        }
    }
    found
}

/// A rule of a policy of workloads, with the ports of the service in place of theirs. `None` if the service leads to none
/// of its ports.
fn of_service(rule: &Rule, targets: &BTreeMap<u16, BTreeSet<u16>>) -> Option<Rule> {
    let mut rule = rule.clone();
    if rule.to.is_empty() {
        return Some(rule);
    }
    rule.to.retain_mut(|request| {
        if request.ports.is_empty() {
            return true;
        }
        let own = request.ports.iter().filter_map(|port| targets.get(port)).flatten();
        request.ports = own.copied().collect::<BTreeSet<u16>>().into_iter().collect();
        !request.ports.is_empty()
    });
    (!rule.to.is_empty()).then_some(rule)
}

/// The routes as the waypoint applies them. A request reaches a backend behind the same waypoint at once, under the
/// policies of the service that it was sent to: if the backend has others, the route leads nowhere.
fn enforced(
    facts: &Facts,
    service: &Service,
    waypoint: &ServiceName,
    policy: Option<&ServerPolicy>,
) -> Arc<[Arc<Route>]> {
    let is_enforced = |to: &ServiceName| {
        let through = WaypointUse::Through(waypoint.clone());
        if *to == service.name || facts.waypoint_use(to) != Some(&through) {
            return true;
        }
        let Some(row) = facts.service(to) else { return true };
        let own = authorization(facts, to, row);
        let known = policy.map(|policy| &*policy.authorization);
        let has = |of: &AuthorizationPolicy| {
            known.is_some_and(|known| {
                known.policies.iter().any(|one| one.source == of.source && one.ports.is_none())
            })
        };
        limits(facts, to, row).is_empty()
            && own.unusable.is_none()
            && own.policies.iter().all(has)
            && known.is_some_and(|known| known.default == own.default)
    };
    let check = |route: &Arc<Route>| {
        let mut route = Route::clone(route);
        let mut check = |target: &mut Target| {
            if let Target::Service { name, .. } = target
                && !is_enforced(name)
            {
                *target = Target::Invalid(InvalidTarget::NotGranted);
            }
        };
        for rule in &mut route.rules {
            routes::mirrors(&mut rule.filters, &mut check);
            for backend in &mut rule.backends {
                check(&mut backend.target);
                routes::mirrors(&mut backend.filters, &mut check);
            }
        }
        Arc::new(route)
    };
    service.routes.iter().map(check).collect()
}
