//! Finds mistakes in routes: what they attach to, what they refer to, and matches that no request reaches.

use std::collections::BTreeSet;
use std::sync::Arc;

use leno_policy::{IgnoredRoute, RouteTable, StreamShadowed, StreamTable, TableRule};
use leno_resources::gateway::{BackendObject, BackendRef, ParentRef, RouteFilter, StreamRule};
use leno_resources::{Kind, Object, ObjectKey};
use leno_types::mesh::{Resolution, Service, Subject};
use leno_types::routes::{Filter, InvalidTarget, Route, RouteKind, RouteRule, RouteTarget};
use leno_types::{Protocol, ServiceName, nearest};

use super::finding::{Findings, Mistake};
use crate::mesh::MeshModel;

/// The fields that all kinds of routes have.
struct DeclaredRoute<'d> {
    /// The position of its document.
    at: usize,
    key: ObjectKey,
    kind: RouteKind,
    parents: &'d [ParentRef],
    /// Whether it names hosts that have no effect in a mesh.
    hostnames: bool,
    rules: Vec<DeclaredRule<'d>>,
}

struct DeclaredRule<'d> {
    filters: &'d [RouteFilter],
    backends: &'d [BackendRef],
}

impl<'d> DeclaredRoute<'d> {
    fn new(at: usize, object: &'d Object) -> Option<Self> {
        let key = object.key();
        let rule = |filters: &'d Option<Vec<RouteFilter>>,
                    backends: &'d Option<Vec<BackendRef>>| {
            DeclaredRule {
                filters: filters.as_deref().unwrap_or_default(),
                backends: backends.as_deref().unwrap_or_default(),
            }
        };
        let stream_rule =
            |rule: &'d StreamRule| DeclaredRule { filters: &[], backends: &rule.backend_refs };
        let (kind, parents, hostnames, rules) = match object {
            Object::HttpRoute(route) => {
                let rules = route.spec.rules.iter().flatten();
                let rules = rules.map(|one| rule(&one.filters, &one.backend_refs)).collect();
                (RouteKind::Http, &route.spec.parent_refs, &route.spec.hostnames, rules)
            }
            Object::GrpcRoute(route) => {
                let rules = route.spec.rules.iter().flatten();
                let rules = rules.map(|one| rule(&one.filters, &one.backend_refs)).collect();
                (RouteKind::Grpc, &route.spec.parent_refs, &route.spec.hostnames, rules)
            }
            Object::TlsRoute(route) => {
                let rules = route.spec.rules.iter().map(&stream_rule).collect();
                (RouteKind::Tls, &route.spec.parent_refs, &None, rules)
            }
            Object::TcpRoute(route) => {
                let rules = route.spec.rules.iter().map(&stream_rule).collect();
                (RouteKind::Tcp, &route.spec.parent_refs, &None, rules)
            }
            _ => return None,
        };
        let hostnames = hostnames.as_ref().is_some_and(|names| !names.is_empty());
        Some(Self {
            at,
            key,
            kind,
            parents: parents.as_deref().unwrap_or_default(),
            hostnames,
            rules,
        })
    }

    fn parent_name(&self, parent: &ParentRef) -> Option<ServiceName> {
        let namespace = parent.namespace.as_deref().unwrap_or(&self.key.namespace);
        ServiceName::new(namespace, &parent.name).ok()
    }
}

/// Checks where routes attach and what they refer to.
pub(super) fn references(mesh: &MeshModel, findings: &mut Findings<'_>) {
    let written = findings.objects().filter_map(|(at, object)| DeclaredRoute::new(at, object));
    for route in written.collect::<Vec<_>>() {
        attachment(mesh, findings, &route);
        for (index, rule) in route.rules.iter().enumerate() {
            targets_given(findings, &route, index, rule);
        }
        let mut told = BTreeSet::new();
        for parent in route.parents.iter().filter(|parent| parent.is_service()) {
            let Some(resolved) = resolved(mesh, &route, parent) else { continue };
            for (index, rule) in resolved.rules.iter().enumerate() {
                for (path, reason, object) in invalid(&route, index, rule) {
                    if told.insert(path.clone()) {
                        let wrong = dangling(mesh, &route, object, reason);
                        findings.push(route.at, &path, wrong);
                    }
                }
            }
        }
    }
}

/// The route as it is attached to a parent, with its references resolved.
fn resolved(mesh: &MeshModel, route: &DeclaredRoute<'_>, parent: &ParentRef) -> Option<Arc<Route>> {
    let service = service_for(mesh, &route.parent_name(parent)?, &route.key.namespace)?;
    let same = |other: &&Arc<Route>| {
        other.kind == route.kind
            && *other.namespace == *route.key.namespace
            && *other.name == *route.key.name
    };
    service.routes.iter().find(same).cloned()
}

fn service_for(mesh: &MeshModel, name: &ServiceName, client: &str) -> Option<Arc<Service>> {
    match mesh.index.resolve(&Subject::Service(name.clone()), client) {
        Resolution::Service(service) => Some(service),
        _ => None,
    }
}

fn attachment(mesh: &MeshModel, findings: &mut Findings<'_>, route: &DeclaredRoute<'_>) {
    if !route.parents.iter().any(ParentRef::is_service) {
        let reason = "attaches to no Service, so it has no effect in a mesh".to_owned();
        let remedy = "name one: parentRefs: [{group: \"\", kind: Service, name: ...}]".to_owned();
        let wrong = Mistake::warning("route-of-nothing", reason, remedy);
        return findings.push(route.at, "spec.parentRefs", wrong);
    }
    if route.hostnames {
        let reason = "hostnames have no effect in a route of a Service".to_owned();
        let remedy = "match the header Host instead".to_owned();
        let wrong = Mistake::warning("hostnames-unused", reason, remedy);
        findings.push(route.at, "spec.hostnames", wrong);
    }
    for (index, parent) in route.parents.iter().enumerate() {
        if parent.is_service() {
            let path = format!("spec.parentRefs[{index}]");
            self::parent(mesh, findings, route, (&path, parent));
        }
    }
}

fn parent(
    mesh: &MeshModel,
    findings: &mut Findings<'_>,
    route: &DeclaredRoute<'_>,
    (path, parent): (&str, &ParentRef),
) {
    let Some(name) = route.parent_name(parent) else { return };
    let Some(service) = mesh.index.service(&name) else {
        let reason = format!("there is no Service {name}, so the route has no effect");
        let wrong = Mistake::error("parent-not-found", reason, instead(mesh, &name));
        return findings.push(route.at, &format!("{path}.name"), wrong);
    };
    let number = parent.port.and_then(|port| u16::try_from(port).ok());
    let section = parent.section_name.as_deref();
    let named = service.ports.iter().filter(|port| {
        number.is_none_or(|number| number == port.port)
            && section.is_none_or(|section| section == &*port.name)
    });
    let named: Vec<_> = named.collect();
    if named.is_empty() {
        let field = if section.is_some() { "sectionName" } else { "port" };
        let reason = format!("{name} has no such port, so the route has no effect");
        let remedy = format!("it has {}", ports(&service));
        let wrong = Mistake::error("parent-port-not-found", reason, remedy);
        return findings.push(route.at, &format!("{path}.{field}"), wrong);
    }
    if is_headless(mesh, &name) {
        let reason = format!(
            "{name} is headless, so clients connect to its instances directly, without \
             routes"
        );
        let remedy = "give the Service an address: remove clusterIP: None".to_owned();
        findings.push(route.at, path, Mistake::warning("parent-headless", reason, remedy));
    }
    if route.kind.is_of_requests() && named.iter().all(|port| port.protocol == Protocol::Opaque) {
        let reason = format!("the port of {name} is opaque, so the proxy sees no requests");
        let remedy = "set its appProtocol to http, http2 or grpc".to_owned();
        findings.push(route.at, path, Mistake::warning("parent-opaque", reason, remedy));
    } else if route.kind == RouteKind::Grpc
        && named.iter().all(|port| port.protocol == Protocol::Http1)
    {
        let reason = format!("the port of {name} is HTTP/1.1, which carries no gRPC");
        let remedy = "set its appProtocol to grpc".to_owned();
        findings.push(route.at, path, Mistake::warning("grpc-over-http1", reason, remedy));
    }
}

fn is_headless(mesh: &MeshModel, name: &ServiceName) -> bool {
    mesh.objects.iter().any(|object| match object {
        Object::Service(service) => {
            let key = object.key();
            let ip = service.spec.as_ref().and_then(|spec| spec.cluster_ip.as_deref());
            key.namespace == *name.namespace && key.name == *name.name && ip == Some("None")
        }
        _ => false,
    })
}

/// Finds rules that have neither a backend nor a filter that answers.
fn targets_given(
    findings: &mut Findings<'_>,
    route: &DeclaredRoute<'_>,
    index: usize,
    rule: &DeclaredRule<'_>,
) {
    let path = format!("spec.rules[{index}]");
    let redirects = rule.filters.iter().any(|filter| filter.request_redirect.is_some());
    if rule.backends.is_empty() && !redirects {
        let reason = "the rule names no backend, so requests that it matches get 500".to_owned();
        let remedy = "add backendRefs, or a RequestRedirect".to_owned();
        findings.push(route.at, &path, Mistake::error("no-backend", reason, remedy));
    }
    let zero = |backend: &BackendRef| backend.weight == Some(0);
    if !rule.backends.is_empty() && rule.backends.iter().all(zero) {
        let reason = "all weights are zero, so requests that the rule matches get 500".to_owned();
        let remedy = "give one of them a weight, or remove all weights".to_owned();
        let path = format!("{path}.backendRefs");
        findings.push(route.at, &path, Mistake::error("weights-zero", reason, remedy));
    }
}

/// The invalid references of a resolved rule, each with its path and the object that it names.
fn invalid<'d>(
    route: &DeclaredRoute<'d>,
    index: usize,
    rule: &RouteRule,
) -> Vec<(String, InvalidTarget, BackendObject)> {
    let Some(written) = route.rules.get(index) else { return Vec::new() };
    let mut found = Vec::new();
    let at = format!("spec.rules[{index}]");
    mirrors(&mut found, &format!("{at}.filters"), &rule.filters, written.filters);
    for (place, (backend, given)) in rule.backends.iter().zip(written.backends).enumerate() {
        let at = format!("{at}.backendRefs[{place}]");
        if let RouteTarget::Invalid(reason) = backend.target {
            found.push((at.clone(), reason, given.object()));
        }
        let filters = given.filters.as_deref().unwrap_or_default();
        mirrors(&mut found, &format!("{at}.filters"), &backend.filters, filters);
    }
    found
}

fn mirrors(
    found: &mut Vec<(String, InvalidTarget, BackendObject)>,
    at: &str,
    filters: &[Filter],
    written: &[RouteFilter],
) {
    for (place, (filter, given)) in filters.iter().zip(written).enumerate() {
        if let Filter::Mirror(mirror) = filter
            && let RouteTarget::Invalid(reason) = mirror.target
            && let Some(given) = &given.request_mirror
        {
            let path = format!("{at}[{place}].requestMirror.backendRef");
            found.push((path, reason, given.backend_ref.clone()));
        }
    }
}

/// The finding for an invalid reference. Its remedy names a valid object.
fn dangling(
    mesh: &MeshModel,
    route: &DeclaredRoute<'_>,
    to: BackendObject,
    reason: InvalidTarget,
) -> Mistake {
    let namespace = to.namespace.as_deref().unwrap_or(&route.key.namespace);
    let name = format!("{namespace}/{}", to.name);
    let service = ServiceName::new(namespace, &to.name).ok();
    match reason {
        InvalidTarget::Kind => Mistake::error(
            "backend-kind",
            format!("a {} cannot be a backend here", to.kind.as_deref().unwrap_or("Service")),
            "refer to a Service of the core group".to_owned(),
        ),
        InvalidTarget::NotFound => Mistake::error(
            "backend-not-found",
            format!("there is no Service {name}, so its share of the requests gets 500"),
            service.map(|name| instead(mesh, &name)).unwrap_or_default(),
        ),
        InvalidTarget::NoSuchPort => {
            let known = service.and_then(|name| mesh.index.service(&name));
            let reason = match to.port {
                Some(port) => format!(
                    "{name} has no port {port}, so its share of the requests \
                     gets 500"
                ),
                None => format!("names no port of {name}, so its share of the requests gets 500"),
            };
            let remedy = known.map(|service| format!("it has {}", ports(&service)));
            Mistake::error("port-not-found", reason, remedy.unwrap_or_default())
        }
        InvalidTarget::NotGranted => Mistake::error(
            "reference-not-granted",
            format!("{namespace} does not permit routes of {} to refer to it", route.key.namespace),
            format!(
                "add a ReferenceGrant in {namespace}: from {} in {}, to Service {}",
                route.key.kind.as_str(),
                route.key.namespace,
                to.name
            ),
        ),
    }
}

/// The ports of a service, listed for a remedy.
pub(super) fn ports(service: &Service) -> String {
    let port = |port: &leno_types::mesh::ServicePort| match &*port.name {
        "" => port.port.to_string(),
        name => format!("{} ({name})", port.port),
    };
    let ports: Vec<String> = service.ports.iter().map(port).collect();
    match ports.is_empty() {
        true => "no port".to_owned(),
        false => format!("port {}", ports.join(", ")),
    }
}

/// Suggests a service that the user has probably meant.
pub(super) fn instead(mesh: &MeshModel, wanted: &ServiceName) -> String {
    let keys = mesh.objects.iter().map(Object::key).filter(|key| key.kind == Kind::Service);
    let keys: Vec<ObjectKey> = keys.collect();
    let near = keys.iter().filter(|key| *key.namespace == *wanted.namespace);
    let near = nearest(&wanted.name, near.map(|key| key.name.as_str())).map(str::to_owned);
    let elsewhere = || {
        let same = keys.iter().find(|key| *key.name == *wanted.name)?;
        Some(format!("{} in the namespace {}", same.name, same.namespace))
    };
    match near.or_else(elsewhere) {
        Some(meant) => format!("did you mean {meant}?"),
        None => "add the Service, or name one that exists".to_owned(),
    }
}

/// Finds matches that no request reaches, and routes that have no effect because of a route of another kind.
pub(super) fn tables(mesh: &MeshModel, findings: &mut Findings<'_>) {
    let mut told = BTreeSet::new();
    let namespaces: BTreeSet<String> =
        mesh.objects.iter().map(|object| object.key().namespace).collect();
    let services: Vec<ObjectKey> =
        mesh.objects.iter().map(Object::key).filter(|key| key.kind == Kind::Service).collect();
    for key in services {
        let Ok(name) = ServiceName::new(&key.namespace, &key.name) else { continue };
        let mut seen: Vec<Arc<Service>> = Vec::new();
        for client in &namespaces {
            let Some(service) = service_for(mesh, &name, client) else { continue };
            // The service is the same for most client namespaces.
            if seen.iter().any(|seen| Arc::ptr_eq(seen, &service)) {
                continue;
            }
            for port in &service.ports {
                if let Some(table) = RouteTable::compile(&service.routes, port.port) {
                    self::table(findings, &mut told, &table, (&name, port.port));
                }
                let streams = StreamTable::compile(&service.routes, port.port);
                for shadowed in streams.iter().flat_map(StreamTable::shadowed) {
                    stream(findings, &mut told, shadowed, (&name, port.port));
                }
            }
            seen.push(service);
        }
    }
}

fn table(
    findings: &mut Findings<'_>,
    told: &mut BTreeSet<(usize, String)>,
    table: &RouteTable,
    (service, port): (&ServiceName, u16),
) {
    let shadowed = table.shadowed();
    for one in &shadowed {
        let Some(at) = findings.position(&key_of(one.rule.route())) else { continue };
        let path = format!("spec.rules[{}]", one.rule.index());
        let of_rule = shadowed.iter().filter(|other| std::ptr::eq(other.rule, one.rule));
        let matches = one.rule.rule().matches.len();
        let (path, by) = match matches {
            0 => (path, one.by.clone()),
            // No match of this rule is reached, so the rule is reported once.
            2.. if of_rule.clone().count() == matches => {
                (path, of_rule.flat_map(|other| other.by.iter().copied()).collect())
            }
            _ => (format!("{path}.matches[{}]", one.place), one.by.clone()),
        };
        if told.insert((at, path.clone())) {
            let wrong = unreached(findings, (one.rule, &by), (service, port));
            findings.push(at, &path, wrong);
        }
    }
    for ignored in table.ignored() {
        let IgnoredRoute::Kind(route) = ignored else { continue };
        let Some(at) = findings.position(&key_of(route)) else { continue };
        if told.insert((at, "spec".to_owned())) {
            let reason = format!(
                "a GRPCRoute is attached to port {port} of {service}, so this route has no \
                 effect"
            );
            let remedy = "attach the two kinds to different ports".to_owned();
            findings.push(at, "spec", Mistake::warning("kind-displaced", reason, remedy));
        }
    }
}

/// Reports a TCPRoute or TLSRoute, or one host name of a TLSRoute, that gets no connection because another route takes
/// precedence. `told` contains what was reported already, because the same may be found at several ports.
fn stream(
    findings: &mut Findings<'_>,
    told: &mut BTreeSet<(usize, String)>,
    shadowed: &StreamShadowed,
    (service, port): (&ServiceName, u16),
) {
    let Some(at) = findings.position(&key_of(&shadowed.route)) else { return };
    let path = match shadowed.hostname {
        Some(index) => format!("spec.hostnames[{index}]"),
        None => "spec".to_owned(),
    };
    if told.insert((at, path.clone())) {
        let by = key_of(&shadowed.by);
        let reason = format!(
            "no connection to port {port} of {service} follows this route: {by} \
             takes precedence"
        );
        let remedy = "the older route takes precedence, then the first by name: remove one of the \
                      two"
        .to_owned();
        findings.push(at, &path, Mistake::warning("routes-conflict", reason, remedy));
    }
}

fn key_of(route: &Route) -> ObjectKey {
    let kind = match route.kind {
        RouteKind::Tcp => Kind::TcpRoute,
        RouteKind::Tls => Kind::TlsRoute,
        RouteKind::Http => Kind::HttpRoute,
        RouteKind::Grpc => Kind::GrpcRoute,
    };
    ObjectKey { kind, namespace: route.namespace.to_string(), name: route.name.to_string() }
}

fn unreached(
    findings: &Findings<'_>,
    (rule, by): (&TableRule, &[(&TableRule, usize)]),
    (service, port): (&ServiceName, u16),
) -> Mistake {
    let mut named: Vec<String> = Vec::new();
    for (by, place) in by {
        let path = format!("spec.rules[{}].matches[{place}]", by.index());
        let written = findings.position(&key_of(by.route())).map(|at| findings.place(at, &path));
        let written = written.filter(|(file, _)| !file.is_empty());
        let written = written.map(|(file, place)| format!(" at {file}:{place}"));
        let one = format!("{by} match {place}{}", written.unwrap_or_default());
        if !named.contains(&one) {
            named.push(one);
        }
    }
    let take = if named.len() == 1 { "matches them all" } else { "match them all together" };
    let reason = format!(
        "no request to port {port} of {service} reaches this: {} {take}",
        named.join(" and ")
    );
    let same_route = |rule: &TableRule, by: &TableRule| key_of(rule.route()) == key_of(by.route());
    if by.iter().all(|(by, _)| same_route(rule, by)) {
        let remedy = "remove it, or make its match more specific".to_owned();
        return Mistake::warning("match-shadowed", reason, remedy);
    }
    let remedy = "the older route takes precedence, then the first by name: remove one of the two"
        .to_owned();
    Mistake::warning("routes-conflict", reason, remedy)
}
