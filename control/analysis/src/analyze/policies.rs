//! Finds mistakes in policies: missing targets, and retries that may repeat a write.

use leno_resources::{Kind, Object, ObjectKey, PolicyTarget, TrafficPolicy};
use leno_types::mesh::Service;
use leno_types::{ServiceName, nearest};

use super::effect;
use super::finding::{Findings, Mistake};
use super::routes::instead;
use crate::mesh::MeshModel;

/// The failures in which no server received the request, so that any request can be repeated.
const UNSENT: [&str; 2] = ["connect-failure", "refused-stream"];

pub(super) fn policies(mesh: &MeshModel, findings: &mut Findings<'_>) {
    for (at, object) in findings.objects() {
        let targets = match object {
            Object::TrafficPolicy(policy) => {
                repeated(findings, at, policy);
                &policy.spec.target_refs
            }
            Object::RateLimitPolicy(policy) => &policy.spec.target_refs,
            Object::AuthorizationPolicy(policy) => {
                effect::policy(mesh, findings, at, policy);
                super::authorization::authorizer(mesh, findings, at, policy);
                super::keys::keys(mesh, findings, at, policy);
                &policy.spec.target_refs
            }
            Object::BackendTlsPolicy(policy) => &policy.spec.target_refs,
            Object::Namespace(namespace) => {
                effect::of_namespace(mesh, findings, at, namespace);
                continue;
            }
            _ => continue,
        };
        let namespace = object.key().namespace;
        for (index, target) in targets.iter().enumerate() {
            let path = format!("spec.targetRefs[{index}]");
            self::target(mesh, findings, (at, &path), (&namespace, target));
        }
    }
}

/// Finds retries of requests that may already have changed something.
fn repeated(findings: &mut Findings<'_>, at: usize, policy: &TrafficPolicy) {
    let Some(retries) = policy.spec.retries.as_ref().filter(|one| one.non_idempotent) else {
        return;
    };
    let on = retries.on.iter().map(|trigger| trigger.0.as_str());
    let sent: Vec<&str> = on.filter(|trigger| !UNSENT.contains(trigger)).collect();
    if sent.is_empty() {
        return;
    }
    let reason = format!(
        "a POST that an application may have carried out is sent again, with its body, on {}",
        sent.join(", ")
    );
    let remedy = "leave nonIdempotent out, or retry on connect-failure and refused-stream alone";
    let wrong = Mistake::warning("retries-repeat-writes", reason, remedy.to_owned());
    findings.push(at, "spec.retries.nonIdempotent", wrong);
}

fn target(
    mesh: &MeshModel,
    findings: &mut Findings<'_>,
    (at, path): (usize, &str),
    (namespace, target): (&str, &PolicyTarget),
) {
    let nothing = |remedy: String| {
        let reason = format!(
            "there is no {} {namespace}/{}, so the policy has no effect",
            target.kind, target.name
        );
        Mistake::error("target-not-found", reason, remedy)
    };
    let name = format!("{path}.name");
    if matches!(target.kind.as_str(), "Namespace" | "Mesh") {
        // These targets always exist: the policy's own namespace, or the mesh.
        return;
    }
    if target.kind != Kind::Service.as_str() {
        let Some(kind) = Kind::ALL.into_iter().find(|kind| kind.as_str() == target.kind) else {
            return;
        };
        let wanted = ObjectKey { kind, namespace: namespace.to_owned(), name: target.name.clone() };
        let keys: Vec<ObjectKey> = mesh.objects.iter().map(Object::key).collect();
        if !keys.contains(&wanted) {
            let near = keys.iter().filter(|key| key.kind == kind && key.namespace == namespace);
            let meant = nearest(&target.name, near.map(|key| key.name.as_str()));
            let remedy = match meant {
                Some(meant) => format!("did you mean {meant}?"),
                None => "a policy must be in the namespace of its target".to_owned(),
            };
            findings.push(at, &name, nothing(remedy));
        }
        return;
    }
    let Ok(service) = ServiceName::new(namespace, &target.name) else { return };
    let Some(known) = mesh.index.service(&service) else {
        return findings.push(at, &name, nothing(instead(mesh, &service)));
    };
    if let Some(section) = &target.section_name
        && !has_port(&known, section)
    {
        let reason = format!("{service} has no port {section}, so the policy has no effect");
        let remedy = format!("it has {}", super::routes::ports(&known));
        let wrong = Mistake::error("target-port-not-found", reason, remedy);
        findings.push(at, &format!("{path}.sectionName"), wrong);
    }
}

/// Whether a service has a port with this name or number.
fn has_port(service: &Service, section: &str) -> bool {
    let mut ports = service.ports.iter();
    ports.any(|port| *port.name == *section || port.port.to_string() == section)
}
