//! Checks of external authorizers.

use leno_types::authorizer::MAX_AUTHORIZER_BODY;
use leno_types::check_label;

use super::authorization::{each, header_name};
use super::{Check, Cursor};
use crate::authorization::{
    AuthorizationAction, AuthorizationPolicySpec, AuthorizerProtocolSpec, ExternalSpec,
};

/// The longest time limit for an authorizer. The client waits as long as the authorizer.
const MAX_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(10);
/// The longest prefix, in bytes, of the path of a request to an authorizer.
const MAX_PREFIX: usize = 256;

/// Checks an external authorizer. `at` is the spec of the policy.
pub(super) fn external(check: &mut Check<'_>, at: &Cursor<'_>, spec: &AuthorizationPolicySpec) {
    let at_external = at.key("external");
    let authorizer = match (&spec.external, spec.action) {
        (None, AuthorizationAction::External) => {
            return check.fail(&at_external, "is missing: name the service that decides");
        }
        (Some(_), AuthorizationAction::External) if !spec.tokens.is_empty() => {
            let reason =
                "a client could evade the authorizer by omitting its token: use a separate policy";
            return check.fail(&at.key("tokens"), reason);
        }
        (Some(authorizer), AuthorizationAction::External) => authorizer,
        (Some(_), action) => {
            let reason = format!("has no effect with action {action:?}: use External");
            return check.fail(&at_external, reason);
        }
        (None, _) => return,
    };
    let rules = at.key("rules");
    for (number, rule) in spec.rules.iter().enumerate() {
        let to = rules.index(number).key("to");
        for (index, one) in rule.to.iter().enumerate() {
            if !one.server_names.is_empty() {
                let reason =
                    "are of connections, and an authorizer decides on requests: remove them";
                check.fail(&to.index(index).key("serverNames"), reason);
            }
        }
    }
    authorizer_spec(check, &at_external, authorizer);
}

fn authorizer_spec(check: &mut Check<'_>, at: &Cursor<'_>, authorizer: &ExternalSpec) {
    let (at_ref, service) = (at.key("backendRef"), &authorizer.backend_ref);
    for (key, what, text) in [
        ("name", "service", Some(&service.name)),
        ("namespace", "namespace", service.namespace.as_ref()),
    ] {
        if let Some(Err(error)) = text.map(|text| check_label(what, text)) {
            check.fail(&at_ref.key(key), error.to_string());
        }
    }
    check.port(&at_ref.key("port"), service.port.into());
    if let Some(timeout) = authorizer.timeout
        && (timeout.0.is_zero() || timeout.0 > MAX_TIMEOUT)
    {
        check.fail(&at.key("timeout"), "is not between 1ms and 10s");
    }
    prefix(check, &at.key("pathPrefix"), authorizer);
    if let Some(body) = &authorizer.body {
        let at = at.key("body");
        if body.max_bytes == 0 || body.max_bytes > MAX_AUTHORIZER_BODY {
            let reason = format!("is not between 1 and {MAX_AUTHORIZER_BODY}");
            check.fail(&at.key("maxBytes"), reason);
        }
        if body.pack_as_bytes && authorizer.protocol == AuthorizerProtocolSpec::Http {
            let reason = "has no effect with protocol Http, where a body is bytes: remove it";
            check.fail(&at.key("packAsBytes"), reason);
        }
    }
    let at = at.key("headers");
    let Some(headers) = &authorizer.headers else { return };
    for (key, names) in [
        ("sent", headers.sent.as_deref().unwrap_or_default()),
        ("onRequest", &headers.on_request),
        ("onResponse", &headers.on_response),
    ] {
        each(check, &at.key(key), names, |check, at, name| header_name(check, at, name));
    }
}

fn prefix(check: &mut Check<'_>, at: &Cursor<'_>, authorizer: &ExternalSpec) {
    let prefix = authorizer.path_prefix.as_str();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~".contains(&byte);
    if prefix.is_empty() {
        return;
    }
    if authorizer.protocol == AuthorizerProtocolSpec::Grpc {
        check.fail(at, "has no effect with protocol Grpc: remove it");
    } else if !prefix.starts_with('/')
        || prefix.ends_with('/')
        || prefix.len() > MAX_PREFIX
        || !prefix.bytes().all(is_plain)
    {
        let reason = format!("{prefix:?} is not a path prefix: use one such as /check");
        check.fail(at, reason);
    }
}
