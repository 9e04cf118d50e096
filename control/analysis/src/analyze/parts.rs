//! Parts of policies without effect: HTTP settings on opaque ports, and settings that another policy
//! of the same target has, too.

use std::collections::BTreeMap;

use leno_resources::{Object, PolicyTarget, TrafficPolicy};
use leno_types::mesh::ServicePort;
use leno_types::{Protocol, ServiceName};

use super::finding::{Findings, Wrong};
use crate::mesh::Mesh;

/// The parts that a policy sets.
fn parts(policy: &TrafficPolicy) -> Vec<&'static str> {
    let spec = &policy.spec;
    let all = [
        ("retries", spec.retries.is_some()),
        ("timeouts", spec.timeouts.is_some()),
        ("hedging", spec.hedging.is_some()),
        ("limits", spec.limits.is_some()),
        ("ejection", spec.ejection.is_some()),
        ("balancing", spec.balancing.is_some()),
        ("faults", spec.faults.is_some()),
    ];
    all.into_iter().filter(|(_, is_there)| *is_there).map(|(part, _)| part).collect()
}

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
pub(super) fn without_effect(mesh: &Mesh, findings: &mut Findings<'_>) {
    // By target and part: the first policy, by name, that sets the part.
    let mut first: BTreeMap<(String, &'static str), String> = BTreeMap::new();
    let mut policies: Vec<(usize, &TrafficPolicy)> = findings
        .objects()
        .filter_map(|(at, object)| match object {
            Object::TrafficPolicy(policy) => Some((at, &**policy)),
            _ => None,
        })
        .collect();
    policies.sort_by_key(|(_, policy)| (&policy.metadata.namespace, &policy.metadata.name));
    for (at, policy) in policies {
        for target in &policy.spec.target_refs {
            on_bytes(mesh, findings, (at, policy), target);
            for part in parts(policy) {
                let key = (shown(policy, target), part);
                let Some(other) = first.get(&key) else {
                    first.insert(key, policy.metadata.name.clone());
                    continue;
                };
                let namespace = &policy.metadata.namespace;
                let reason = format!(
                    "TrafficPolicy {namespace}/{other} has {part} for {}, too, and only one of both \
                     holds",
                    key.0
                );
                let remedy =
                    "put them into one policy; else the older one holds, and of two as old \
                              the first by name"
                        .to_owned();
                let wrong = Wrong::warning("policy-conflict", reason, remedy);
                findings.push(at, &format!("spec.{part}"), wrong);
            }
        }
    }
}

fn on_bytes(
    mesh: &Mesh,
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
            "{field} is about requests, and {} carries bytes (its appProtocol says so)",
            shown(policy, target)
        );
        let remedy = "remove it, or declare appProtocol: http, http2 or grpc".to_owned();
        let wrong = Wrong::warning("policy-on-bytes", reason, remedy);
        findings.push(at, &format!("spec.{field}"), wrong);
    }
}

/// A target in the form that messages use.
fn shown(policy: &TrafficPolicy, target: &PolicyTarget) -> String {
    let PolicyTarget { kind, name, section_name, .. } = target;
    let whole = format!("{kind} {}/{name}", policy.metadata.namespace);
    match (section_name, kind.as_str()) {
        (None, _) => whole,
        (Some(section), "Service") => format!("port {section} of {whole}"),
        (Some(section), _) => format!("rule {section} of {whole}"),
    }
}
