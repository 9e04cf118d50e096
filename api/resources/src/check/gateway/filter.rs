//! Checks filters: each must have the field that its type names, and it must be possible to combine the filters.

use leno_policy::is_field_name;
use leno_types::check_subdomain;

use super::{Check, Cursor, MAX_PATH, MAX_VALUE, backend, most};
use crate::gateway::{
    CorsFilter, FilterType, HeaderFilter, MirrorFilter, PathModifier, PathModifierType,
    RedirectFilter, RouteFilter,
};

/// The largest number of filters of one rule or backend, as in the Gateway API.
const MAX_FILTERS: usize = 16;
/// The largest number of headers in one list of a modifier, as in the Gateway API.
const MAX_HEADERS: usize = 16;
/// The largest number of entries in one list of a CORS filter, as in the Gateway API.
const MAX_CORS: usize = 64;
/// Headers that frame a message or control a connection; no filter may change them.
const FRAMING: [&str; 3] = ["connection", "content-length", "transfer-encoding"];
/// Statuses of redirections in the Gateway API.
const REDIRECTS: [i32; 5] = [301, 302, 303, 307, 308];

/// Where a list of filters is written.
#[derive(Clone, Copy)]
pub(super) struct Scope {
    /// Whether the list is in a `GRPCRoute`.
    pub(super) grpc: bool,
    /// Whether the list belongs to one backend of a rule.
    pub(super) of_backend: bool,
    /// Whether all matches of the rule are by path prefix.
    pub(super) prefix: bool,
}

pub(super) fn filters(
    check: &mut Check<'_>,
    at: &Cursor<'_>,
    filters: &[RouteFilter],
    scope: Scope,
) {
    most(check, at, filters.len(), MAX_FILTERS);
    let of = |kind: FilterType| filters.iter().filter(move |filter| filter.kind == kind).count();
    for kind in [
        FilterType::RequestHeaderModifier,
        FilterType::ResponseHeaderModifier,
        FilterType::RequestRedirect,
        FilterType::UrlRewrite,
        FilterType::Cors,
    ] {
        if of(kind) > 1 {
            check.fail(at, format!("{} is there more than once", name(kind)));
        }
    }
    if of(FilterType::RequestRedirect) > 0 && of(FilterType::UrlRewrite) > 0 {
        check.fail(at, "RequestRedirect and URLRewrite exclude each other: keep one");
    }
    for (index, filter) in filters.iter().enumerate() {
        let at = at.index(index);
        let only_http = matches!(
            filter.kind,
            FilterType::RequestRedirect | FilterType::UrlRewrite | FilterType::Cors
        );
        if scope.grpc && only_http {
            let reason = format!("{} is not a filter of a GRPCRoute", name(filter.kind));
            check.fail(&at.key("type"), reason);
        }
        if scope.of_backend && filter.kind == FilterType::RequestRedirect {
            let reason = "a redirect is decided before a backend is chosen: put it on the rule";
            check.fail(&at.key("type"), reason);
        }
        if scope.of_backend && filter.kind == FilterType::Cors {
            let reason = "CORS is decided before a backend is chosen: put it on the rule";
            check.fail(&at.key("type"), reason);
        }
        self::filter(check, &at, filter, scope);
    }
}

/// Checks that `name` is a valid header name (RFC 9110 section 5.1).
pub(super) fn header_name(check: &mut Check<'_>, at: &Cursor<'_>, name: &str) {
    if !is_field_name(name) {
        check.fail(at, format!("{name:?} is not the name of a header"));
    }
}

fn name(kind: FilterType) -> &'static str {
    match kind {
        FilterType::RequestHeaderModifier => "RequestHeaderModifier",
        FilterType::ResponseHeaderModifier => "ResponseHeaderModifier",
        FilterType::RequestMirror => "RequestMirror",
        FilterType::RequestRedirect => "RequestRedirect",
        FilterType::UrlRewrite => "URLRewrite",
        FilterType::Cors => "CORS",
    }
}

/// Checks that exactly the field named by the type is set, and checks its value.
fn filter(check: &mut Check<'_>, at: &Cursor<'_>, filter: &RouteFilter, scope: Scope) {
    let fields = [
        ("requestHeaderModifier", filter.request_header_modifier.is_some()),
        ("responseHeaderModifier", filter.response_header_modifier.is_some()),
        ("requestMirror", filter.request_mirror.is_some()),
        ("requestRedirect", filter.request_redirect.is_some()),
        ("urlRewrite", filter.url_rewrite.is_some()),
        ("cors", filter.cors.is_some()),
    ];
    let own = match filter.kind {
        FilterType::RequestHeaderModifier => "requestHeaderModifier",
        FilterType::ResponseHeaderModifier => "responseHeaderModifier",
        FilterType::RequestMirror => "requestMirror",
        FilterType::RequestRedirect => "requestRedirect",
        FilterType::UrlRewrite => "urlRewrite",
        FilterType::Cors => "cors",
    };
    for (field, given) in fields {
        if field == own && !given {
            check.fail(at, format!("{own} is missing, which a {} needs", name(filter.kind)));
        } else if field != own && given {
            let reason = format!("does not belong to a {}", name(filter.kind));
            check.fail(&at.key(field), reason);
        }
    }
    if let Some(headers) = &filter.request_header_modifier {
        self::headers(check, &at.key("requestHeaderModifier"), headers);
    }
    if let Some(headers) = &filter.response_header_modifier {
        self::headers(check, &at.key("responseHeaderModifier"), headers);
    }
    if let Some(mirror) = &filter.request_mirror {
        self::mirror(check, &at.key("requestMirror"), mirror);
    }
    if let Some(redirect) = &filter.request_redirect {
        self::redirect(check, &at.key("requestRedirect"), redirect, scope);
    }
    if let Some(rewrite) = &filter.url_rewrite {
        let at = at.key("urlRewrite");
        hostname(check, &at, rewrite.hostname.as_deref());
        if let Some(path) = &rewrite.path {
            self::path(check, &at.key("path"), path, scope);
        }
    }
    if let Some(cors) = &filter.cors {
        self::cors(check, &at.key("cors"), cors);
    }
}

fn headers(check: &mut Check<'_>, at: &Cursor<'_>, headers: &HeaderFilter) {
    for (key, list) in [("set", &headers.set), ("add", &headers.add)] {
        let list = list.as_deref().unwrap_or_default();
        let at = at.key(key);
        most(check, &at, list.len(), MAX_HEADERS);
        for (index, header) in list.iter().enumerate() {
            let at = at.index(index);
            changed(check, &at.key("name"), &header.name);
            let good = header.value.bytes().all(|b| b == b'\t' || (0x20..0x7f).contains(&b));
            if !good || header.value.len() > MAX_VALUE {
                let reason = format!("is not a header's value: at most {MAX_VALUE} of ASCII");
                check.fail(&at.key("value"), reason);
            }
        }
    }
    let remove = headers.remove.as_deref().unwrap_or_default();
    most(check, &at.key("remove"), remove.len(), MAX_HEADERS);
    for (index, name) in remove.iter().enumerate() {
        changed(check, &at.key("remove").index(index), name);
    }
}

fn changed(check: &mut Check<'_>, at: &Cursor<'_>, name: &str) {
    header_name(check, at, name);
    if FRAMING.iter().any(|framing| name.eq_ignore_ascii_case(framing)) {
        check.fail(at, format!("{name} delimits a message and cannot be changed: remove it"));
    }
}

fn mirror(check: &mut Check<'_>, at: &Cursor<'_>, mirror: &MirrorFilter) {
    backend(check, &at.key("backendRef"), &mirror.backend_ref);
    if mirror.percent.is_some() && mirror.fraction.is_some() {
        check.fail(at, "has both percent and fraction: keep one");
    }
    if let Some(percent) = mirror.percent
        && !(0..=100).contains(&percent)
    {
        check.fail(&at.key("percent"), format!("{percent} is not from 0 to 100"));
    }
    if let Some(fraction) = mirror.fraction {
        let (part, whole) = (fraction.numerator, fraction.denominator.unwrap_or(100));
        if whole < 1 || part < 0 || part > whole {
            let reason = format!("{part} of {whole} is not a fraction of a whole");
            check.fail(&at.key("fraction"), reason);
        }
    }
}

fn redirect(check: &mut Check<'_>, at: &Cursor<'_>, redirect: &RedirectFilter, scope: Scope) {
    if let Some(scheme) = redirect.scheme.as_deref()
        && !matches!(scheme, "http" | "https")
    {
        check.fail(&at.key("scheme"), format!("{scheme:?} is not one of http, https"));
    }
    hostname(check, at, redirect.hostname.as_deref());
    if let Some(path) = &redirect.path {
        self::path(check, &at.key("path"), path, scope);
    }
    if let Some(port) = redirect.port {
        check.port(&at.key("port"), port);
    }
    if let Some(status) = redirect.status_code
        && !REDIRECTS.contains(&status)
    {
        let reason = format!("{status} is not one of 301, 302, 303, 307, 308");
        check.fail(&at.key("statusCode"), reason);
    }
}

fn hostname(check: &mut Check<'_>, at: &Cursor<'_>, hostname: Option<&str>) {
    if let Some(hostname) = hostname
        && let Err(error) = check_subdomain("host name", hostname)
    {
        check.fail(&at.key("hostname"), error.to_string());
    }
}

fn path(check: &mut Check<'_>, at: &Cursor<'_>, path: &PathModifier, scope: Scope) {
    let (own, other) = match path.kind {
        PathModifierType::ReplaceFullPath => {
            (("replaceFullPath", &path.replace_full_path), &path.replace_prefix_match)
        }
        PathModifierType::ReplacePrefixMatch => {
            (("replacePrefixMatch", &path.replace_prefix_match), &path.replace_full_path)
        }
    };
    let (field, value) = own;
    if other.is_some() {
        check.fail(at, "has a field of another type than its own");
    }
    let Some(value) = value else {
        check.fail(at, format!("{field} is missing, which its type needs"));
        return;
    };
    let at = at.key(field);
    let good = |b: u8| (0x21..0x7f).contains(&b) && b != b'#' && b != b'?';
    if value.len() > MAX_PATH || !value.bytes().all(good) {
        let reason = format!("{value:?} is not a path: at most {MAX_PATH} of visible ASCII");
        check.fail(&at, reason);
    } else if !value.is_empty() && !value.starts_with('/') {
        check.fail(&at, format!("{value:?} is not a path: begin with /"));
    }
    if path.kind == PathModifierType::ReplacePrefixMatch && !scope.prefix {
        let reason = "every match of the rule must be of type PathPrefix, for one to be replaced";
        check.fail(&at, reason);
    }
}

fn cors(check: &mut Check<'_>, at: &Cursor<'_>, cors: &CorsFilter) {
    let lists = [
        ("allowOrigins", &cors.allow_origins),
        ("allowMethods", &cors.allow_methods),
        ("allowHeaders", &cors.allow_headers),
        ("exposeHeaders", &cors.expose_headers),
    ];
    for (key, list) in lists {
        let list = list.as_deref().unwrap_or_default();
        let at = at.key(key);
        most(check, &at, list.len(), MAX_CORS);
        if list.len() > 1 && list.iter().any(|one| one == "*") {
            check.fail(&at, "* stands for all: leave the others out");
        }
        for (index, one) in list.iter().enumerate().filter(|(_, one)| *one != "*") {
            let at = at.index(index);
            if key == "allowOrigins" {
                origin(check, &at, one);
            } else {
                header_name(check, &at, one);
            }
        }
    }
    if let Some(age) = cors.max_age
        && age < 1
    {
        check.fail(&at.key("maxAge"), format!("{age} is not a number of seconds from 1"));
    }
}

fn origin(check: &mut Check<'_>, at: &Cursor<'_>, origin: &str) {
    let rest = origin.strip_prefix("https://").or(origin.strip_prefix("http://"));
    let host = rest.map(|rest| rest.split_once(':').map_or(rest, |(host, _)| host));
    let port = rest.and_then(|rest| rest.split_once(':')).map(|(_, port)| port);
    let host_fits = |host: &str| {
        let host = host.strip_prefix("*.").unwrap_or(host);
        host == "*" || check_subdomain("host", &host.to_ascii_lowercase()).is_ok()
    };
    let port_fits = port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0));
    if !host.is_some_and(host_fits) || !port_fits {
        let reason = format!("{origin:?} is not an origin: write https://host or http://host:port");
        check.fail(at, reason);
    }
}
