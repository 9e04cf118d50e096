//! Evaluates policies in the way in which their documentation describes it, without a table.

use leno_policy::authorization::{ConnectionView, OtherAddresses, ServerNameView};
use leno_types::Identity;
use leno_types::authorization::{
    Action, Authorization, AuthorizationPolicy, CertificateMatch, ClientMatch,
    DefaultAuthorization, HeaderMatch, PathPermission, PathReading, PermissionRule, RequestMatch,
    SegmentMatch,
};

use super::Request;

/// What the table must decide, by the names of policies.
#[derive(Debug, Default)]
pub(crate) struct Expected {
    /// The deny policies that match.
    pub(crate) denied: Vec<String>,
    /// Whether the path is ambiguous, and this denies the request.
    pub(crate) is_path_denied: bool,
    /// The allow policies that match.
    pub(crate) allowed: Vec<String>,
    pub(crate) audited: Vec<String>,
    /// The external policies that match a connection that is relayed as bytes.
    pub(crate) external: Vec<String>,
    /// Why the request is denied although no deny policy matches.
    pub(crate) refused: Option<&'static str>,
}

/// A truth value that may be unknown, because some facts are unknown.
#[derive(Clone, Copy, PartialEq)]
enum Truth {
    Yes,
    No,
    Perhaps,
}

pub(crate) fn request(
    authorization: &Authorization,
    namespace: &str,
    client: &ConnectionView<'_>,
    request: &Request,
) -> Expected {
    let path = canonical(&request.path, authorization.paths);
    let truth = |policy: &AuthorizationPolicy, rule: &PermissionRule, to: &RequestMatch| -> Truth {
        if !policy.tokens.is_empty() && !request.fulfils(&rule.claims) {
            return Truth::No;
        }
        let all = policy.action == Action::Allow;
        if !to.server_names.is_empty() || !is_method_and_host(to, request, all) {
            return Truth::No;
        }
        let is_fulfilled = |header: &HeaderMatch| {
            !is_set_by_a_policy(authorization, client.port, &header.name)
                && is_header(header, request, all)
        };
        if !to.headers.iter().all(is_fulfilled) {
            return Truth::No;
        }
        match (&path, to.paths.is_empty()) {
            (_, true) => Truth::Yes,
            (None, false) => Truth::Perhaps,
            (Some(path), false) => {
                if to.paths.iter().any(|one| is_path(one, path)) {
                    Truth::Yes
                } else {
                    Truth::No
                }
            }
        }
    };
    let mut expected = evaluate(authorization, namespace, client, truth);
    // An ambiguous path is refused if a policy that matches the client depends on paths, whatever the other conditions
    // of the policy are. Allow policies do not count if one of them permits every request of the client.
    let depends = |action: Action| {
        of_client(authorization, client, action).any(|(_, to)| !to.paths.is_empty())
    };
    let all = of_client(authorization, client, Action::Allow)
        .any(|(policy, to)| policy.tokens.is_empty() && is_any(to));
    let decides =
        depends(Action::Deny) || depends(Action::External) || depends(Action::Allow) && !all;
    expected.is_path_denied = path.is_none() && decides && expected.denied.is_empty();
    // The table reports audit and external policies in the same way.
    expected.audited.append(&mut expected.external);
    expected.audited.sort();
    expected
}

pub(crate) fn opaque(
    authorization: &Authorization,
    namespace: &str,
    client: &ConnectionView<'_>,
    server: ServerNameView<'_>,
) -> Expected {
    let truth = |policy: &AuthorizationPolicy, _: &PermissionRule, to: &RequestMatch| -> Truth {
        let names = &to.server_names;
        let by_name = match server {
            _ if names.is_empty() => Truth::Yes,
            ServerNameView::NoTls => Truth::No,
            ServerNameView::Unknown => Truth::Perhaps,
            ServerNameView::Name(name) if names.iter().any(|one| is_host(one, name)) => Truth::Yes,
            ServerNameView::Name(_) => Truth::No,
        };
        let of_requests = !policy.tokens.is_empty()
            || !to.methods.is_empty()
            || !to.hosts.is_empty()
            || !to.paths.is_empty()
            || !to.headers.is_empty();
        match (by_name, of_requests) {
            (Truth::No, _) => Truth::No,
            (Truth::Yes, false) => Truth::Yes,
            _ if matches!(policy.action, Action::Deny | Action::External) => Truth::Yes,
            _ => Truth::No,
        }
    };
    evaluate(authorization, namespace, client, truth)
}

/// Whether a policy of the port sets a header, in any spelling, so that clients cannot set it.
fn is_set_by_a_policy(authorization: &Authorization, port: u16, name: &str) -> bool {
    let variable = |name: &str| name.to_ascii_uppercase().replace(['-', '.'], "_");
    authorization.policies.iter().any(|policy| {
        let is_here = policy.ports.as_ref().is_none_or(|ports| ports.contains(&port));
        let answered = policy.external.iter().flat_map(|external| &external.on_request);
        let claims = policy.tokens.iter().flat_map(|issuer| &issuer.claim_headers);
        let mut names = answered.chain(claims.map(|claim| &claim.header));
        is_here && names.any(|own| variable(own) == variable(name))
    })
}

fn evaluate(
    authorization: &Authorization,
    namespace: &str,
    client: &ConnectionView<'_>,
    truth: impl Fn(&AuthorizationPolicy, &PermissionRule, &RequestMatch) -> Truth,
) -> Expected {
    let mut expected = Expected::default();
    let mut is_selected = false;
    for policy in authorization.policies.iter() {
        let is_here = policy.ports.as_ref().is_none_or(|ports| ports.contains(&client.port));
        is_selected |= is_here && policy.action == Action::Allow;
        let any = [RequestMatch::default()];
        let matches = is_here
            && policy.rules.iter().any(|rule| {
                let to = if rule.to.is_empty() { &any[..] } else { &rule.to };
                is_from(&rule.from, client, policy.action)
                    && to.iter().any(|to| {
                        let is_port = to.ports.is_empty() || to.ports.contains(&client.port);
                        is_port && is_taken(policy.action, truth(policy, rule, to))
                    })
            });
        if matches {
            let list = match policy.action {
                Action::Deny => &mut expected.denied,
                Action::Allow => &mut expected.allowed,
                Action::Audit => &mut expected.audited,
                Action::External => &mut expected.external,
            };
            list.push(policy.source.name.to_string());
        }
    }
    let by_default = match authorization.default {
        DefaultAuthorization::All => true,
        DefaultAuthorization::Meshed => client.identity.is_some_and(|identity| {
            identity.to_string().starts_with(&format!("spiffe://{}/", authorization.trust_domain))
        }),
        DefaultAuthorization::SameNamespace => client.identity.is_some_and(|identity| {
            let own = format!("spiffe://{}/ns/{namespace}/sa/", authorization.trust_domain);
            identity.to_string().starts_with(&own)
        }),
        DefaultAuthorization::Deny => false,
    };
    expected.refused = match (expected.allowed.is_empty(), is_selected, by_default) {
        (false, ..) | (true, false, true) => None,
        (true, true, _) => Some("not-allowed"),
        (true, false, false) => Some("default"),
    };
    expected.audited.sort();
    expected
}

/// Whether the action of a policy is taken. An audit policy is also reported if it is unknown whether the policy
/// matches: the request is then denied for another reason, but the log must show the policy.
fn is_taken(action: Action, truth: Truth) -> bool {
    truth == Truth::Yes || action == Action::Audit && truth == Truth::Perhaps
}

/// The conditions of all rules with this action that match a client and its port.
fn of_client<'a>(
    authorization: &'a Authorization,
    client: &ConnectionView<'a>,
    action: Action,
) -> impl Iterator<Item = (&'a AuthorizationPolicy, &'a RequestMatch)> {
    static ANY: std::sync::LazyLock<Vec<RequestMatch>> =
        std::sync::LazyLock::new(|| vec![RequestMatch::default()]);
    let client = *client;
    let policies = authorization.policies.iter().filter(move |policy| {
        policy.action == action
            && policy.ports.as_ref().is_none_or(|ports| ports.contains(&client.port))
    });
    let rules = policies.flat_map(|policy| policy.rules.iter().map(move |rule| (policy, rule)));
    let rules = rules.filter(move |(_, rule)| is_from(&rule.from, &client, action));
    let to = rules.flat_map(|(policy, rule)| {
        let to = if rule.to.is_empty() { &*ANY } else { &rule.to };
        to.iter().map(move |to| (policy, to))
    });
    to.filter(move |(_, to)| to.ports.is_empty() || to.ports.contains(&client.port))
}

fn is_any(to: &RequestMatch) -> bool {
    *to == RequestMatch { ports: to.ports.clone(), ..RequestMatch::default() }
}

fn is_from(from: &[ClientMatch], client: &ConnectionView<'_>, action: Action) -> bool {
    from.is_empty() || from.iter().any(|one| is_client(one, client, action))
}

fn is_client(one: &ClientMatch, client: &ConnectionView<'_>, action: Action) -> bool {
    if *one == ClientMatch::default() {
        return false;
    }
    let identity = |fulfils: &dyn Fn(&Identity) -> bool| client.identity.is_some_and(fulfils);
    let in_block = |block: &leno_types::authorization::IpBlock| match client.others {
        OtherAddresses::Known(others) => {
            block.contains(client.address) || others.iter().any(|other| block.contains(*other))
        }
        OtherAddresses::Unknown => {
            let is_other = block.cidr.address().is_ipv4() != client.address.is_ipv4();
            block.contains(client.address) || is_closing(action) && is_other
        }
    };
    (one.identities.is_empty()
        || identity(&|identity| {
            one.identities.iter().any(|wanted| is_segment(wanted, &identity.to_string()))
        }))
        && (one.trust_domains.is_empty()
            || identity(&|identity| one.trust_domains.contains(identity.trust_domain())))
        && (one.namespaces.is_empty()
            || identity(&|identity| one.namespaces.iter().any(|n| **n == *identity.namespace())))
        && (one.service_accounts.is_empty()
            || identity(&|identity| {
                one.service_accounts.iter().any(|(namespace, name)| {
                    **namespace == *identity.namespace() && **name == *identity.service_account()
                })
            }))
        && (one.blocks.is_empty() || one.blocks.iter().any(in_block))
        && (!one.unauthenticated || client.identity.is_none())
        && is_of_time(&one.certificate, client, action)
}

/// Whether the client's certificate has the required age and remaining validity.
fn is_of_time(wanted: &CertificateMatch, client: &ConnectionView<'_>, action: Action) -> bool {
    let CertificateMatch { max_age, min_age, min_left, max_left } = wanted;
    if [max_age, min_age, min_left, max_left].iter().all(|limit| limit.is_none()) {
        return true;
    }
    let Some(certificate) = client.certificate else {
        return client.identity.is_some() && action != Action::Allow;
    };
    if client.identity.is_none() {
        return false;
    }
    let span = |from: i64, to: i64| i128::from(to).saturating_sub(from.into()).max(0);
    let age = span(certificate.validity.not_before_s, certificate.now_s);
    let left = span(certificate.now_s, certificate.validity.not_after_s);
    let limit = |limit: &Option<std::time::Duration>, otherwise: i128| {
        limit.map_or(otherwise, |limit| limit.as_secs().into())
    };
    (limit(min_age, 0)..=limit(max_age, i128::MAX)).contains(&age)
        && (limit(min_left, 0)..=limit(max_left, i128::MAX)).contains(&left)
}

/// Whether an unknown fact about the client counts as fulfilled: for deny and external rules, so that an unknown fact
/// never permits anything.
fn is_closing(action: Action) -> bool {
    matches!(action, Action::Deny | Action::External)
}

fn is_segment(wanted: &SegmentMatch, text: &str) -> bool {
    match wanted {
        SegmentMatch::Exact(exact) => **exact == *text,
        SegmentMatch::Prefix(prefix) => {
            text == &**prefix || text.starts_with(&format!("{prefix}/"))
        }
    }
}

fn is_path(wanted: &PathPermission, path: &str) -> bool {
    match wanted {
        PathPermission::Segment(SegmentMatch::Prefix(all)) if path == "*" && all.is_empty() => true,
        PathPermission::Segment(segment) => is_segment(segment, path),
        PathPermission::GrpcMethod(method) => {
            let parts: Vec<&str> = path.split('/').collect();
            parts.len() == 3 && parts[0].is_empty() && !parts[1].is_empty() && parts[2] == &**method
        }
    }
}

fn is_host(wanted: &str, authority: &str) -> bool {
    let lower = authority.to_lowercase();
    let host = match lower.rfind(':') {
        Some(at) if !lower.ends_with(']') => &lower[..at],
        _ => &lower,
    };
    let host = host.strip_suffix('.').unwrap_or(host);
    match wanted.strip_prefix('*') {
        Some(ending) => host.ends_with(ending) && host.len() > ending.len(),
        None => wanted == host,
    }
}

fn is_method_and_host(to: &RequestMatch, request: &Request, is_exact: bool) -> bool {
    let is_method = |method: &str| match is_exact {
        true => *method == *request.method,
        false => method.to_lowercase() == request.method.to_lowercase(),
    };
    (to.methods.is_empty() || to.methods.iter().any(|method| is_method(method)))
        && (to.hosts.is_empty() || to.hosts.iter().any(|host| is_host(host, request.authority)))
}

fn is_header(
    wanted: &leno_types::authorization::HeaderMatch,
    request: &Request,
    all: bool,
) -> bool {
    let variable = |name: &str| name.to_uppercase().replace(['-', '.'], "_");
    let (mut lines, mut is_mixed) = (Vec::new(), false);
    for (name, value) in &request.headers {
        if variable(name) == variable(&wanted.name) {
            lines.push(*value);
            is_mixed |= name.to_lowercase() != *wanted.name;
        }
    }
    if all && is_mixed {
        return false;
    }
    let is_value = |text: &str| wanted.values.iter().any(|value| **value == *text);
    if wanted.values.is_empty() {
        !lines.is_empty()
    } else if all {
        let good = |line: &&str| is_value(line) || line.split(',').all(|one| is_value(one.trim()));
        !lines.is_empty() && lines.iter().all(good)
    } else {
        lines.iter().any(|line| is_value(line) || line.split(',').any(|one| is_value(one.trim())))
    }
}

/// The path as the application reads it; `None` if servers with this reading differ.
fn canonical(path: &str, reading: PathReading) -> Option<String> {
    if path == "*" {
        return Some(path.to_owned());
    }
    if reading.verbatim {
        return path.starts_with('/').then(|| path.to_owned());
    }
    let segments = path.strip_prefix('/')?.split('/');
    let segments = segments.map(|segment| unescaped(segment, reading.decodes_slashes));
    let read = "/".to_owned() + &segments.collect::<Option<Vec<_>>>()?.join("/");
    let odd = |c: char| matches!(c, '\\' | ';' | '#' | '?') || c.is_control() || c.is_whitespace();
    if read.contains(odd) {
        return None;
    }
    let given = path.to_lowercase();
    let has_all = reading.merges_slashes && reading.resolves_dots && reading.decodes_slashes;
    let has_escaped_slash = given.contains("%2f") && !has_all;
    let has_escaped_dot = given.contains("%2e") && !has_all;
    if read.contains("//") && (!reading.merges_slashes || has_escaped_slash) {
        return None;
    }
    let is_dots = |segment: &str| segment == "." || segment == "..";
    if !read.split('/').any(is_dots) {
        return Some(merged(&read));
    }
    if !reading.resolves_dots || has_escaped_slash || has_escaped_dot {
        return None;
    }
    // Servers may merge slashes before or after they resolve dots, so both orders must give the same path. If the path
    // ends in dots, servers differ on the slash at its end, except at the root.
    let (first, second) = (resolved(&merged(&read))?, merged(&resolved(&read)?));
    let ends_in_dots = read.rsplit('/').next().is_some_and(is_dots);
    (first == second && !(ends_in_dots && first != "/")).then_some(first)
}

fn merged(path: &str) -> String {
    let mut read = path.to_owned();
    while read.contains("//") {
        read = read.replace("//", "/");
    }
    read
}

/// Resolves dots as RFC 3986 does, but fails if they lead above the root.
fn resolved(path: &str) -> Option<String> {
    let mut kept = Vec::new();
    for segment in path.split('/').skip(1) {
        match segment {
            "." => {}
            ".." => drop(kept.pop()?),
            name => kept.push(name),
        }
    }
    Some(format!("/{}", kept.join("/")))
}

fn unescaped(segment: &str, decodes_slashes: bool) -> Option<String> {
    let mut bytes = Vec::new();
    let mut parts = segment.split('%');
    bytes.extend(parts.next()?.bytes());
    for part in parts {
        let byte = u8::from_str_radix(part.get(..2)?, 16).ok()?;
        if byte == b'/' && !decodes_slashes {
            return None;
        }
        bytes.push(byte);
        bytes.extend(part[2..].bytes());
    }
    let text = String::from_utf8(bytes).ok()?;
    let again = |at: usize| u8::from_str_radix(text.get(at + 1..at + 3).unwrap_or("x"), 16).is_ok();
    let twice = segment.contains('%') && text.match_indices('%').any(|(at, _)| again(at));
    (!twice).then_some(text)
}
