//! The status of policies: `TrafficPolicy`, `RateLimitPolicy`, `AuthorizationPolicy`,
//! `BackendTLSPolicy` (GEP-713).
//!
//! Each target has an entry among the ancestors, because a policy may be in effect for one target but not for
//! another. Entries with a false condition come first, because `kubectl get` prints the first entry.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use leno_index::{Index, ProxyCoverage, TargetState};
use leno_resources::gateway::{BackendTlsPolicy, ParentRef, PolicyAncestorStatus, PolicyStatus};
use leno_resources::{AuthorizationPolicy, Object, PolicyTarget};
use leno_types::ServiceName;
use leno_types::mesh::{ExternalEndpoints, Roots};
use leno_types::traffic::{PolicySource, Traffic};

use crate::conditions::{
    ACCEPTED, ConditionProblem, ConditionResult, PROGRAMMED, RESOLVED, condition,
};
use crate::status::{CONTROLLER, MESSAGE};

pub use older::OlderProxies;

mod authorization;
mod older;
#[cfg(test)]
mod tests;

/// Most entries of a status (GEP-713).
const MAX_ANCESTORS: usize = 16;

/// The policy is invalid.
const INVALID: &str = "Invalid";
/// A target does not exist.
const NOT_FOUND: &str = "TargetNotFound";
/// Another policy takes precedence at the same target.
const CONFLICTED: &str = "Conflicted";
/// None of the authorities of a `BackendTLSPolicy` can be used (GEP-1897).
const NO_CERTIFICATE: &str = "NoValidCACertificate";
/// One of the authorities of a `BackendTLSPolicy` does not exist, or has no certificate (GEP-1897).
const BAD_REFERENCE: &str = "InvalidCACertificateRef";
/// The policy is not programmed because it is not accepted.
const NOT_ACCEPTED: &str = "NotAccepted";
/// No proxy exists that would apply the policy.
const NO_PROXY: &str = "NoProxy";
/// The policy's route attaches to no Service.
const NOT_ATTACHED: &str = "RouteNotAttached";
/// Policies of narrower targets take precedence everywhere.
const OVERRIDDEN: &str = "Overridden";
/// Every endpoint has a proxy, and connections to proxies use the mesh's own TLS.
const MESHED: &str = "Meshed";

/// A policy as written.
struct Policy<'o> {
    object: &'o Object,
    namespace: &'o str,
    name: &'o str,
    generation: Option<i64>,
    targets: Cow<'o, [PolicyTarget]>,
    said: Option<&'o PolicyStatus>,
}

impl<'o> Policy<'o> {
    /// The policy in an object; `None` if the object is not a policy.
    fn new(object: &'o Object) -> Option<Self> {
        let (metadata, targets, said) = match object {
            Object::TrafficPolicy(policy) => {
                (&policy.metadata, &policy.spec.target_refs, &policy.status)
            }
            Object::RateLimitPolicy(policy) => {
                (&policy.metadata, &policy.spec.target_refs, &policy.status)
            }
            Object::AuthorizationPolicy(policy) => {
                let AuthorizationPolicy { metadata, spec, status } = &**policy;
                return Some(Self {
                    object,
                    namespace: &metadata.namespace,
                    name: &metadata.name,
                    generation: metadata.generation,
                    targets: match &spec.selector {
                        None => Cow::Borrowed(&spec.target_refs),
                        Some(_) => Cow::Owned(vec![own_namespace(&metadata.namespace)]),
                    },
                    said: status.as_ref(),
                });
            }
            Object::BackendTlsPolicy(policy) => {
                let metadata = &policy.metadata;
                return Some(Self {
                    object,
                    namespace: metadata.namespace.as_deref().unwrap_or_default(),
                    name: metadata.name.as_deref().unwrap_or_default(),
                    generation: metadata.generation,
                    targets: Cow::Borrowed(&policy.spec.target_refs),
                    said: policy.status.as_ref(),
                });
            }
            _ => return None,
        };
        let (namespace, name) = (metadata.namespace.as_str(), metadata.name.as_str());
        let (generation, said) = (metadata.generation, said.as_ref());
        let targets = Cow::Borrowed(targets.as_slice());
        Some(Self { object, namespace, name, generation, targets, said })
    }
}

/// The status of an invalid policy: it is not accepted, and the message is `reason`. `None` if the policy already
/// has this status.
#[must_use]
pub fn refused_policy(object: &Object, reason: &str, now: &Time) -> Option<PolicyStatus> {
    let policy = Policy::new(object)?;
    merged(&policy, now, |_| {
        let message = format!(
            "not understood: {reason}; the last valid version of the policy \
             stays in effect"
        );
        vec![(ACCEPTED, wrong(INVALID, message.chars().take(MESSAGE).collect::<String>()))]
    })
}

/// The status that a policy should have. `older` are the proxies of earlier releases that do not enforce it.
/// `None` if the policy already has this status, or if the object is not a policy.
#[must_use]
pub fn policy_status(
    index: &Index,
    object: &Object,
    older: Option<&OlderProxies>,
    now: &Time,
) -> Option<PolicyStatus> {
    let policy = Policy::new(object)?;
    merged(&policy, now, |target| {
        let mut found = found(index, &policy, target);
        if let Some(unenforced) = older.and_then(OlderProxies::found) {
            // Older proxies are only reported if nothing else prevents proxies from applying the policy.
            for (_, programmed) in
                found.iter_mut().filter(|(kind, one)| *kind == PROGRAMMED && one.is_ok())
            {
                programmed.clone_from(&unenforced);
            }
        }
        found
    })
}

/// The whole status: the entries of other controllers, and one entry of this controller for each target.
fn merged(
    policy: &Policy<'_>,
    now: &Time,
    find: impl Fn(&PolicyTarget) -> Vec<(&'static str, ConditionResult)>,
) -> Option<PolicyStatus> {
    let said = policy.said.map(|status| status.ancestors.as_slice()).unwrap_or_default();
    let mut ours: Vec<PolicyAncestorStatus> = Vec::new();
    for target in policy.targets.iter() {
        let ancestor_ref = ancestor(policy.namespace, target);
        if ours.iter().any(|entry| entry.ancestor_ref == ancestor_ref) {
            continue;
        }
        let before = said.iter().find(|entry| {
            entry.controller_name == CONTROLLER && entry.ancestor_ref == ancestor_ref
        });
        let before = before.map(|entry| entry.conditions.as_slice()).unwrap_or_default();
        let of = |(kind, found): (&'static str, ConditionResult)| {
            let before = before.iter().find(|condition| condition.type_ == kind);
            condition(kind, found, policy.generation, (before, now))
        };
        let conditions: Vec<Condition> = find(target).into_iter().map(of).collect();
        let controller_name = CONTROLLER.to_owned();
        ours.push(PolicyAncestorStatus { ancestor_ref, controller_name, conditions });
    }
    let holds =
        |entry: &PolicyAncestorStatus| entry.conditions.iter().all(|one| one.status == "True");
    ours.sort_by_key(holds);
    // Entries of other controllers keep their positions, because those controllers may rely on the order.
    let mut ours = ours.into_iter();
    let mut ancestors: Vec<PolicyAncestorStatus> = Vec::with_capacity(said.len());
    for entry in said {
        if entry.controller_name == CONTROLLER {
            ancestors.extend(ours.next());
        } else {
            ancestors.push(entry.clone());
        }
    }
    ancestors.extend(ours);
    ancestors.truncate(MAX_ANCESTORS);
    (ancestors != said).then_some(PolicyStatus { ancestors })
}

/// The target of a policy that selects workloads of its namespace by their labels.
fn own_namespace(namespace: &str) -> PolicyTarget {
    PolicyTarget {
        group: String::new(),
        kind: "Namespace".to_owned(),
        name: namespace.to_owned(),
        section_name: None,
    }
}

/// A target in the form of an ancestor.
fn ancestor(namespace: &str, target: &PolicyTarget) -> ParentRef {
    ParentRef {
        group: Some(target.group.clone()),
        kind: Some(target.kind.clone()),
        namespace: Some(namespace.to_owned()),
        name: target.name.clone(),
        section_name: target.section_name.clone(),
        port: None,
    }
}

fn found(
    index: &Index,
    policy: &Policy<'_>,
    target: &PolicyTarget,
) -> Vec<(&'static str, ConditionResult)> {
    if let Object::AuthorizationPolicy(written) = policy.object {
        return authorization::found(index, policy, written, target);
    }
    let is_there = exists(index, policy, target);
    match policy.object {
        Object::BackendTlsPolicy(written) => match is_there {
            Ok(()) => tls(index, policy, written, target),
            Err(wrong) => {
                let resolved = (RESOLVED, Ok(String::new()));
                vec![(ACCEPTED, Err(wrong)), resolved, (PROGRAMMED, not_accepted())]
            }
        },
        Object::TrafficPolicy(_) => {
            let accepted = is_there.and_then(|()| rivals(index, policy, target));
            let programmed = match &accepted {
                Ok(_) => sent(index, policy, target),
                Err(_) => not_accepted(),
            };
            vec![(ACCEPTED, accepted), (PROGRAMMED, programmed)]
        }
        _ => {
            let accepted = is_there.map(|()| String::new());
            let programmed = match &accepted {
                Ok(_) => limited(index, policy, target),
                Err(_) => not_accepted(),
            };
            vec![(ACCEPTED, accepted), (PROGRAMMED, programmed)]
        }
    }
}

fn exists(
    index: &Index,
    policy: &Policy<'_>,
    target: &PolicyTarget,
) -> Result<(), ConditionProblem> {
    let PolicyTarget { kind, name, section_name, .. } = target;
    let whole = format!("{kind} {}/{name}", policy.namespace);
    let message = match index.target(policy.namespace, target) {
        TargetState::Found => return Ok(()),
        TargetState::NoObject if kind.ends_with("Route") => {
            format!("there is no {whole} that attaches to a Service")
        }
        TargetState::NoObject => format!("there is no {whole}"),
        TargetState::NoSection => {
            let part = if kind.ends_with("Route") { "rule" } else { "port" };
            format!("{whole} has no {part} {}", section_name.as_deref().unwrap_or_default())
        }
    };
    Err(ConditionProblem { reason: NOT_FOUND, message })
}

/// Whether any part of this policy is in effect, given the other traffic policies of the same target. For each
/// part, the older policy takes precedence, then the first by name.
fn rivals(index: &Index, policy: &Policy<'_>, target: &PolicyTarget) -> ConditionResult {
    let all = index.traffic_at(policy.namespace, target);
    let is_own = |traffic: &PolicySource| *traffic.name == *policy.name;
    let Some(own) = all.iter().position(|traffic| is_own(&traffic.source)) else {
        return Ok(String::new());
    };
    let own_parts = parts(all[own]);
    let mut lost: Vec<(&str, &PolicySource)> = Vec::new();
    for part in &own_parts {
        if let Some(holder) = all[..own].iter().find(|one| parts(one).contains(part)) {
            lost.push((part, &holder.source));
        }
    }
    let said = |(part, by): &(&str, &PolicySource)| {
        format!("{part}: TrafficPolicy {} takes precedence", by.name)
    };
    let message = lost.iter().map(said).collect::<Vec<_>>().join("; ");
    if !lost.is_empty() && lost.len() == own_parts.len() {
        let message = format!(
            "older policies of the same target take precedence in all parts: \
             {message}"
        );
        return wrong(CONFLICTED, message);
    }
    Ok(message)
}

/// The names of those parts of a policy that take effect independently of each other.
fn parts(traffic: &Traffic) -> Vec<&'static str> {
    let Traffic { retries, hedging, limits, ejection, balancing, faults, timeouts, .. } = traffic;
    let all = [
        ("retries", retries.is_some()),
        ("hedging", hedging.is_some()),
        ("limits", limits.is_some()),
        ("ejection", ejection.is_some()),
        ("balancing", balancing.is_some()),
        ("faults", faults.is_some()),
        ("timeouts.request", timeouts.request.is_some()),
        ("timeouts.response", timeouts.response.is_some()),
        ("timeouts.idle", timeouts.idle.is_some()),
        ("timeouts.stream", timeouts.stream.is_some()),
    ];
    all.into_iter().filter(|(_, is_there)| *is_there).map(|(part, _)| part).collect()
}

/// Whether clients receive a traffic policy.
fn sent(index: &Index, policy: &Policy<'_>, target: &PolicyTarget) -> ConditionResult {
    let all = index.traffic_at(policy.namespace, target);
    let own = all.iter().find(|traffic| *traffic.source.name == *policy.name);
    match own {
        Some(own) if index.sends(policy.namespace, target, &own.source) => Ok(String::new()),
        _ => {
            let PolicyTarget { kind, name, .. } = target;
            let message = format!(
                "{kind} {name} applies to no Service: its own status has the \
                 reason"
            );
            wrong(NOT_ATTACHED, message)
        }
    }
}

/// Whether a proxy limits the requests of a target.
fn limited(index: &Index, policy: &Policy<'_>, target: &PolicyTarget) -> ConditionResult {
    match index.proxies_at(policy.namespace, target) {
        ProxyCoverage::All => Ok(String::new()),
        ProxyCoverage::Some => {
            Ok("some instances have no proxy, so their requests are not limited".to_owned())
        }
        ProxyCoverage::None => wrong(NO_PROXY, "no instance has a proxy, so nothing is limited"),
        ProxyCoverage::NoInstance => wrong(NO_PROXY, "there is no ready instance"),
    }
}

fn tls(
    index: &Index,
    policy: &Policy<'_>,
    written: &BackendTlsPolicy,
    target: &PolicyTarget,
) -> Vec<(&'static str, ConditionResult)> {
    let holder = index.tls_at(policy.namespace, target);
    if let Some(holder) = holder.filter(|holder| *holder != policy.name) {
        let message = format!("BackendTLSPolicy {holder} is older and has the same target");
        let resolved = (RESOLVED, Ok(String::new()));
        return vec![
            (ACCEPTED, wrong(CONFLICTED, message)),
            resolved,
            (PROGRAMMED, not_accepted()),
        ];
    }
    let name = ServiceName::new(policy.namespace, &target.name).ok();
    let service = name.and_then(|name| index.service(&name));
    let source = format!("BackendTLSPolicy {}/{}", policy.namespace, policy.name);
    let is_own = |external: &&ExternalEndpoints| {
        external.tls.as_ref().is_some_and(|tls| *tls.source == *source)
    };
    let ports = service.iter().flat_map(|service| &service.ports);
    let mut own =
        ports.filter(|port| port.external.as_deref().is_some_and(|one| is_own(&one))).peekable();
    if own.peek().is_none() {
        let message = "policies of its ports take precedence at each of them";
        return vec![
            (ACCEPTED, Ok(String::new())),
            (RESOLVED, Ok(String::new())),
            (PROGRAMMED, wrong(OVERRIDDEN, message)),
        ];
    }
    let own: Vec<_> = own.collect();
    let roots = own[0].external.as_deref().and_then(|one| one.tls.as_ref()).map(|tls| &tls.roots);
    if let Some(Roots::Missing(why)) = roots {
        // GEP-1897 defines this reason for policies without any usable authority. If there are several references,
        // the index only reports the first that cannot be used, so others may be usable.
        let several = written.spec.validation.ca_certificate_refs.iter().flatten().count() > 1;
        let accepted = if several { Ok(String::new()) } else { wrong(NO_CERTIFICATE, &**why) };
        let message = format!("{why}, so no request is sent to {}", target.name);
        return vec![
            (ACCEPTED, accepted),
            (RESOLVED, wrong(BAD_REFERENCE, &**why)),
            (PROGRAMMED, wrong(BAD_REFERENCE, message)),
        ];
    }
    let named =
        own.iter().any(|port| port.external.as_deref().is_some_and(|one| !one.names.is_empty()));
    let mut endpoints = own.iter().flat_map(|port| port.endpoints.iter()).peekable();
    let is_meshed =
        !named && endpoints.peek().is_some() && endpoints.all(|one| one.identity.is_some());
    let programmed = if is_meshed {
        wrong(MESHED, "every endpoint has a proxy, with which mTLS is used in any case")
    } else {
        Ok(String::new())
    };
    vec![(ACCEPTED, Ok(String::new())), (RESOLVED, Ok(String::new())), (PROGRAMMED, programmed)]
}

fn not_accepted() -> ConditionResult {
    wrong(NOT_ACCEPTED, "see the condition Accepted")
}

fn wrong(reason: &'static str, message: impl Into<String>) -> ConditionResult {
    Err(ConditionProblem { reason, message: message.into() })
}
