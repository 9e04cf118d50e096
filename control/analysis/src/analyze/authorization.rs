//! Authorization that proxies cannot apply, or that holds for a part of what a client sends.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use leno_resources::{AuthorizationPolicy, Kind, Object, ObjectKey};
use leno_types::InstanceName;
use leno_types::authorization::MAX_POLICIES;
use leno_types::mesh::Workload;

use super::finding::{Findings, Mistake};
use crate::mesh::Mesh;

impl Mesh {
    /// The workloads that more policies select than a proxy applies, each with the number of them.
    #[must_use]
    pub fn overloaded(&self) -> Vec<(InstanceName, usize)> {
        let number = |name: &InstanceName| {
            self.index.server_policy(name).map_or(0, |policy| policy.authorization.policies.len())
        };
        let workloads = self.instances().map(|one| (one.name.clone(), number(&one.name)));
        workloads.filter(|(_, number)| *number > MAX_POLICIES).collect()
    }

    fn instances(&self) -> impl Iterator<Item = &Arc<Workload>> {
        let namespaces: BTreeSet<String> =
            self.objects.iter().map(|object| object.key().namespace).collect();
        namespaces.into_iter().flat_map(|one| self.index.workloads_in(&one).collect::<Vec<_>>())
    }

    /// Whether an instance has addresses of both families.
    fn has_both_families(&self) -> bool {
        self.instances().any(|one| {
            one.addresses.iter().any(IpAddr::is_ipv4) && one.addresses.iter().any(IpAddr::is_ipv6)
        })
    }
}

pub(super) fn authorization(mesh: &Mesh, findings: &mut Findings<'_>) {
    too_many(mesh, findings);
    let mut both = None;
    for (at, object) in findings.objects() {
        if let Object::AuthorizationPolicy(policy) = object
            && !policy.spec.rules.is_empty()
            && *both.get_or_insert_with(|| mesh.has_both_families())
        {
            of_one_family(findings, at, policy);
        }
    }
}

/// A finding for each policy that is the first one too many for some workload.
fn too_many(mesh: &Mesh, findings: &mut Findings<'_>) {
    let mut found: BTreeMap<usize, (InstanceName, usize)> = BTreeMap::new();
    for (name, number) in mesh.overloaded() {
        let Some(policy) = mesh.index.server_policy(&name) else { continue };
        let of = |source: &leno_types::traffic::Source| ObjectKey {
            kind: Kind::AuthorizationPolicy,
            namespace: source.namespace.to_string(),
            name: source.name.to_string(),
        };
        let mut surplus = policy.authorization.policies.iter().skip(MAX_POLICIES);
        if let Some(at) = surplus.find_map(|one| findings.position(&of(&one.source))) {
            found.entry(at).or_insert((name, number));
        }
    }
    for (at, (name, number)) in found {
        let reason = format!(
            "{number} policies select workload {name}, and a proxy applies at most {MAX_POLICIES}: it denies \
             every client"
        );
        let remedy = "put rules of several policies into one, or select fewer workloads".to_owned();
        findings.push(at, "spec", Mistake::error("too-many-policies", reason, remedy));
    }
}

/// Blocks of one family, which do not match a client that connects over the other one.
fn of_one_family(findings: &mut Findings<'_>, at: usize, policy: &AuthorizationPolicy) {
    for (index, rule) in policy.spec.rules.iter().enumerate() {
        for (of, client) in rule.from.iter().enumerate() {
            let is_ipv6 = |cidr: &str| cidr.contains(':');
            let mut blocks = client.ip_blocks.iter().map(|block| is_ipv6(&block.cidr));
            let Some(first) = blocks.next() else { continue };
            if blocks.any(|other| other != first) {
                continue;
            }
            let (has, lacks) = if first { ("IPv6", "IPv4") } else { ("IPv4", "IPv6") };
            let reason = format!(
                "the blocks are of {has} alone, and workloads connect over {lacks} too, which no block \
                 matches"
            );
            let remedy = format!("add blocks of {lacks}, or name the clients by identity");
            let path = format!("spec.rules[{index}].from[{of}].ipBlocks");
            findings.push(at, &path, Mistake::warning("blocks-of-one-family", reason, remedy));
        }
    }
}
