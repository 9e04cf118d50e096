//! Determines the state of a policy at its targets: whether they exist, which other policies have the same target,
//! and whether proxies apply the policy.

use std::collections::BTreeMap;

use leno_resources::{ObjectKey, PolicyTarget};
use leno_types::mesh::{Resolution, Subject};
use leno_types::traffic::{PolicySource, Traffic};
use leno_types::{InstanceName, ServiceName};

use crate::build::policies::is_named;
use crate::facts::Facts;
use crate::index::Index;
use crate::rows::InstanceRow;
use crate::rows::policies::{TargetRow, row};

/// Whether the target of a policy exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetState {
    /// The target exists.
    Found,
    /// There is no such object.
    NoObject,
    /// The object has no such port or rule.
    NoSection,
}

/// Which of a target's instances have a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyCoverage {
    /// The target has no instance.
    NoInstance,
    /// No instance has a proxy.
    None,
    /// Some of the instances have a proxy.
    Some,
    /// All instances have a proxy.
    All,
}

impl Index {
    /// Whether the target of a policy in `namespace` exists.
    #[must_use]
    pub fn target(&self, namespace: &str, target: &PolicyTarget) -> TargetState {
        match row(target, namespace) {
            None => TargetState::NoObject,
            Some(TargetRow::Service(name, section)) => match self.facts.service(&name) {
                None => TargetState::NoObject,
                Some(_) if section.is_none() => TargetState::Found,
                Some(_) => match place(&self.facts, &name, section.as_deref()) {
                    Some(_) => TargetState::Found,
                    None => TargetState::NoSection,
                },
            },
            Some(TargetRow::Object(key, section)) if key.kind == leno_resources::Kind::Workload => {
                match (self.facts.is_owner(&key), section) {
                    (false, _) => TargetState::NoObject,
                    (true, Some(_)) => TargetState::NoSection,
                    (true, None) => TargetState::Found,
                }
            }
            Some(TargetRow::Object(key, section)) => match self.facts.routes().rule_names(&key) {
                None => TargetState::NoObject,
                Some(mut rules) => match section {
                    Some(section) if !rules.any(|rule| *rule == *section) => TargetState::NoSection,
                    _ => TargetState::Found,
                },
            },
        }
    }

    /// The traffic policies with the same target as this policy in `namespace`. The one that takes precedence is
    /// first.
    #[must_use]
    pub fn traffic_at(&self, namespace: &str, target: &PolicyTarget) -> Vec<&Traffic> {
        let Some(wanted) = row(target, namespace) else { return Vec::new() };
        let facts = &self.facts;
        let is_there = |targets: &[TargetRow]| targets.iter().any(|one| same(facts, one, &wanted));
        let mut found: Vec<&Traffic> = match &wanted {
            TargetRow::Service(name, _) => {
                let rows = facts.traffic().of_service(name).filter(|row| is_there(&row.targets));
                rows.map(|row| &row.traffic).collect()
            }
            TargetRow::Object(key, _) => {
                let rows = facts.traffic().of_object(key).filter(|row| is_there(&row.targets));
                rows.map(|row| &row.traffic).collect()
            }
        };
        found.sort_by_key(|traffic| &traffic.source);
        found
    }

    /// Whether clients receive this traffic policy with a service. A policy for a route is sent to all clients that
    /// receive the route. Clients in the policy's own namespace always receive the route, so it is enough to look up
    /// what they receive.
    #[must_use]
    pub fn sends(&self, namespace: &str, target: &PolicyTarget, source: &PolicySource) -> bool {
        let services: Vec<ServiceName> = match row(target, namespace) {
            None => Vec::new(),
            Some(TargetRow::Service(name, _)) => vec![name],
            Some(TargetRow::Object(key, _)) => self.facts.routes().parents(&key).cloned().collect(),
        };
        services.into_iter().any(|name| {
            let resolved = self.resolve(&Subject::Service(name), namespace);
            let Resolution::Service(service) = resolved else { return false };
            service.traffic.iter().any(|traffic| traffic.source == *source)
        })
    }

    /// The name of the `BackendTLSPolicy` that takes precedence at this target.
    #[must_use]
    pub fn tls_at(&self, namespace: &str, target: &PolicyTarget) -> Option<&str> {
        let wanted = row(target, namespace)?;
        let TargetRow::Service(name, _) = &wanted else { return None };
        let rows = self.facts.backend_tls().of_service(name);
        let rows = rows.filter(|row| row.targets.iter().any(|one| same(&self.facts, one, &wanted)));
        rows.min_by_key(|row| &row.precedence).map(|row| row.precedence.1.as_str())
    }

    /// Which of the instances of a namespace with these labels have a proxy.
    #[must_use]
    pub fn proxies_with(
        &self,
        namespace: &str,
        labels: &BTreeMap<String, String>,
    ) -> ProxyCoverage {
        let of = |name| self.facts.instance(name).map(|row| (name, row));
        let rows = self.facts.instances_in(namespace).filter_map(of);
        let has = |row: &InstanceRow, (key, value): (&String, &String)| {
            row.labels.get(key) == Some(value)
        };
        let selected = rows.filter(|(_, row)| labels.iter().all(|label| has(row, label)));
        proxies(selected.map(|(name, row)| self.facts.is_meshed(name, row)))
    }

    /// Which instances of the mesh have a proxy.
    #[must_use]
    pub fn proxies(&self) -> ProxyCoverage {
        proxies(self.facts.all_instances().map(|(name, row)| self.facts.is_meshed(name, row)))
    }

    /// Whether each issuer of an authorization policy has keys, in the order of the document. Empty if the policy
    /// does not exist.
    #[must_use]
    pub fn issuers_with_keys(&self, key: &ObjectKey) -> Vec<bool> {
        let row = self.facts.authorizations().attached().get(key);
        let issuers = row.iter().flat_map(|row| row.policy.tokens.iter());
        issuers.map(|issuer| !issuer.keys.is_empty()).collect()
    }

    /// Whether policies of this namespace may apply to the whole mesh.
    #[must_use]
    pub fn is_of_mesh(&self, namespace: &str) -> bool {
        self.facts.is_of_mesh(namespace)
    }

    /// The namespace of the control plane.
    #[must_use]
    pub fn system_namespace(&self) -> &str {
        self.facts.system_namespace()
    }

    /// Which of the instances behind a target of a policy in `namespace` have a proxy.
    #[must_use]
    pub fn proxies_at(&self, namespace: &str, target: &PolicyTarget) -> ProxyCoverage {
        let has_proxy = |name: &InstanceName| {
            self.facts.instance(name).is_some_and(|row| self.facts.is_meshed(name, row))
        };
        match row(target, namespace) {
            Some(TargetRow::Service(name, section)) => {
                let wanted = place(&self.facts, &name, section.as_deref());
                let service = self.service(&name);
                let ports = service.iter().flat_map(|service| &service.ports);
                let ports = ports.filter(|port| section.is_none() || wanted == Some(port.port));
                // An endpoint that is not an instance of the mesh has no proxy.
                proxies(
                    ports
                        .flat_map(|port| port.endpoints.iter())
                        .map(|endpoint| endpoint.workload.as_ref().is_some_and(has_proxy)),
                )
            }
            Some(TargetRow::Object(key, _)) => {
                proxies(self.facts.instances_of(&key).iter().map(has_proxy))
            }
            None => ProxyCoverage::NoInstance,
        }
    }
}

fn proxies(have: impl Iterator<Item = bool>) -> ProxyCoverage {
    let mut found = ProxyCoverage::NoInstance;
    for has in have {
        found = match (found, has) {
            (ProxyCoverage::NoInstance | ProxyCoverage::All, true) => ProxyCoverage::All,
            (ProxyCoverage::NoInstance | ProxyCoverage::None, false) => ProxyCoverage::None,
            _ => return ProxyCoverage::Some,
        };
    }
    found
}

/// The number of the service's port that `section` names.
fn place(facts: &Facts, service: &ServiceName, section: Option<&str>) -> Option<u16> {
    let section = section?;
    let ports = &facts.service(service)?.ports;
    ports.iter().find(|port| is_named(port, section)).map(|port| port.number)
}

/// Whether two targets are the same. A port may be given by name or by number.
fn same(facts: &Facts, one: &TargetRow, other: &TargetRow) -> bool {
    match (one, other) {
        (TargetRow::Service(one, first), TargetRow::Service(other, second)) => {
            let port = |section: &Option<String>| place(facts, one, section.as_deref());
            one == other
                && (first == second || (port(first).is_some() && port(first) == port(second)))
        }
        (TargetRow::Object(..), TargetRow::Object(..)) => one == other,
        _ => false,
    }
}
