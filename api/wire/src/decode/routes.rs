//! Decodes routes. A route with a field that this proxy does not know is rejected as a whole:
//! ignoring a condition or a filter would send requests to the wrong place.

use std::sync::Arc;
use std::time::Duration;

use leno_types::routes::{
    Cors, Filter, HeaderChanges, InvalidTarget, Mirror, PathChange, PathMatch, Redirect, Rewrite,
    Route, RouteBackend, RouteKind, RouteMatch, RouteRetry, RouteRule, RouteTarget, RouteTimeouts,
    SessionAffinity, TextMatch, ValueMatch,
};

use super::{DecodeError, bounded, port};
use crate::proto;

/// The largest number of routes of one service, and of entries of each list in a route. It is far above the Gateway
/// API's own bounds.
const MAX_LIST: usize = 10_000;

pub(super) fn routes(messages: Vec<proto::Route>) -> Result<Arc<[Arc<Route>]>, DecodeError> {
    let routes = list("routes", messages, |one| route(one).map(Arc::new))?;
    Ok(routes.into())
}

fn list<M, T>(
    field: &'static str,
    messages: Vec<M>,
    one: impl Fn(M) -> Result<T, DecodeError>,
) -> Result<Vec<T>, DecodeError> {
    bounded(field, messages.len(), MAX_LIST)?;
    messages.into_iter().map(one).collect()
}

fn route(message: proto::Route) -> Result<Route, DecodeError> {
    let kind = match proto::RouteKind::try_from(message.kind) {
        Ok(proto::RouteKind::Http) => RouteKind::Http,
        Ok(proto::RouteKind::Grpc) => RouteKind::Grpc,
        Ok(proto::RouteKind::Tls) => RouteKind::Tls,
        Ok(proto::RouteKind::Tcp) => RouteKind::Tcp,
        Err(_) => {
            return Err(DecodeError::Number {
                field: "kind of route",
                number: message.kind.into(),
            });
        }
    };
    Ok(Route {
        kind,
        namespace: message.namespace.into(),
        name: message.name.into(),
        created: message.created,
        ports: list("ports of a route", message.ports, port)?,
        hostnames: list("host names", message.hostnames, |name| Ok(name.into()))?,
        rules: list("rules", message.rules, rule)?,
    })
}

fn rule(message: proto::Rule) -> Result<RouteRule, DecodeError> {
    let timeout = |milliseconds: u64| match milliseconds {
        0 => None,
        some => Some(Duration::from_millis(some)),
    };
    Ok(RouteRule {
        name: text(message.name),
        matches: list("matches", message.matches, matched)?,
        filters: list("filters", message.filters, filter)?,
        backends: list("backends", message.backends, backend)?,
        timeouts: RouteTimeouts {
            request: timeout(message.request_timeout_ms),
            backend_request: timeout(message.backend_request_timeout_ms),
        },
        retry: match message.retry {
            None => None,
            Some(retry) => Some(RouteRetry {
                codes: list("codes of a retry", retry.codes, code)?,
                attempts: retry.attempts,
                backoff: timeout(retry.backoff_ms),
            }),
        },
        session: message.session.map(|session| SessionAffinity {
            name: session.name.into(),
            is_header: session.header,
            absolute: timeout(session.absolute_ms),
            idle: timeout(session.idle_ms),
            is_permanent: session.permanent,
        }),
    })
}

fn code(number: u32) -> Result<u16, DecodeError> {
    let wrong = || DecodeError::Number { field: "code of a retry", number: number.into() };
    u16::try_from(number).map_err(|_| wrong())
}

fn text(text: String) -> Option<Arc<str>> {
    (!text.is_empty()).then(|| text.into())
}

fn texts(field: &'static str, texts: Vec<String>) -> Result<Vec<Arc<str>>, DecodeError> {
    list(field, texts, |text| Ok(text.into()))
}

fn matched(message: proto::Match) -> Result<RouteMatch, DecodeError> {
    use proto::r#match::Path;
    let path = match message.path.ok_or(DecodeError::Missing("path of a match"))? {
        Path::Exact(path) => PathMatch::Exact(path.into()),
        Path::Prefix(path) => PathMatch::Prefix(path.into()),
        Path::Regex(pattern) => PathMatch::Regex(pattern.into()),
        Path::Grpc(grpc) => PathMatch::Grpc {
            service: grpc.service.map(text_match).transpose()?,
            method: grpc.method.map(text_match).transpose()?,
        },
    };
    Ok(RouteMatch {
        path,
        method: text(message.method),
        headers: list("headers of a match", message.headers, value_match)?,
        query: list("query parameters of a match", message.query, value_match)?,
    })
}

fn text_match(message: proto::TextMatch) -> Result<TextMatch, DecodeError> {
    use proto::text_match::Text;
    Ok(match message.text.ok_or(DecodeError::Missing("text to match"))? {
        Text::Exact(text) => TextMatch::Exact(text.into()),
        Text::Regex(pattern) => TextMatch::Regex(pattern.into()),
    })
}

fn value_match(message: proto::ValueMatch) -> Result<ValueMatch, DecodeError> {
    let value = message.value.ok_or(DecodeError::Missing("value to match"))?;
    Ok(ValueMatch { name: message.name.into(), value: text_match(value)? })
}

fn filter(message: proto::Filter) -> Result<Filter, DecodeError> {
    use proto::filter::Kind;
    Ok(match message.kind.ok_or(DecodeError::Missing("kind of a filter"))? {
        Kind::RequestHeaders(changes) => Filter::RequestHeaders(header_changes(changes)?),
        Kind::ResponseHeaders(changes) => Filter::ResponseHeaders(header_changes(changes)?),
        Kind::Redirect(message) => Filter::Redirect(redirect(message)?),
        Kind::Rewrite(message) => Filter::Rewrite(Rewrite {
            hostname: text(message.hostname),
            path: message.path.map(path_change).transpose()?,
        }),
        Kind::Mirror(message) => {
            if message.denominator == 0 {
                return Err(DecodeError::Number { field: "denominator", number: 0 });
            }
            Filter::Mirror(Mirror {
                target: target(message.target)?,
                numerator: message.numerator,
                denominator: message.denominator,
            })
        }
        Kind::Cors(message) => Filter::Cors(Cors {
            origins: texts("origins", message.origins)?,
            credentials: message.credentials,
            methods: texts("methods", message.methods)?,
            headers: texts("headers", message.headers)?,
            exposed: texts("exposed headers", message.exposed)?,
            max_age_s: message.max_age_s,
        }),
    })
}

fn header_changes(message: proto::HeaderChanges) -> Result<HeaderChanges, DecodeError> {
    let header = |header: proto::Header| Ok((header.name.into(), header.value.into()));
    Ok(HeaderChanges {
        set: list("headers to set", message.set, header)?,
        add: list("headers to add", message.add, header)?,
        remove: texts("headers to remove", message.remove)?,
    })
}

fn path_change(message: proto::PathChange) -> Result<PathChange, DecodeError> {
    use proto::path_change::Path;
    Ok(match message.path.ok_or(DecodeError::Missing("another path"))? {
        Path::Full(path) => PathChange::Full(path.into()),
        Path::Prefix(path) => PathChange::Prefix(path.into()),
    })
}

fn redirect(message: proto::Redirect) -> Result<Redirect, DecodeError> {
    let status = u16::try_from(message.status).ok().filter(|status| (300..400).contains(status));
    let wrong =
        || DecodeError::Number { field: "status of a redirection", number: message.status.into() };
    Ok(Redirect {
        status: status.ok_or_else(wrong)?,
        scheme: text(message.scheme),
        hostname: text(message.hostname),
        path: message.path.map(path_change).transpose()?,
        port: match message.port {
            0 => None,
            number => Some(port(number)?),
        },
    })
}

fn backend(message: proto::Backend) -> Result<RouteBackend, DecodeError> {
    Ok(RouteBackend {
        target: target(message.target)?,
        weight: message.weight,
        filters: list("filters of a backend", message.filters, filter)?,
    })
}

fn target(message: Option<proto::Target>) -> Result<RouteTarget, DecodeError> {
    let message = message.ok_or(DecodeError::Missing("target"))?;
    if !message.service.is_empty() {
        return Ok(RouteTarget::Service {
            name: message.service.parse()?,
            port: port(message.port)?,
        });
    }
    Ok(RouteTarget::Invalid(match proto::InvalidTarget::try_from(message.invalid) {
        Ok(proto::InvalidTarget::NoSuchPort) => InvalidTarget::NoSuchPort,
        Ok(proto::InvalidTarget::NotGranted) => InvalidTarget::NotGranted,
        Ok(proto::InvalidTarget::Kind) => InvalidTarget::Kind,
        Ok(proto::InvalidTarget::NotFound | proto::InvalidTarget::Unspecified) | Err(_) => {
            InvalidTarget::NotFound
        }
    }))
}
