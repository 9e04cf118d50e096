//! Checks the kinds of the Gateway API, in the same way as their CustomResourceDefinitions.

mod filter;
mod persistence;
mod stream;
mod tls;

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use leno_types::{check_label, check_subdomain};

pub(super) use stream::{tcp_route, tls_route};
pub(super) use tls::backend_tls_policy;

use super::kubernetes::metadata;
use super::{Check, Cursor, Name};
use crate::gateway::{
    BackendObject, BackendRef, GrpcMethodMatch, GrpcRoute, HeaderMatch, HttpRoute, HttpRouteMatch,
    HttpTimeouts, MatchType, ParentRef, PathMatch, PathMatchType, ReferenceGrant,
};

/// The largest number of parents of one route, as in the Gateway API.
const MAX_PARENTS: usize = 32;
/// The largest number of rules of one route, as in the Gateway API.
const MAX_RULES: usize = 16;
/// The largest number of matches of one rule, as in the Gateway API.
const MAX_MATCHES: usize = 64;
/// The largest number of headers or query parameters of one match, as in the Gateway API.
const MAX_CONDITIONS: usize = 16;
/// The largest number of backends of one rule, as in the Gateway API.
const MAX_BACKENDS: usize = 16;
/// The longest path, or regular expression for a path, in bytes, as in the Gateway API.
const MAX_PATH: usize = 1024;
/// The longest value of a header, or regular expression for a value, in bytes, as in the Gateway API.
const MAX_VALUE: usize = 4096;
/// The largest weight of a backend, as in the Gateway API.
const MAX_WEIGHT: i32 = 1_000_000;
/// The largest number of entries in either list of a grant, as in the Gateway API.
const MAX_GRANTS: usize = 16;
/// Methods that a match can require, as in the Gateway API.
const METHODS: [&str; 9] =
    ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];

/// Checks the fields that routes of all kinds have: metadata and parents. Returns the cursor of `spec`.
fn attached<'a>(
    check: &mut Check<'_>,
    at: &Cursor<'a>,
    metadata: &ObjectMeta,
    parents: Option<&[ParentRef]>,
) -> Cursor<'a> {
    self::metadata(check, at, metadata, Name::Subdomain);
    let spec = at.key("spec");
    self::parents(check, &spec, parents.unwrap_or_default());
    spec
}

pub(super) fn http_route(check: &mut Check<'_>, at: &Cursor<'_>, route: &HttpRoute) {
    let spec = attached(check, at, &route.metadata, route.spec.parent_refs.as_deref());
    let rules = route.spec.rules.as_deref().unwrap_or_default();
    let at = spec.key("rules");
    most(check, &at, rules.len(), MAX_RULES);
    rule_names(check, &at, rules.iter().map(|rule| rule.name.as_deref()));
    for (index, rule) in rules.iter().enumerate() {
        let at = at.index(index);
        let matches = rule.matches.as_deref().unwrap_or_default();
        most(check, &at.key("matches"), matches.len(), MAX_MATCHES);
        for (index, wanted) in matches.iter().enumerate() {
            http_match(check, &at.key("matches").index(index), wanted);
        }
        let filters = rule.filters.as_deref().unwrap_or_default();
        let prefix = matches.iter().all(|one| {
            let kind = one.path.as_ref().and_then(|path| path.kind);
            kind.is_none_or(|kind| kind == PathMatchType::PathPrefix)
        });
        let scope = filter::Scope { grpc: false, of_backend: false, prefix };
        filter::filters(check, &at.key("filters"), filters, scope);
        let backends = rule.backend_refs.as_deref().unwrap_or_default();
        self::backends(check, &at.key("backendRefs"), backends, scope);
        if let Some(timeouts) = &rule.timeouts {
            self::timeouts(check, &at.key("timeouts"), timeouts);
        }
        if let Some(retry) = &rule.retry {
            persistence::retry(check, &at.key("retry"), retry);
        }
        if let Some(session) = &rule.session_persistence {
            persistence::session(check, &at.key("sessionPersistence"), session);
        }
        let redirects = filters.iter().any(|filter| filter.request_redirect.is_some());
        if redirects && !backends.is_empty() {
            let at = at.key("backendRefs");
            check.fail(&at, "a rule that redirects sends nothing to a backend: leave them out");
        }
    }
}

pub(super) fn grpc_route(check: &mut Check<'_>, at: &Cursor<'_>, route: &GrpcRoute) {
    let spec = attached(check, at, &route.metadata, route.spec.parent_refs.as_deref());
    let rules = route.spec.rules.as_deref().unwrap_or_default();
    let at = spec.key("rules");
    most(check, &at, rules.len(), MAX_RULES);
    rule_names(check, &at, rules.iter().map(|rule| rule.name.as_deref()));
    for (index, rule) in rules.iter().enumerate() {
        let at = at.index(index);
        let matches = rule.matches.as_deref().unwrap_or_default();
        most(check, &at.key("matches"), matches.len(), MAX_MATCHES);
        for (index, wanted) in matches.iter().enumerate() {
            let at = at.key("matches").index(index);
            if let Some(method) = &wanted.method {
                grpc_method(check, &at.key("method"), method);
            }
            conditions(check, &at.key("headers"), wanted.headers.as_deref(), true);
        }
        if let Some(session) = &rule.session_persistence {
            persistence::session(check, &at.key("sessionPersistence"), session);
        }
        let scope = filter::Scope { grpc: true, of_backend: false, prefix: false };
        let filters = rule.filters.as_deref().unwrap_or_default();
        filter::filters(check, &at.key("filters"), filters, scope);
        let backends = rule.backend_refs.as_deref().unwrap_or_default();
        self::backends(check, &at.key("backendRefs"), backends, scope);
    }
}

pub(super) fn reference_grant(check: &mut Check<'_>, at: &Cursor<'_>, grant: &ReferenceGrant) {
    metadata(check, at, &grant.metadata, Name::Subdomain);
    let spec = at.key("spec");
    for (key, length) in [("from", grant.spec.from.len()), ("to", grant.spec.to.len())] {
        if length == 0 {
            check.fail(&spec.key(key), "is empty: a grant needs at least one entry");
        }
        most(check, &spec.key(key), length, MAX_GRANTS);
    }
    for (index, from) in grant.spec.from.iter().enumerate() {
        let at = spec.key("from").index(index);
        check.label(&at.key("namespace"), "namespace", &from.namespace);
    }
}

fn most(check: &mut Check<'_>, at: &Cursor<'_>, length: usize, bound: usize) {
    if length > bound {
        check.fail(at, format!("{length} are more than {bound}"));
    }
}

fn parents(check: &mut Check<'_>, spec: &Cursor<'_>, parents: &[ParentRef]) {
    let at = spec.key("parentRefs");
    most(check, &at, parents.len(), MAX_PARENTS);
    for (index, parent) in parents.iter().enumerate() {
        let at = at.index(index);
        if let Some(namespace) = &parent.namespace {
            check.label(&at.key("namespace"), "namespace", namespace);
        }
        if let Some(port) = parent.port {
            check.port(&at.key("port"), port);
        }
        if parent.kind.as_deref() == Some("Service") && !parent.is_service() {
            let reason = "a Service is of the core group: write group: \"\"";
            check.fail(&at.key("group"), reason);
        }
        let form = if parent.is_service() { Name::Label } else { Name::Subdomain };
        check.name(&at.key("name"), &parent.name, form);
    }
}

fn rule_names<'n>(
    check: &mut Check<'_>,
    at: &Cursor<'_>,
    names: impl Iterator<Item = Option<&'n str>>,
) {
    let mut seen = BTreeSet::new();
    for (index, name) in names.enumerate() {
        let Some(name) = name else { continue };
        let at = at.index(index).key("name");
        if let Err(error) = check_subdomain("rule name", name) {
            check.fail(&at, error.to_string());
        }
        if !seen.insert(name) {
            check.fail(&at, format!("{name:?} is used by an earlier rule"));
        }
    }
}

fn http_match(check: &mut Check<'_>, at: &Cursor<'_>, wanted: &HttpRouteMatch) {
    if let Some(path) = &wanted.path {
        self::path(check, &at.key("path"), path);
    }
    conditions(check, &at.key("headers"), wanted.headers.as_deref(), true);
    conditions(check, &at.key("queryParams"), wanted.query_params.as_deref(), false);
    if let Some(method) = &wanted.method
        && !METHODS.contains(&method.as_str())
    {
        let reason = format!("{method:?} is not one of {}", METHODS.join(", "));
        check.fail(&at.key("method"), reason);
    }
}

fn path(check: &mut Check<'_>, at: &Cursor<'_>, path: &PathMatch) {
    let Some(value) = &path.value else { return };
    let at = at.key("value");
    if value.len() > MAX_PATH {
        check.fail(&at, format!("{} bytes are more than {MAX_PATH}", value.len()));
    }
    if path.kind == Some(PathMatchType::RegularExpression) {
        return expression(check, &at, value);
    }
    if !value.starts_with('/') {
        check.fail(&at, format!("{value:?} is not a path: begin with /"));
    } else if let Some(bad) =
        ["//", "/./", "/../", "%2f", "%2F", "#"].iter().find(|bad| value.contains(**bad))
    {
        check.fail(&at, format!("a path to match holds no {bad}"));
    } else if value.ends_with("/..") || value.ends_with("/.") {
        check.fail(&at, "a path to match does not end with a dot");
    }
}

fn conditions(check: &mut Check<'_>, at: &Cursor<'_>, all: Option<&[HeaderMatch]>, header: bool) {
    let all = all.unwrap_or_default();
    most(check, at, all.len(), MAX_CONDITIONS);
    for (index, condition) in all.iter().enumerate() {
        let at = at.index(index);
        if header {
            filter::header_name(check, &at.key("name"), &condition.name);
        } else if condition.name.is_empty() {
            check.fail(&at.key("name"), "is empty");
        }
        let value = at.key("value");
        if condition.value.len() > MAX_VALUE {
            let reason = format!("{} bytes are more than {MAX_VALUE}", condition.value.len());
            check.fail(&value, reason);
        }
        if condition.kind == Some(MatchType::RegularExpression) {
            expression(check, &value, &condition.value);
        }
    }
}

fn grpc_method(check: &mut Check<'_>, at: &Cursor<'_>, method: &GrpcMethodMatch) {
    let given = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
    if !given(&method.service) && !given(&method.method) {
        check.fail(at, "names neither a service nor a method");
    }
    for (key, text) in [("service", &method.service), ("method", &method.method)] {
        let Some(text) = text else { continue };
        let at = at.key(key);
        if text.len() > MAX_PATH {
            check.fail(&at, format!("{} bytes are more than {MAX_PATH}", text.len()));
        }
        if method.kind == Some(MatchType::RegularExpression) {
            expression(check, &at, text);
        } else if text.contains('/') {
            check.fail(&at, format!("{text:?} holds a /: service and method are given apart"));
        }
    }
}

/// Compiles a regular expression in the same way as the proxy, so that the proxy never receives an expression that it
/// cannot compile.
fn expression(check: &mut Check<'_>, at: &Cursor<'_>, pattern: &str) {
    if let Err(error) = leno_policy::Pattern::new(pattern) {
        check.fail(at, error.to_string());
    }
}

fn backends(check: &mut Check<'_>, at: &Cursor<'_>, backends: &[BackendRef], scope: filter::Scope) {
    each_backend(check, at, backends, |check, at, backend| {
        let filters = backend.filters.as_deref().unwrap_or_default();
        filter::filters(check, at, filters, filter::Scope { of_backend: true, ..scope });
    });
}

/// Checks the backends of any kind of route. `filters` is the function that checks a backend's filters.
fn each_backend(
    check: &mut Check<'_>,
    at: &Cursor<'_>,
    backends: &[BackendRef],
    filters: impl Fn(&mut Check<'_>, &Cursor<'_>, &BackendRef),
) {
    most(check, at, backends.len(), MAX_BACKENDS);
    for (index, backend) in backends.iter().enumerate() {
        let at = at.index(index);
        self::backend(check, &at, &backend.object());
        if let Some(weight) = backend.weight
            && !(0..=MAX_WEIGHT).contains(&weight)
        {
            let reason = format!("{weight} is not a weight: use 0 to {MAX_WEIGHT}");
            check.fail(&at.key("weight"), reason);
        }
        filters(check, &at.key("filters"), backend);
    }
}

fn backend(check: &mut Check<'_>, at: &Cursor<'_>, backend: &BackendObject) {
    if let Some(namespace) = &backend.namespace {
        check.label(&at.key("namespace"), "namespace", namespace);
    }
    if let Some(port) = backend.port {
        check.port(&at.key("port"), port);
    }
    if backend.is_service() {
        if let Err(error) = check_label("service name", &backend.name) {
            check.fail(&at.key("name"), error.to_string());
        }
        if backend.port.is_none() {
            check.fail(&at.key("port"), "is missing: a Service is called on a port");
        }
    }
}

fn timeouts(check: &mut Check<'_>, at: &Cursor<'_>, timeouts: &HttpTimeouts) {
    if let (Some(request), Some(backend)) = (timeouts.request, timeouts.backend_request)
        && !request.0.is_zero()
        && backend > request
    {
        let reason = format!("{backend} is longer than the whole request may take, {request}");
        check.fail(&at.key("backendRequest"), reason);
    }
}
