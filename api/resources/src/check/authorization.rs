//! Checks of `AuthorizationPolicy`.

use std::sync::Arc;

use leno_policy::authorization::ambiguity;
use leno_policy::is_field_name;
use leno_types::authorization::Cidr;
use leno_types::{Identity, TrustDomain, check_label, check_subdomain};

use super::traffic::{metadata, targets};
use super::{Check, Cursor, external};
use crate::authorization::{
    AuthorizationAction, AuthorizationPolicy, AuthorizationPolicySpec, CertificateSpec, ClaimSpec,
    ClientSpec, GrpcSpec, HeaderSpec, IpBlockSpec, MAX_AUTHORIZATION_ENTRIES, RequestSpec,
    SegmentSpec, TokenIssuerSpec, WorkloadSelector, jwks,
};
use crate::origin::Origin;
use crate::problem::Position;

/// The methods of HTTP (RFC 9110 section 9), to recognise methods that are written in another case.
const METHODS: [&str; 9] =
    ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"];
/// Headers that concern only one connection, or that the proxy itself interprets.
const OF_CONNECTIONS: [&str; 9] = [
    "connection",
    "content-length",
    "expect",
    "http2-settings",
    "keep-alive",
    "proxy-connection",
    "te",
    "transfer-encoding",
    "upgrade",
];
/// Headers that the proxy removes from requests, in addition to those that begin with `leno-`.
const REMOVED: [&str; 2] = ["x-forwarded-client-cert", "l5d-client-id"];

/// The largest number of issuers of one policy.
const MAX_ISSUERS: usize = 8;
/// The largest permitted difference of clocks. With a larger one, expired tokens would be accepted for that long.
const MAX_CLOCK_SKEW: std::time::Duration = std::time::Duration::from_secs(300);

/// A certificate of the mesh is valid from this long before it is issued, because clocks differ.
const BACKDATED: std::time::Duration = std::time::Duration::from_secs(300);

/// The kinds of objects to which a policy can be attached, each after its API group.
const KINDS: [(&str, &str); 4] =
    [("", "Service"), ("", "Namespace"), ("leno.dev", "Workload"), ("leno.dev", "Mesh")];

pub(super) fn policy(check: &mut Check<'_>, at: &Cursor<'_>, policy: &AuthorizationPolicy) {
    metadata(check, at, &policy.metadata);
    let at = at.key("spec");
    let spec = &policy.spec;
    attached(check, &at, policy);
    tokens(check, &at.key("tokens"), spec);
    external::external(check, &at, spec);
    let rules = at.key("rules");
    let what = match spec.action {
        AuthorizationAction::Allow => None,
        AuthorizationAction::Deny => Some("denies"),
        AuthorizationAction::Audit => Some("audits"),
        AuthorizationAction::External => Some("asks about"),
    };
    if let (true, Some(what)) = (spec.rules.is_empty(), what) {
        let reason =
            format!("is empty, so the policy {what} nothing: add a rule, {{}} for everything");
        check.fail(&rules, reason);
    }
    bounded(check, &rules, spec.rules.len());
    for (index, rule) in spec.rules.iter().enumerate() {
        let at = rules.index(index);
        let (from, to) = (at.key("from"), at.key("to"));
        bounded(check, &from, rule.from.len());
        for (index, one) in rule.from.iter().enumerate() {
            client(check, &from.index(index), one);
        }
        claims(check, &at.key("claims"), spec, &rule.claims);
        bounded(check, &to, rule.to.len());
        for (index, one) in rule.to.iter().enumerate() {
            request(check, &to.index(index), one);
        }
    }
}

/// Checks the issuers of tokens. A `Deny` policy may have none, because a client could evade it by sending no token.
fn tokens(check: &mut Check<'_>, at: &Cursor<'_>, spec: &AuthorizationPolicySpec) {
    if spec.tokens.is_empty() {
        return;
    }
    if spec.action == AuthorizationAction::Deny {
        let reason = "a client could evade the denial by omitting its token: use an Allow policy";
        return check.fail(at, reason);
    }
    if spec.tokens.len() > MAX_ISSUERS {
        check.fail(at, format!("are more than {MAX_ISSUERS}: use several policies"));
    }
    for (index, one) in spec.tokens.iter().enumerate() {
        let at = at.index(index);
        if one.issuer.is_empty() {
            check.fail(&at.key("issuer"), "is empty: it is the claim iss of the tokens");
        }
        if one.audiences.iter().all(String::is_empty) {
            let reason = "is empty: a token for other services of the issuer would be taken";
            check.fail(&at.key("audiences"), reason);
        }
        bounded(check, &at.key("audiences"), one.audiences.len());
        key_set(check, &at, one);
        if let Some(name) = &one.header {
            header_name(check, &at.key("header"), name);
        }
        claim_headers(check, &at.key("claimHeaders"), one);
        if one.clock_skew.is_some_and(|skew| skew.0 > MAX_CLOCK_SKEW) {
            check.fail(&at.key("clockSkew"), "is more than 5m: set the clocks");
        }
    }
}

/// Checks the source of an issuer's keys.
fn key_set(check: &mut Check<'_>, at: &Cursor<'_>, issuer: &TokenIssuerSpec) {
    let (url, config_map, secret) =
        (&issuer.jwks_url, &issuer.jwks_config_map, &issuer.jwks_secret);
    let places = [
        ("jwks", !issuer.jwks.is_empty()),
        ("jwksConfigMap", config_map.is_some()),
        ("jwksSecret", secret.is_some()),
        ("jwksUrl", url.is_some()),
    ];
    let mut given = places.iter().filter(|(_, is_given)| *is_given).map(|(field, _)| *field);
    if let (Some(first), Some(second)) = (given.next(), given.next()) {
        let reason = format!("is the same as {first}: keep one of them");
        check.fail(&at.key(second), reason);
        return;
    }
    let objects = [("ConfigMap", "jwksConfigMap", config_map), ("Secret", "jwksSecret", secret)];
    for (kind, field, name) in objects {
        if let Some(Err(error)) = name.as_ref().map(|name| check_subdomain(kind, name)) {
            check.fail(&at.key(field), error.to_string());
        }
    }
    match url {
        Some(url) if Origin::of_url(url).is_none() => {
            let reason = "is no URL such as https://id.example.com/keys or http://id.example.com:8080/keys, without a \
                          user";
            check.fail(&at.key("jwksUrl"), reason);
        }
        None if config_map.is_none() && secret.is_none() => {
            let parsed = jwks::parse(&issuer.jwks);
            if let Err(error) = parsed.and_then(jwks::KeySet::without_secrets) {
                check.fail(&at.key("jwks"), error.to_string());
            }
        }
        Some(_) | None => {}
    }
}

fn claim_headers(check: &mut Check<'_>, at: &Cursor<'_>, issuer: &TokenIssuerSpec) {
    each(check, at, &issuer.claim_headers, |check, at, one| {
        header_name(check, &at.key("name"), &one.name);
        if one.name.eq_ignore_ascii_case(issuer.header_name()) {
            check.fail(&at.key("name"), "carries the token: use another header");
        }
        if one.claim.is_empty() {
            check.fail(&at.key("claim"), "is empty");
        }
    });
}

fn claims(
    check: &mut Check<'_>,
    at: &Cursor<'_>,
    spec: &AuthorizationPolicySpec,
    claims: &[ClaimSpec],
) {
    if !claims.is_empty() && spec.tokens.is_empty() {
        let reason = "has no effect without tokens: name the issuers in spec.tokens";
        return check.fail(at, reason);
    }
    each(check, at, claims, |check, at, one| {
        if one.name.is_empty() {
            check.fail(&at.key("name"), "is empty");
        }
        bounded(check, &at.key("values"), one.values.len());
    });
}

fn attached(check: &mut Check<'_>, at: &Cursor<'_>, policy: &AuthorizationPolicy) {
    let spec = &policy.spec;
    let at_targets = at.key("targetRefs");
    match (&spec.selector, spec.target_refs.is_empty()) {
        (Some(_), false) => {
            return check
                .fail(&at.key("selector"), "has no effect with targetRefs: use one of the two");
        }
        (Some(selector), true) => return labels(check, &at.key("selector"), selector),
        (None, true) => {
            let reason = "is empty, so the policy has no effect: name at least one target, or set \
                          selector";
            return check.fail(&at_targets, reason);
        }
        (None, false) => {}
    }
    targets(check, &at_targets, &spec.target_refs, &KINDS);
    for (index, target) in spec.target_refs.iter().enumerate() {
        let at = at_targets.index(index);
        let namespace = &policy.metadata.namespace;
        if target.kind == "Namespace" && target.name != *namespace {
            let reason = format!(
                "{:?} is another namespace: a policy is of the namespace that it applies to",
                target.name
            );
            check.fail(&at.key("name"), reason);
        }
        if target.kind == "Mesh" && target.name != "mesh" {
            check.fail(&at.key("name"), format!("{:?} is not the mesh: use mesh", target.name));
        }
        if target.section_name.is_some() && target.kind != "Service" && target.kind != "Workload" {
            check.fail(&at.key("sectionName"), "names a port of a Service: remove it");
        }
    }
}

fn labels(check: &mut Check<'_>, at: &Cursor<'_>, selector: &WorkloadSelector) {
    let at = at.key("matchLabels");
    for key in selector.match_labels.keys().filter(|key| key.is_empty()) {
        check.fail(&at.key(key), "is not the name of a label");
    }
}

fn client(check: &mut Check<'_>, at: &Cursor<'_>, client: &ClientSpec) {
    if *client == ClientSpec::default() {
        let reason = "names no client: leave from out for every client, or set unauthenticated: true \
                      for clients without an identity";
        return check.fail(at, reason);
    }
    if client.unauthenticated && client.has_identity() {
        let reason = "has no effect with conditions on an identity: use an entry of its own";
        check.fail(&at.key("unauthenticated"), reason);
    }
    each(check, &at.key("identities"), &client.identities, |check, at, one| {
        if let Some((key, text)) = one_of(check, at, one) {
            identity(check, &at.key(key), (key, text));
        }
    });
    each(check, &at.key("trustDomains"), &client.trust_domains, |check, at, one| {
        if let Err(error) = TrustDomain::new(one) {
            check.fail(at, error.to_string());
        }
    });
    each(check, &at.key("namespaces"), &client.namespaces, |check, at, one| {
        check.label(at, "namespace", one);
    });
    each(check, &at.key("serviceAccounts"), &client.service_accounts, |check, at, one| {
        let (namespace, name) = one.split_once('/').unwrap_or(("default", one));
        let known = check_label("namespace", namespace);
        if let Err(error) = known.and_then(|()| check_subdomain("service account", name)) {
            check.fail(at, format!("{error}: use NAMESPACE/NAME, or NAME"));
        }
    });
    each(check, &at.key("ipBlocks"), &client.ip_blocks, ip_block);
    if let Some(time) = client.certificate {
        certificate(check, &at.key("certificate"), time);
    }
}

/// Checks the conditions on a certificate's validity, which must be whole seconds.
fn certificate(check: &mut Check<'_>, at: &Cursor<'_>, spec: CertificateSpec) {
    let limits = spec.limits();
    if limits.iter().all(|(_, limit)| limit.is_none()) {
        return check.fail(at, "requires nothing: leave it out for every certificate");
    }
    for (key, limit) in limits {
        if limit.is_some_and(|limit| limit.0.is_zero() || limit.0.subsec_nanos() > 0) {
            check.fail(&at.key(key), "is not a number of seconds: use for example 1h");
        }
    }
    for (least, most) in [("minAge", "maxAge"), ("minLeft", "maxLeft")] {
        let of = |wanted| limits.iter().find_map(|(key, limit)| limit.filter(|_| *key == wanted));
        if of(least).zip(of(most)).is_some_and(|(least, most)| least > most) {
            check.fail(&at.key(least), format!("is more than {most}: no certificate matches"));
        }
    }
    // No certificate is that young. A deny or audit rule would match none, and an allow rule would permit none.
    if spec.max_age.is_some_and(|age| age.0 <= BACKDATED) {
        let reason = "is not more than 5m: certificates begin to hold 5m before they are issued";
        check.fail(&at.key("maxAge"), reason);
    }
}

fn ip_block(check: &mut Check<'_>, at: &Cursor<'_>, block: &IpBlockSpec) {
    let cidr = cidr(check, &at.key("cidr"), &block.cidr);
    each(check, &at.key("except"), &block.except, |check, at, one| {
        let Some(part) = self::cidr(check, at, one) else { return };
        if cidr.is_some_and(|cidr| part.length() < cidr.length() || !cidr.contains(part.address()))
        {
            check.fail(at, format!("{part} is not a part of {}", block.cidr));
        }
    });
}

fn cidr(check: &mut Check<'_>, at: &Cursor<'_>, text: &str) -> Option<Cidr> {
    text.parse()
        .map_err(|error: leno_types::authorization::CidrError| check.fail(at, error.to_string()))
        .ok()
}

/// Checks a SPIFFE ID, or the beginning of one.
fn identity(check: &mut Check<'_>, at: &Cursor<'_>, (key, text): (&str, &str)) {
    if key == "exact" {
        if let Err(error) = text.parse::<Identity>() {
            check.fail(at, error.to_string());
        }
        return;
    }
    let rest = text.strip_prefix("spiffe://").unwrap_or_default();
    let domain = rest.split('/').next().unwrap_or_default();
    if TrustDomain::new(domain).is_err() {
        let reason = format!(
            "{text:?} is not the beginning of an identity: use spiffe://TRUST-DOMAIN, \
                              or that and whole segments of the path"
        );
        check.fail(at, reason);
    }
}

impl RequestSpec {
    /// Whether a condition on clients is valid in a policy.
    #[must_use]
    pub fn is_accepted(&self) -> bool {
        let mut check = Check { file: &Arc::default(), problems: Vec::new(), whole: true };
        let at = Cursor { node: None, place: Position::default(), path: String::new() };
        request(&mut check, &at, self);
        check.problems.is_empty()
    }
}

fn request(check: &mut Check<'_>, at: &Cursor<'_>, request: &RequestSpec) {
    if *request == RequestSpec::default() {
        return check.fail(at, "requires nothing: leave to out for everything");
    }
    let of_requests =
        RequestSpec { ports: Vec::new(), server_names: Vec::new(), ..request.clone() };
    if !request.server_names.is_empty() && of_requests != RequestSpec::default() {
        let reason = "cannot match together with conditions on requests, which the proxy does not see in \
                      TLS of the application: use an entry of its own";
        check.fail(&at.key("serverNames"), reason);
    }
    if !request.grpc.is_empty() && !request.paths.is_empty() {
        check.fail(&at.key("grpc"), "is a path already: use either grpc or paths");
    }
    each(check, &at.key("ports"), &request.ports, |check, at, port| check.port(at, (*port).into()));
    each(check, &at.key("methods"), &request.methods, |check, at, method| {
        let upper = method.to_ascii_uppercase();
        if method == "*" {
            check.fail(at, "\"*\" is not a method: leave methods out for every method");
        } else if !is_field_name(method) {
            check.fail(at, format!("{method:?} is not a method"));
        } else if *method != upper && METHODS.contains(&&*upper) {
            check.fail(
                at,
                format!("{method:?} is not {upper}, as methods are case-sensitive: use {upper}"),
            );
        }
    });
    each(check, &at.key("hosts"), &request.hosts, |check, at, one| host(check, at, one));
    each(check, &at.key("serverNames"), &request.server_names, |check, at, one| {
        host(check, at, one)
    });
    each(check, &at.key("paths"), &request.paths, |check, at, one| {
        if let Some((key, text)) = one_of(check, at, one) {
            path(check, &at.key(key), text);
        }
    });
    each(check, &at.key("headers"), &request.headers, header);
    each(check, &at.key("grpc"), &request.grpc, call);
}

fn host(check: &mut Check<'_>, at: &Cursor<'_>, host: &str) {
    let name = host.strip_prefix("*.").unwrap_or(host);
    let is_address = name.starts_with('[') && name.ends_with(']') && name == host;
    if !is_address && check_subdomain("host", name).is_err() {
        let reason =
            format!("{host:?} is not a host: use a name in lower case without port, or *.NAME");
        check.fail(at, reason);
    }
}

fn path(check: &mut Check<'_>, at: &Cursor<'_>, path: &str) {
    let reason = if path.contains('?') {
        Some("has a query: paths are compared without".to_owned())
    } else if path.ends_with('*') {
        Some("ends in *, which stands for itself: a prefix is whole segments without *".to_owned())
    } else if path.contains('%') {
        Some("has an escape: write the character itself".to_owned())
    } else {
        ambiguity(path.as_bytes())
            .map(|why| format!("{why}, and requests with such a path are denied"))
    };
    if let Some(reason) = reason {
        check.fail(at, format!("{path:?} {reason}"));
    }
}

fn header(check: &mut Check<'_>, at: &Cursor<'_>, header: &HeaderSpec) {
    header_name(check, &at.key("name"), &header.name);
    each(check, &at.key("values"), &header.values, |check, at, value| {
        let trimmed = value.trim_matches([' ', '\t']);
        if trimmed.len() < value.len() {
            let reason = format!(
                "{value:?} matches no header, as white space at the ends of a value is not part of it: use {trimmed:?}"
            );
            check.fail(at, reason);
        }
    });
}

pub(super) fn header_name(check: &mut Check<'_>, at_name: &Cursor<'_>, given: &str) {
    let name = given.to_ascii_lowercase();
    if !is_field_name(&name) {
        check.fail(at_name, format!("{given:?} is not the name of a header"));
    } else if name == "host" {
        check.fail(at_name, "is the authority of a request: use hosts");
    } else if OF_CONNECTIONS.contains(&&*name) {
        check.fail(
            at_name,
            format!("{name} is of the connection, not of the request: use another header"),
        );
    } else if name.starts_with("leno-") || REMOVED.contains(&&*name) {
        check.fail(
            at_name,
            format!("{name} of clients is removed, so that nothing matches: use from"),
        );
    }
}

fn call(check: &mut Check<'_>, at: &Cursor<'_>, call: &GrpcSpec) {
    if call.service.is_none() && call.method.is_none() {
        check.fail(at, "names no call: set service, method or both");
    }
    for (key, text) in [("service", &call.service), ("method", &call.method)] {
        let Some(text) = text else { continue };
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if text.is_empty() || !text.bytes().all(fits) || text == "." || text == ".." {
            check.fail(&at.key(key), format!("{text:?} is not the {key} of a call"));
        }
    }
}

/// Returns `exact` or `prefix`, of which exactly one must be set.
fn one_of<'s>(
    check: &mut Check<'_>,
    at: &Cursor<'_>,
    segment: &'s SegmentSpec,
) -> Option<(&'static str, &'s str)> {
    match (&segment.exact, &segment.prefix) {
        (Some(exact), None) => Some(("exact", exact)),
        (None, Some(prefix)) => Some(("prefix", prefix)),
        _ => {
            check.fail(at, "must have exactly one of exact and prefix");
            None
        }
    }
}

pub(super) fn each<T>(
    check: &mut Check<'_>,
    at: &Cursor<'_>,
    list: &[T],
    one: impl Fn(&mut Check<'_>, &Cursor<'_>, &T),
) {
    bounded(check, at, list.len());
    for (index, item) in list.iter().enumerate() {
        one(check, &at.index(index), item);
    }
}

fn bounded(check: &mut Check<'_>, at: &Cursor<'_>, count: usize) {
    if count > MAX_AUTHORIZATION_ENTRIES {
        check.fail(
            at,
            format!("{count} are more than {MAX_AUTHORIZATION_ENTRIES}: use several policies"),
        );
    }
}
