//! Finds parts of policies without an effect: HTTP settings on opaque ports, and settings that another policy also
//! makes for the same target.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use leno_policy::PolicyPart;
use leno_resources::{Object, PolicyTarget, TrafficPolicy};
use leno_types::mesh::ServicePort;
use leno_types::traffic::{PolicyScope, PolicySource, Traffic};
use leno_types::{Protocol, ServiceName};

use super::finding::{Findings, Mistake};
use crate::mesh::MeshModel;

/// The fields of a policy that apply to HTTP requests and so have no effect on opaque connections.
fn of_requests(policy: &TrafficPolicy) -> Vec<&'static str> {
    let spec = &policy.spec;
    let limits = spec.limits.as_ref();
    let timeouts = spec.timeouts.as_ref();
    let all = [
        ("retries", spec.retries.is_some()),
        ("hedging", spec.hedging.is_some()),
        ("faults", spec.faults.is_some()),
        ("timeouts.request", timeouts.is_some_and(|part| part.request.is_some())),
        ("timeouts.response", timeouts.is_some_and(|part| part.response.is_some())),
        ("limits.requests", limits.is_some_and(|part| part.requests.is_some())),
        ("limits.pending", limits.is_some_and(|part| part.pending.is_some())),
        (
            "limits.requestsPerEndpoint",
            limits.is_some_and(|part| part.requests_per_endpoint.is_some()),
        ),
    ];
    all.into_iter().filter(|(_, is_there)| *is_there).map(|(field, _)| field).collect()
}

/// Finds the parts without effect.
pub(super) fn without_effect(mesh: &MeshModel, findings: &mut Findings<'_>) {
    // The policy that takes precedence, by target and part.
    let mut winners: BTreeMap<(String, PolicyPart), PolicySource> = BTreeMap::new();
    let mut policies: Vec<(usize, &TrafficPolicy, Traffic)> = findings
        .objects()
        .filter_map(|(at, object)| match object {
            Object::TrafficPolicy(policy) => {
                Some((at, &**policy, policy.traffic(PolicyScope::Service)))
            }
            _ => None,
        })
        .collect();
    // Proxies apply policies of the same target in this order: older policies first, then by name.
    policies.sort_by(|(.., one), (.., other)| one.source.cmp(&other.source));
    for (at, policy, traffic) in policies {
        for target in &policy.spec.target_refs {
            on_bytes(mesh, findings, (at, policy), target);
            for part in PolicyPart::ALL.into_iter().filter(|part| part.is_in(&traffic)) {
                match winners.entry((shown(policy, target), part)) {
                    Entry::Vacant(entry) => drop(entry.insert(traffic.source.clone())),
                    Entry::Occupied(entry) => {
                        let wrong = outranked(entry.key(), entry.get(), &traffic.source);
                        findings.push(at, &format!("spec.{}", part.as_str()), wrong);
                    }
                }
            }
        }
    }
}

/// The finding for a part of a policy that has no effect because `winner` sets it for the same target.
fn outranked(
    (target, part): &(String, PolicyPart),
    winner: &PolicySource,
    policy: &PolicySource,
) -> Mistake {
    let PolicySource { namespace, name, .. } = winner;
    let why = if winner.created < policy.created { "is older" } else { "is first by name" };
    let part = part.as_str();
    let reason = format!(
        "has no effect: TrafficPolicy {namespace}/{name} sets {part} for {target}, too, and takes \
         precedence because it {why}"
    );
    let remedy = format!("remove {part} here, or merge both policies");
    Mistake::warning("policy-conflict", reason, remedy)
}

fn on_bytes(
    mesh: &MeshModel,
    findings: &mut Findings<'_>,
    (at, policy): (usize, &TrafficPolicy),
    target: &PolicyTarget,
) {
    let namespace = &policy.metadata.namespace;
    let service = ServiceName::new(namespace, &target.name).ok();
    let service = service.filter(|_| target.kind == "Service");
    let Some(service) = service.and_then(|name| mesh.index.service(&name)) else { return };
    let meant = |port: &&ServicePort| {
        let section = target.section_name.as_deref();
        section.is_none_or(|section| *port.name == *section || port.port.to_string() == section)
    };
    let mut ports = service.ports.iter().filter(meant).peekable();
    if ports.peek().is_none() || !ports.all(|port| port.protocol == Protocol::Opaque) {
        return;
    }
    for field in of_requests(policy) {
        let reason = format!(
            "{field} applies to requests, but {} is opaque (by its appProtocol)",
            shown(policy, target)
        );
        let remedy = "remove it, or declare appProtocol: http, http2 or grpc".to_owned();
        let wrong = Mistake::warning("policy-on-bytes", reason, remedy);
        findings.push(at, &format!("spec.{field}"), wrong);
    }
}

/// Formats a target for messages.
fn shown(policy: &TrafficPolicy, target: &PolicyTarget) -> String {
    let PolicyTarget { kind, name, section_name, .. } = target;
    let whole = format!("{kind} {}/{name}", policy.metadata.namespace);
    match (section_name, kind.as_str()) {
        (None, _) => whole,
        (Some(section), "Service") => format!("port {section} of {whole}"),
        (Some(section), _) => format!("rule {section} of {whole}"),
    }
}
