//! Converts authorization policies to rows.

use std::collections::BTreeMap;

use leno_resources::AuthorizationPolicy;
use leno_types::TrustDomain;
use leno_types::authorization as meaning;
use leno_types::mesh::{ServerPolicy, Topology};
use leno_types::{Egress, InstanceName, MtlsMode, Removal};

use super::policies::{TargetRow, row};

/// An authorization policy.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AuthorizationRow {
    /// The workloads and services to which it is attached.
    pub(crate) targets: Vec<TargetRow>,
    /// The labels of the workloads in its namespace to which it applies; an empty map stands for all workloads.
    pub(crate) selector: Option<BTreeMap<String, String>>,
    /// Whether it applies to every workload of the mesh.
    pub(crate) of_mesh: bool,
    /// The policy as proxies receive it, for all ports.
    pub(crate) policy: meaning::AuthorizationPolicy,
    /// Approximately how many bytes it takes in a message to a proxy.
    pub(crate) bytes: usize,
}

impl AuthorizationRow {
    /// Whether its selector selects a workload with these labels in its namespace.
    pub(crate) fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        let has = |(key, value): (&String, &String)| labels.get(key) == Some(value);
        self.selector.as_ref().is_some_and(|selector| selector.iter().all(has))
    }
}

pub(crate) fn authorization(
    policy: &AuthorizationPolicy,
    trust_domain: &TrustDomain,
) -> AuthorizationRow {
    let namespace = &policy.metadata.namespace;
    let targets = &policy.spec.target_refs;
    let is_a = |kind: &str| targets.iter().any(|target| target.kind == kind);
    let labels = policy.spec.selector.as_ref().map(|selector| selector.match_labels.clone());
    let meaning = policy.policy(trust_domain);
    AuthorizationRow {
        bytes: bytes(&meaning),
        targets: targets.iter().filter_map(|target| row(target, namespace)).collect(),
        selector: if is_a("Namespace") { Some(BTreeMap::new()) } else { labels },
        of_mesh: is_a("Mesh"),
        policy: meaning,
    }
}

/// The size of a policy in its encoded form, including its part of the message.
fn bytes(policy: &meaning::AuthorizationPolicy) -> usize {
    let policies = [policy.clone()].into();
    let authorization = meaning::Authorization { policies, ..meaning::Authorization::default() };
    let alone = ServerPolicy {
        workload: InstanceName { namespace: "".into(), name: "".into() },
        mtls: MtlsMode::default(),
        ports: Vec::new(),
        limits: [].into(),
        egress: Egress::default(),
        place: Topology::default(),
        ending: false,
        removal: Removal::default(),
        authorization: authorization.into(),
    };
    leno_wire::encode::server_policy(&alone).value.len()
}
