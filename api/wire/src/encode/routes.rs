//! Encodes routes.

use std::sync::Arc;
use std::time::Duration;

use leno_types::routes::{
    Cors, Filter, HeaderChanges, InvalidTarget, PathChange, PathMatch, Redirect, Rewrite, Route,
    RouteBackend, RouteKind, RouteMatch, RouteRule, RouteTarget, TextMatch, ValueMatch,
};

use crate::proto;

pub(super) fn route(route: &Arc<Route>) -> proto::Route {
    let kind = match route.kind {
        RouteKind::Http => proto::RouteKind::Http,
        RouteKind::Grpc => proto::RouteKind::Grpc,
        RouteKind::Tls => proto::RouteKind::Tls,
        RouteKind::Tcp => proto::RouteKind::Tcp,
    };
    proto::Route {
        kind: kind.into(),
        namespace: route.namespace.to_string(),
        name: route.name.to_string(),
        created: route.created,
        ports: route.ports.iter().map(|port| u32::from(*port)).collect(),
        rules: route.rules.iter().map(rule).collect(),
        hostnames: texts(&route.hostnames),
    }
}

fn rule(rule: &RouteRule) -> proto::Rule {
    proto::Rule {
        name: text(rule.name.as_ref()),
        matches: rule.matches.iter().map(matched).collect(),
        filters: rule.filters.iter().map(filter).collect(),
        backends: rule.backends.iter().map(backend).collect(),
        request_timeout_ms: milliseconds(rule.timeouts.request),
        backend_request_timeout_ms: milliseconds(rule.timeouts.backend_request),
        retry: rule.retry.as_ref().map(|retry| proto::RuleRetry {
            codes: retry.codes.iter().map(|code| u32::from(*code)).collect(),
            attempts: retry.attempts,
            backoff_ms: milliseconds(retry.backoff),
        }),
        session: rule.session.as_ref().map(|session| proto::Session {
            name: session.name.to_string(),
            header: session.is_header,
            absolute_ms: milliseconds(session.absolute),
            idle_ms: milliseconds(session.idle),
            permanent: session.is_permanent,
        }),
    }
}

/// In milliseconds; a timeout below a millisecond becomes one millisecond.
fn milliseconds(timeout: Option<Duration>) -> u64 {
    timeout.map_or(0, |time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1))
}

fn text(text: Option<&Arc<str>>) -> String {
    text.map(ToString::to_string).unwrap_or_default()
}

fn texts(texts: &[Arc<str>]) -> Vec<String> {
    texts.iter().map(ToString::to_string).collect()
}

fn matched(wanted: &RouteMatch) -> proto::Match {
    use proto::r#match::Path;
    let path = match &wanted.path {
        PathMatch::Exact(path) => Path::Exact(path.to_string()),
        PathMatch::Prefix(path) => Path::Prefix(path.to_string()),
        PathMatch::Regex(pattern) => Path::Regex(pattern.to_string()),
        PathMatch::Grpc { service, method } => Path::Grpc(proto::GrpcMethod {
            service: service.as_ref().map(text_match),
            method: method.as_ref().map(text_match),
        }),
    };
    proto::Match {
        path: Some(path),
        method: text(wanted.method.as_ref()),
        headers: wanted.headers.iter().map(value_match).collect(),
        query: wanted.query.iter().map(value_match).collect(),
    }
}

fn text_match(wanted: &TextMatch) -> proto::TextMatch {
    use proto::text_match::Text;
    let text = match wanted {
        TextMatch::Exact(text) => Text::Exact(text.to_string()),
        TextMatch::Regex(pattern) => Text::Regex(pattern.to_string()),
    };
    proto::TextMatch { text: Some(text) }
}

fn value_match(wanted: &ValueMatch) -> proto::ValueMatch {
    proto::ValueMatch { name: wanted.name.to_string(), value: Some(text_match(&wanted.value)) }
}

fn filter(filter: &Filter) -> proto::Filter {
    use proto::filter::Kind;
    let kind = match filter {
        Filter::RequestHeaders(changes) => Kind::RequestHeaders(header_changes(changes)),
        Filter::ResponseHeaders(changes) => Kind::ResponseHeaders(header_changes(changes)),
        Filter::Redirect(redirect) => Kind::Redirect(self::redirect(redirect)),
        Filter::Rewrite(rewrite) => Kind::Rewrite(self::rewrite(rewrite)),
        Filter::Mirror(mirror) => Kind::Mirror(proto::Mirror {
            target: Some(target(&mirror.target)),
            numerator: mirror.numerator,
            denominator: mirror.denominator,
        }),
        Filter::Cors(cors) => Kind::Cors(self::cors(cors)),
    };
    proto::Filter { kind: Some(kind) }
}

fn header_changes(changes: &HeaderChanges) -> proto::HeaderChanges {
    let header = |(name, value): &(Arc<str>, Arc<str>)| proto::Header {
        name: name.to_string(),
        value: value.to_string(),
    };
    proto::HeaderChanges {
        set: changes.set.iter().map(header).collect(),
        add: changes.add.iter().map(header).collect(),
        remove: texts(&changes.remove),
    }
}

fn path_change(change: &PathChange) -> proto::PathChange {
    use proto::path_change::Path;
    let path = match change {
        PathChange::Full(path) => Path::Full(path.to_string()),
        PathChange::Prefix(path) => Path::Prefix(path.to_string()),
    };
    proto::PathChange { path: Some(path) }
}

fn redirect(redirect: &Redirect) -> proto::Redirect {
    proto::Redirect {
        scheme: text(redirect.scheme.as_ref()),
        hostname: text(redirect.hostname.as_ref()),
        path: redirect.path.as_ref().map(path_change),
        port: redirect.port.unwrap_or(0).into(),
        status: redirect.status.into(),
    }
}

fn rewrite(rewrite: &Rewrite) -> proto::Rewrite {
    proto::Rewrite {
        hostname: text(rewrite.hostname.as_ref()),
        path: rewrite.path.as_ref().map(path_change),
    }
}

fn cors(cors: &Cors) -> proto::Cors {
    proto::Cors {
        origins: texts(&cors.origins),
        credentials: cors.credentials,
        methods: texts(&cors.methods),
        headers: texts(&cors.headers),
        exposed: texts(&cors.exposed),
        max_age_s: cors.max_age_s,
    }
}

fn backend(backend: &RouteBackend) -> proto::Backend {
    proto::Backend {
        target: Some(target(&backend.target)),
        weight: backend.weight,
        filters: backend.filters.iter().map(filter).collect(),
    }
}

fn target(target: &RouteTarget) -> proto::Target {
    match target {
        RouteTarget::Service { name, port } => proto::Target {
            service: name.to_string(),
            port: (*port).into(),
            ..proto::Target::default()
        },
        RouteTarget::Invalid(reason) => {
            let reason = match reason {
                InvalidTarget::NotFound => proto::InvalidTarget::NotFound,
                InvalidTarget::NoSuchPort => proto::InvalidTarget::NoSuchPort,
                InvalidTarget::NotGranted => proto::InvalidTarget::NotGranted,
                InvalidTarget::Kind => proto::InvalidTarget::Kind,
            };
            proto::Target { invalid: reason.into(), ..proto::Target::default() }
        }
    }
}
