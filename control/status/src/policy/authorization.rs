//! Computes the conditions of an `AuthorizationPolicy`.

use leno_index::{Index, ProxyCoverage};
use leno_resources::{AuthorizationPolicy, KEY_SET_KEY, PolicyTarget, TokenIssuerSpec};
use leno_types::ServiceName;

use super::{NO_PROXY, NOT_FOUND, Policy, exists, not_accepted, wrong};
use crate::conditions::{ACCEPTED, ConditionResult, PROGRAMMED, RESOLVED};

/// The policy applies to the whole mesh, but its namespace is not the control plane's.
const NOT_PERMITTED: &str = "TargetNotPermitted";
/// The external authorizer's service does not exist, or has no such port.
const NO_AUTHORIZER: &str = "BackendNotFound";

/// The keys of a token issuer do not exist.
const NO_KEYS: &str = "KeysNotFound";

pub(super) fn found(
    index: &Index,
    policy: &Policy<'_>,
    written: &AuthorizationPolicy,
    target: &PolicyTarget,
) -> Vec<(&'static str, ConditionResult)> {
    let (accepted, proxies) = match (target.kind.as_str(), &written.spec.selector) {
        (_, Some(selector)) => {
            let proxies = index.proxies_with(policy.namespace, &selector.match_labels);
            let accepted = match proxies {
                ProxyCoverage::NoInstance => {
                    wrong(NOT_FOUND, "no workload of the namespace has these labels")
                }
                _ => Ok(String::new()),
            };
            (accepted, proxies)
        }
        ("Namespace", None) => {
            let proxies = index.proxies_with(policy.namespace, &Default::default());
            (Ok(String::new()), proxies)
        }
        ("Mesh", None) if !index.is_of_mesh(policy.namespace) => {
            let message = "a policy for the mesh must be in the namespace of the control plane";
            (wrong(NOT_PERMITTED, message), ProxyCoverage::NoInstance)
        }
        ("Mesh", None) => (Ok(String::new()), index.proxies()),
        (_, None) => {
            let accepted = exists(index, policy, target).map(|()| String::new());
            (accepted, index.proxies_at(policy.namespace, target))
        }
    };
    let programmed = match (&accepted, proxies) {
        (Err(_), _) => not_accepted(),
        (Ok(_), ProxyCoverage::All) => Ok(String::new()),
        (Ok(_), ProxyCoverage::Some) => {
            Ok("some instances have no proxy, so the policy is not enforced there".to_owned())
        }
        (Ok(_), ProxyCoverage::None) => {
            wrong(NO_PROXY, "no instance has a proxy, so the policy is not enforced")
        }
        (Ok(_), ProxyCoverage::NoInstance) => wrong(NO_PROXY, "there is no instance"),
    };
    let refers = written.spec.external.is_some() || written.spec.tokens.iter().any(names_keys);
    if accepted.is_err() || !refers {
        return vec![(ACCEPTED, accepted), (PROGRAMMED, programmed)];
    }
    let resolved = authorizer(index, policy.namespace, written).and(keys(index, policy, written));
    // The policy does not count as programmed then, although proxies enforce it: they deny requests for which they
    // cannot ask the authorizer, and do not accept tokens that they cannot verify.
    let programmed = match &resolved {
        Ok(_) => programmed,
        Err(_) => programmed.and(resolved.clone()),
    };
    vec![(ACCEPTED, accepted), (RESOLVED, resolved), (PROGRAMMED, programmed)]
}

/// Whether the policy refers to an issuer's keys instead of containing them.
fn names_keys(issuer: &TokenIssuerSpec) -> bool {
    issuer.jwks_config_map.is_some() || issuer.jwks_secret.is_some() || issuer.jwks_url.is_some()
}

/// Whether the keys of all issuers exist.
fn keys(index: &Index, policy: &Policy<'_>, written: &AuthorizationPolicy) -> ConditionResult {
    let have = index.issuers_with_keys(&policy.object.key());
    let issuers = written.spec.tokens.iter().zip(have);
    let lacking = issuers.filter(|(issuer, has)| names_keys(issuer) && !has);
    let namespace = policy.namespace;
    let said = |(issuer, _): (&TokenIssuerSpec, bool)| {
        if let Some(name) = &issuer.jwks_config_map {
            return format!("no ConfigMap {namespace}/{name} has keys as {KEY_SET_KEY}");
        }
        if let Some(name) = &issuer.jwks_secret {
            // The message is the same for all reasons: the author of the policy may have no right to know which
            // Secrets exist.
            return format!(
                "no keys of Secret {namespace}/{name}: it has to hold public keys as {KEY_SET_KEY}, and a Role of the \
                 namespace has to permit the control plane to list and watch it"
            );
        }
        let url = issuer.jwks_url.as_deref().unwrap_or_default();
        format!("no keys have been fetched from {url}: the log of the controller has the reason")
    };
    let lacking: Vec<String> = lacking.map(said).collect();
    match lacking.is_empty() {
        true => Ok(String::new()),
        false => wrong(NO_KEYS, format!("{}, so no token is valid", lacking.join("; "))),
    }
}

/// Whether the service of the external authorizer exists.
fn authorizer(index: &Index, namespace: &str, written: &AuthorizationPolicy) -> ConditionResult {
    let Some(external) = &written.spec.external else { return Ok(String::new()) };
    let of = &external.backend_ref;
    let namespace = of.namespace.as_deref().unwrap_or(namespace);
    let service = ServiceName::new(namespace, &of.name).ok();
    let known = service.and_then(|name| index.service(&name));
    let what = match known {
        None => format!("there is no Service {namespace}/{}", of.name),
        Some(known) if known.port(of.port).is_none() => {
            format!("Service {namespace}/{} has no port {}", of.name, of.port)
        }
        Some(_) => return Ok(String::new()),
    };
    wrong(NO_AUTHORIZER, format!("{what}, so requests that need its decision are denied"))
}
