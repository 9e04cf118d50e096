//! Converts routes and grants to rows.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use leno_resources::Duration;
use leno_resources::gateway::{
    BackendObject, BackendRef, CookieLifetime, CorsFilter, GATEWAY_GROUP, GrpcRoute,
    GrpcRouteMatch, HeaderFilter, HeaderMatch, HttpRetry, HttpRoute, HttpRouteMatch, HttpTimeouts,
    MatchType, MirrorFilter, ParentRef, PathMatchType, PathModifier, PathModifierType,
    RedirectFilter, ReferenceGrant, RouteFilter, SessionPersistence, SessionPersistenceType,
    StreamRule, TcpRoute, TlsRoute,
};
use leno_types::ServiceName;
use leno_types::routes::{
    Cors, Filter, HeaderChanges, InvalidTarget, Mirror, PathChange, PathMatch, Redirect, Rewrite,
    Route, RouteBackend, RouteKind, RouteMatch, RouteRetry, RouteRule, RouteTarget, RouteTimeouts,
    SessionAffinity, TextMatch, ValueMatch,
};

/// How long browsers may cache a CORS preflight, in seconds, if the route does not set it: the
/// Gateway API's default.
const DEFAULT_MAX_AGE_S: u32 = 5;

/// The default name of a session's cookie or header.
const SESSION_NAME: &str = "leno-session";

/// A route that attaches to services.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RouteRow {
    pub(crate) parents: Vec<ParentRow>,
    /// The route, before it is built for one of its services. Its targets are the references as written, which may
    /// not exist.
    pub(crate) route: Route,
}

/// A service to which a route attaches, or ports of it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ParentRow {
    pub(crate) service: ServiceName,
    pub(crate) port: Option<u16>,
    /// The name of a port.
    pub(crate) section: Option<String>,
}

/// Which references a namespace permits to routes of other namespaces.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct GrantRow {
    /// The kinds of routes that are permitted, and their namespaces.
    from: Vec<(RouteKind, String)>,
    /// The services to which they may refer; `None` stands for all services.
    to: Vec<Option<String>>,
}

impl GrantRow {
    /// Whether routes of a kind in a namespace may refer to a service.
    pub(crate) fn allows(&self, kind: RouteKind, namespace: &str, service: &str) -> bool {
        self.from.iter().any(|(of, from)| *of == kind && from == namespace)
            && self.to.iter().any(|name| name.as_deref().is_none_or(|name| name == service))
    }
}

impl RouteRow {
    /// The services to which the route refers, one item for each reference.
    pub(crate) fn targets(&self) -> impl Iterator<Item = &ServiceName> {
        let targets = self.route.rules.iter().flat_map(targets_of);
        targets.filter_map(|target| match target {
            RouteTarget::Service { name, .. } => Some(name),
            RouteTarget::Invalid(_) => None,
        })
    }
}

fn targets_of(rule: &RouteRule) -> impl Iterator<Item = &RouteTarget> {
    let of_backends = rule
        .backends
        .iter()
        .flat_map(|backend| mirrored(&backend.filters).chain(std::iter::once(&backend.target)));
    mirrored(&rule.filters).chain(of_backends)
}

fn mirrored(filters: &[Filter]) -> impl Iterator<Item = &RouteTarget> {
    filters.iter().filter_map(|filter| match filter {
        Filter::Mirror(mirror) => Some(&mirror.target),
        _ => None,
    })
}

/// The row of an `HTTPRoute`; `None` if it attaches to no service.
pub(crate) fn http(object: &HttpRoute) -> Option<RouteRow> {
    let namespace = object.metadata.namespace.as_deref()?;
    let rules = object.spec.rules.as_deref().map_or_else(
        || vec![RouteRule::default()],
        |rules| {
            let rule = |rule: &leno_resources::gateway::HttpRouteRule| RouteRule {
                name: rule.name.as_deref().map(Into::into),
                matches: rule.matches.iter().flatten().map(http_match).collect(),
                filters: filters(rule.filters.as_deref(), namespace),
                backends: backends(rule.backend_refs.as_deref(), namespace),
                timeouts: rule.timeouts.as_ref().map(timeouts).unwrap_or_default(),
                retry: rule.retry.as_ref().map(retry),
                session: rule.session_persistence.as_ref().map(session),
            };
            rules.iter().map(rule).collect()
        },
    );
    row(RouteKind::Http, &object.metadata, object.spec.parent_refs.as_deref(), rules)
}

/// The row of a `GRPCRoute`; `None` if it attaches to no service.
pub(crate) fn grpc(object: &GrpcRoute) -> Option<RouteRow> {
    let namespace = object.metadata.namespace.as_deref()?;
    let rules = object.spec.rules.as_deref().map_or_else(
        || vec![RouteRule::default()],
        |rules| {
            let rule = |rule: &leno_resources::gateway::GrpcRouteRule| RouteRule {
                name: rule.name.as_deref().map(Into::into),
                matches: rule.matches.iter().flatten().map(grpc_match).collect(),
                filters: filters(rule.filters.as_deref(), namespace),
                backends: backends(rule.backend_refs.as_deref(), namespace),
                session: rule.session_persistence.as_ref().map(session),
                ..RouteRule::default()
            };
            rules.iter().map(rule).collect()
        },
    );
    row(RouteKind::Grpc, &object.metadata, object.spec.parent_refs.as_deref(), rules)
}

/// The row of a `TLSRoute`; `None` if it attaches to no service.
pub(crate) fn tls(object: &TlsRoute) -> Option<RouteRow> {
    let namespace = object.metadata.namespace.as_deref()?;
    let rules = stream_rules(&object.spec.rules, namespace);
    let parents = object.spec.parent_refs.as_deref();
    let mut row = row(RouteKind::Tls, &object.metadata, parents, rules)?;
    let names = object.spec.hostnames.iter();
    row.route.hostnames = names.map(|name| name.to_ascii_lowercase().into()).collect();
    Some(row)
}

/// The row of a `TCPRoute`; `None` if it attaches to no service.
pub(crate) fn tcp(object: &TcpRoute) -> Option<RouteRow> {
    let namespace = object.metadata.namespace.as_deref()?;
    let rules = stream_rules(&object.spec.rules, namespace);
    row(RouteKind::Tcp, &object.metadata, object.spec.parent_refs.as_deref(), rules)
}

fn stream_rules(rules: &[StreamRule], namespace: &str) -> Vec<RouteRule> {
    let rule = |rule: &StreamRule| RouteRule {
        name: rule.name.as_deref().map(Into::into),
        backends: backends(Some(&rule.backend_refs), namespace),
        ..RouteRule::default()
    };
    rules.iter().map(rule).collect()
}

/// Converts a grant. Also returns the namespace to which it permits references. `None` if the grant does not
/// concern services.
pub(crate) fn grant(object: &ReferenceGrant) -> Option<(String, GrantRow)> {
    let from = object.spec.from.iter().filter(|from| from.group == GATEWAY_GROUP);
    let from = from.filter_map(|from| match from.kind.as_str() {
        "HTTPRoute" => Some((RouteKind::Http, from.namespace.clone())),
        "GRPCRoute" => Some((RouteKind::Grpc, from.namespace.clone())),
        "TLSRoute" => Some((RouteKind::Tls, from.namespace.clone())),
        "TCPRoute" => Some((RouteKind::Tcp, from.namespace.clone())),
        _ => None,
    });
    let services = |to: &&leno_resources::gateway::GrantTo| {
        matches!(to.group.as_str(), "" | "core") && to.kind == "Service"
    };
    let to = object
        .spec
        .to
        .iter()
        .filter(services)
        .map(|to| to.name.clone().filter(|name| !name.is_empty()));
    Some((object.metadata.namespace.clone()?, GrantRow { from: from.collect(), to: to.collect() }))
}

fn row(
    kind: RouteKind,
    metadata: &ObjectMeta,
    parents: Option<&[ParentRef]>,
    rules: Vec<RouteRule>,
) -> Option<RouteRow> {
    let namespace = metadata.namespace.as_deref()?;
    let parent = |parent: &ParentRef| {
        let of = parent.namespace.as_deref().unwrap_or(namespace);
        let port = match parent.port {
            None => None,
            Some(port) => Some(super::port_number(port)?),
        };
        let service = ServiceName::new(of, &parent.name).ok()?;
        Some(ParentRow { service, port, section: parent.section_name.clone() })
    };
    let services = parents.unwrap_or_default().iter().filter(|parent| parent.is_service());
    let parents: Vec<_> = services.filter_map(parent).collect();
    let created = metadata.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second());
    let route = Route {
        kind,
        namespace: namespace.into(),
        name: metadata.name.as_deref()?.into(),
        created: u64::try_from(created).unwrap_or(0),
        ports: Vec::new(),
        hostnames: Vec::new(),
        rules,
    };
    (!parents.is_empty()).then_some(RouteRow { parents, route })
}

fn http_match(wanted: &HttpRouteMatch) -> RouteMatch {
    let path = wanted.path.as_ref().map(|path| {
        let value: Arc<str> = path.value.as_deref().unwrap_or("/").into();
        match path.kind {
            Some(PathMatchType::Exact) => PathMatch::Exact(value),
            Some(PathMatchType::RegularExpression) => PathMatch::Regex(value),
            Some(PathMatchType::PathPrefix) | None => PathMatch::Prefix(value),
        }
    });
    RouteMatch {
        path: path.unwrap_or_default(),
        method: wanted.method.as_deref().map(Into::into),
        headers: wanted.headers.iter().flatten().map(value_match).collect(),
        query: wanted.query_params.iter().flatten().map(value_match).collect(),
    }
}

fn grpc_match(wanted: &GrpcRouteMatch) -> RouteMatch {
    let kind = wanted.method.as_ref().and_then(|method| method.kind);
    let part = |text: Option<&String>| {
        text.filter(|text| !text.is_empty()).map(|text| text_match(kind, text))
    };
    let method = wanted.method.as_ref();
    RouteMatch {
        path: PathMatch::Grpc {
            service: part(method.and_then(|method| method.service.as_ref())),
            method: part(method.and_then(|method| method.method.as_ref())),
        },
        headers: wanted.headers.iter().flatten().map(value_match).collect(),
        ..RouteMatch::default()
    }
}

fn retry(wanted: &HttpRetry) -> RouteRetry {
    RouteRetry {
        codes: wanted.codes.clone().unwrap_or_default(),
        attempts: wanted.attempts,
        backoff: wanted.backoff.map(|backoff| backoff.0),
    }
}

fn session(wanted: &SessionPersistence) -> SessionAffinity {
    let lifetime = wanted.cookie_config.and_then(|config| config.lifetime_type);
    SessionAffinity {
        name: wanted.session_name.as_deref().unwrap_or(SESSION_NAME).into(),
        is_header: wanted.kind == Some(SessionPersistenceType::Header),
        absolute: wanted.absolute_timeout.map(|timeout| timeout.0),
        idle: wanted.idle_timeout.map(|timeout| timeout.0),
        is_permanent: lifetime == Some(CookieLifetime::Permanent),
    }
}

fn value_match(wanted: &HeaderMatch) -> ValueMatch {
    ValueMatch { name: wanted.name.as_str().into(), value: text_match(wanted.kind, &wanted.value) }
}

fn text_match(kind: Option<MatchType>, text: &str) -> TextMatch {
    match kind {
        Some(MatchType::RegularExpression) => TextMatch::Regex(text.into()),
        Some(MatchType::Exact) | None => TextMatch::Exact(text.into()),
    }
}

fn timeouts(timeouts: &HttpTimeouts) -> RouteTimeouts {
    let some = |time: Option<Duration>| time.map(|time| time.0).filter(|time| !time.is_zero());
    RouteTimeouts {
        request: some(timeouts.request),
        backend_request: some(timeouts.backend_request),
    }
}

fn backends(backends: Option<&[BackendRef]>, namespace: &str) -> Vec<RouteBackend> {
    let backend = |backend: &BackendRef| RouteBackend {
        target: target(&backend.object(), namespace),
        weight: backend.weight.map_or(1, |weight| u32::try_from(weight).unwrap_or(0)),
        filters: filters(backend.filters.as_deref(), namespace),
    };
    backends.unwrap_or_default().iter().map(backend).collect()
}

fn target(object: &BackendObject, namespace: &str) -> RouteTarget {
    if !object.is_service() {
        return RouteTarget::Invalid(InvalidTarget::Kind);
    }
    let of = object.namespace.as_deref().unwrap_or(namespace);
    match (ServiceName::new(of, &object.name), object.port.and_then(super::port_number)) {
        (Ok(name), Some(port)) => RouteTarget::Service { name, port },
        (Ok(_), None) => RouteTarget::Invalid(InvalidTarget::NoSuchPort),
        (Err(_), _) => RouteTarget::Invalid(InvalidTarget::NotFound),
    }
}

fn filters(filters: Option<&[RouteFilter]>, namespace: &str) -> Vec<Filter> {
    filters.unwrap_or_default().iter().flat_map(|filter| self::filter(filter, namespace)).collect()
}

/// Converts a filter. Validation has checked that the field that is set matches the declared type.
fn filter(filter: &RouteFilter, namespace: &str) -> Vec<Filter> {
    let of = [
        filter.request_header_modifier.as_ref().map(header_changes).map(Filter::RequestHeaders),
        filter.response_header_modifier.as_ref().map(header_changes).map(Filter::ResponseHeaders),
        filter.request_mirror.as_ref().map(|one| Filter::Mirror(mirror(one, namespace))),
        filter.request_redirect.as_ref().map(redirect).map(Filter::Redirect),
        filter.url_rewrite.as_ref().map(|rewrite| {
            let hostname = rewrite.hostname.as_deref().map(Into::into);
            Filter::Rewrite(Rewrite { hostname, path: rewrite.path.as_ref().map(path_change) })
        }),
        filter.cors.as_ref().map(cors).map(Filter::Cors),
    ];
    of.into_iter().flatten().collect()
}

fn header_changes(filter: &HeaderFilter) -> HeaderChanges {
    let list = |list: &Option<Vec<leno_resources::gateway::Header>>| {
        let headers = list.iter().flatten();
        headers.map(|one| (one.name.as_str().into(), one.value.as_str().into())).collect()
    };
    let remove = filter.remove.iter().flatten().map(|name| name.as_str().into()).collect();
    HeaderChanges { set: list(&filter.set), add: list(&filter.add), remove }
}

fn mirror(filter: &MirrorFilter, namespace: &str) -> Mirror {
    let number = |number: i32| u32::try_from(number).unwrap_or(0);
    let (numerator, denominator) = match (filter.percent, filter.fraction) {
        (Some(percent), _) => (number(percent), 100),
        (None, Some(fraction)) => {
            (number(fraction.numerator), number(fraction.denominator.unwrap_or(100)).max(1))
        }
        (None, None) => (1, 1),
    };
    Mirror { target: target(&filter.backend_ref, namespace), numerator, denominator }
}

fn redirect(filter: &RedirectFilter) -> Redirect {
    Redirect {
        scheme: filter.scheme.as_deref().map(Into::into),
        hostname: filter.hostname.as_deref().map(Into::into),
        path: filter.path.as_ref().map(path_change),
        port: filter.port.and_then(super::port_number),
        status: filter.status_code.and_then(|status| u16::try_from(status).ok()).unwrap_or(302),
    }
}

fn path_change(change: &PathModifier) -> PathChange {
    let text = |text: &Option<String>| text.as_deref().unwrap_or_default().into();
    match change.kind {
        PathModifierType::ReplaceFullPath => PathChange::Full(text(&change.replace_full_path)),
        PathModifierType::ReplacePrefixMatch => {
            PathChange::Prefix(text(&change.replace_prefix_match))
        }
    }
}

fn cors(filter: &CorsFilter) -> Cors {
    let list = |list: &Option<Vec<String>>| -> Vec<Arc<str>> {
        list.iter().flatten().map(|one| one.as_str().into()).collect()
    };
    let max_age = filter.max_age.and_then(|age| u32::try_from(age).ok());
    Cors {
        origins: list(&filter.allow_origins),
        credentials: filter.allow_credentials.unwrap_or(false),
        methods: list(&filter.allow_methods),
        headers: list(&filter.allow_headers),
        exposed: list(&filter.expose_headers),
        max_age_s: max_age.filter(|age| *age > 0).unwrap_or(DEFAULT_MAX_AGE_S),
    }
}
