//! Finds authorization policies that proxies cannot apply.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use leno_resources::{AuthorizationPolicy, Kind, ObjectKey};
use leno_types::authorization::MAX_POLICIES;
use leno_types::mesh::Workload;
use leno_types::{InstanceName, ServiceName};

use super::finding::{Findings, Mistake};
use super::routes::{instead, ports};
use crate::mesh::MeshModel;

impl MeshModel {
    /// The workloads with more policies than a proxy can apply, each with the reason.
    #[must_use]
    pub fn overloaded(&self) -> Vec<(InstanceName, Arc<str>)> {
        let unusable = |one: &Arc<Workload>| {
            let policy = self.index.server_policy(&one.name)?;
            Some((one.name.clone(), policy.authorization.unusable.clone()?))
        };
        self.instances().filter_map(unusable).collect()
    }

    fn instances(&self) -> impl Iterator<Item = &Arc<Workload>> {
        let namespaces: BTreeSet<String> =
            self.objects.iter().map(|object| object.key().namespace).collect();
        namespaces.into_iter().flat_map(|one| self.index.workloads_in(&one).collect::<Vec<_>>())
    }
}

/// Adds a finding for each policy with which the number of a workload's policies first exceeds the bound. If the
/// policies together are too large instead, the finding is about the last one.
pub(super) fn authorization(mesh: &MeshModel, findings: &mut Findings<'_>) {
    let mut found: BTreeMap<usize, (InstanceName, Arc<str>)> = BTreeMap::new();
    for (name, reason) in mesh.overloaded() {
        let Some(policy) = mesh.index.server_policy(&name) else { continue };
        let of = |source: &leno_types::traffic::PolicySource| ObjectKey {
            kind: Kind::AuthorizationPolicy,
            namespace: source.namespace.to_string(),
            name: source.name.to_string(),
        };
        let policies = &policy.authorization.policies;
        let mut surplus = policies.iter().skip(MAX_POLICIES).chain(policies.last());
        if let Some(at) = surplus.find_map(|one| findings.position(&of(&one.source))) {
            found.entry(at).or_insert((name, reason));
        }
    }
    for (at, (name, reason)) in found {
        let reason = format!("workload {name} denies every client: {reason}");
        let remedy =
            "merge rules of several policies into one, or select fewer workloads".to_owned();
        findings.push(at, "spec", Mistake::error("too-many-policies", reason, remedy));
    }
}

/// Finds a policy whose external authorizer cannot be called.
pub(super) fn authorizer(
    mesh: &MeshModel,
    findings: &mut Findings<'_>,
    at: usize,
    policy: &AuthorizationPolicy,
) {
    let Some(external) = &policy.spec.external else { return };
    let of = &external.backend_ref;
    let namespace = of.namespace.as_ref().unwrap_or(&policy.metadata.namespace);
    let Ok(service) = ServiceName::new(namespace, &of.name) else { return };
    let path = "spec.external.backendRef";
    let Some(known) = mesh.index.service(&service) else {
        let reason =
            format!("there is no Service {service}, so requests that need its decision are denied");
        let wrong = Mistake::error("authorizer-not-found", reason, instead(mesh, &service));
        return findings.push(at, &format!("{path}.name"), wrong);
    };
    if known.port(of.port).is_none() {
        let reason = format!(
            "{service} has no port {}, so requests that need its decision are denied",
            of.port
        );
        let remedy = format!("it has {}", ports(&known));
        let wrong = Mistake::error("authorizer-not-found", reason, remedy);
        findings.push(at, &format!("{path}.port"), wrong);
    }
}
