//! Selects the authorization policies that apply to a workload.

use std::collections::BTreeMap;
use std::sync::Arc;

use leno_resources::WaypointUse;
use leno_types::authorization::{
    Action, Authorization, AuthorizationPolicy, ClientMatch, MAX_POLICIES, PermissionRule,
};
use leno_types::authorizer::ExternalAuthorizer;
use leno_types::traffic::PolicySource;
use leno_types::{InstanceName, Removal};

use super::policies::numbers;
use crate::facts::Facts;
use crate::rows::authorization::AuthorizationRow;
use crate::rows::policies::TargetRow;

/// Most bytes of all policies of one workload in their encoded form. It is half of the largest message to a proxy
/// ([`leno_wire::MAX_MESSAGE`]), because the message has other parts as well.
const MAX_BYTES: usize = leno_wire::MAX_MESSAGE / 2;

/// Policies by namespace and name, each with its encoded size in bytes.
type Selected = BTreeMap<(Arc<str>, Arc<str>), (AuthorizationPolicy, usize)>;

/// The policies that apply to an instance with these labels, and the default of its namespace. These are the policies
/// of the mesh, and those of its namespace that select its labels or are attached to its workload or to a service on
/// it. If only its waypoint may connect to it, that waypoint enforces their Allow policies instead.
///
/// While the mesh is being removed, there are no policies: clients lose their identities, so that policies would
/// deny all of them.
pub(crate) fn authorization(
    facts: &Facts,
    name: &InstanceName,
    labels: &BTreeMap<String, String>,
) -> Arc<Authorization> {
    let trust_domain = facts.trust_domain().clone();
    if facts.removal() >= Removal::Plaintext {
        return Arc::new(Authorization { trust_domain, ..Authorization::default() });
    }
    let all = facts.authorizations();
    let mut selected = Selected::new();
    let labelled = all.selecting(&name.namespace).filter(|row| row.selects(labels));
    for row in facts.authorizations_of_mesh().chain(labelled) {
        add(&mut selected, row, None);
    }
    if let Some(owner) = facts.owner(name) {
        for row in all.attached().of_object(&owner) {
            add(&mut selected, row, None);
        }
    }
    let instance = facts.instance(name);
    for service in facts.services_of(name).filter(|one| one.namespace == name.namespace) {
        let Some(row) = facts.service(service) else { continue };
        for policy in all.attached().of_service(service) {
            for target in &policy.targets {
                let TargetRow::Service(of, section) = target else { continue };
                if of == service {
                    let section = section.as_deref();
                    let ports = numbers(facts, (name, instance), (service, row), section);
                    add(&mut selected, policy, Some(&ports));
                }
            }
        }
    }
    // Without this exception, the authorizer's own proxy would ask the authorizer about the requests to the
    // authorizer, without end.
    let is_own = |authorizer: &ExternalAuthorizer| {
        facts.services_of(name).any(|service| *service == authorizer.service)
    };
    selected.retain(|_, (policy, _)| !policy.external.as_deref().is_some_and(is_own));
    let unusable = too_many(selected.values().map(|(_, bytes)| *bytes));
    let mut policies: Vec<AuthorizationPolicy> =
        selected.into_values().map(|(policy, _)| policy).collect();
    if let Some(waypoint) = facts.waypoint_before(name) {
        only_through(facts, name, &waypoint, &mut policies);
    }
    let policies = policies.into();
    let default = facts.default_authorization(&name.namespace);
    let paths = facts.path_reading(name);
    Arc::new(Authorization { policies, default, paths, trust_domain, unusable })
}

/// Replaces the Allow policies of the namespace by a policy that permits only the waypoint to connect. The
/// waypoint itself applies those Allow policies to its clients. The policies of the mesh also apply, so that a
/// pod's label cannot bypass them. If the label names no waypoint that enforces policies for the pod, no client is
/// permitted.
fn only_through(
    facts: &Facts,
    name: &InstanceName,
    waypoint: &WaypointUse,
    policies: &mut Vec<AuthorizationPolicy>,
) {
    let waypoint = match waypoint {
        WaypointUse::Through(waypoint) if facts.enforces_for(waypoint, name) => Some(waypoint),
        _ => None,
    };
    let is_of_mesh = |policy: &AuthorizationPolicy| facts.is_of_mesh(&policy.source.namespace);
    policies.retain(|policy| policy.action != Action::Allow || is_of_mesh(policy));
    let account = waypoint.map(|one| (Arc::clone(&one.namespace), Arc::clone(&one.name)));
    let mut has_any = false;
    for policy in policies.iter_mut().filter(|policy| policy.action == Action::Allow) {
        policy.rules = policy.rules.iter().filter_map(|rule| through(rule, &account)).collect();
        has_any = true;
    }
    if has_any {
        return;
    }
    let rules = through(&PermissionRule::default(), &account).into_iter().collect();
    let (namespace, of) = account.unwrap_or_else(|| ("".into(), "".into()));
    policies.push(AuthorizationPolicy {
        source: PolicySource { created: 0, namespace, name: format!("waypoint:{of}").into() },
        action: Action::Allow,
        ports: None,
        rules,
        tokens: [].into(),
        external: None,
    });
}

/// The rule, restricted to clients with this account; `None` if the rule permits none of them.
fn through(
    rule: &PermissionRule,
    account: &Option<(Arc<str>, Arc<str>)>,
) -> Option<PermissionRule> {
    let account = account.as_ref()?;
    let any = [ClientMatch::default()];
    let from = if rule.from.is_empty() { &any[..] } else { &rule.from };
    let from = from.iter().filter(|client| {
        client.service_accounts.is_empty() || client.service_accounts.contains(account)
    });
    let own = |client: &ClientMatch| ClientMatch {
        service_accounts: vec![account.clone()],
        ..client.clone()
    };
    let from: Vec<ClientMatch> = from.map(own).collect();
    (!from.is_empty()).then(|| PermissionRule { from, ..rule.clone() })
}

/// The error message for a workload that has more policies than can be sent. In that case none is applied, because
/// some of them could permit what the others deny.
pub(super) fn too_many(bytes: impl ExactSizeIterator<Item = usize>) -> Option<Arc<str>> {
    let number = bytes.len();
    let bytes: usize = bytes.sum();
    if number > MAX_POLICIES {
        Some(
            format!("{number} policies select it, and a proxy applies at most {MAX_POLICIES}")
                .into(),
        )
    } else if bytes > MAX_BYTES {
        let (most, bytes) = (MAX_BYTES >> 20, (bytes >> 20) + 1);
        let reason = format!(
            "the {number} policies that select it have {bytes} MiB, and a proxy takes at most {most} MiB"
        );
        Some(reason.into())
    } else {
        None
    }
}

/// Adds a policy for these ports, or for all ports if `None`. If the policy was added before, its ports are
/// extended.
fn add(selected: &mut Selected, row: &AuthorizationRow, ports: Option<&[u16]>) {
    let policy = &row.policy;
    if ports.is_some_and(<[u16]>::is_empty) {
        return;
    }
    let key = (Arc::clone(&policy.source.namespace), Arc::clone(&policy.source.name));
    let ports = match (selected.get(&key).map(|(known, _)| known.ports.as_deref()), ports) {
        (Some(None), _) | (_, None) => None,
        (None, Some(ports)) => Some(ports.into()),
        (Some(Some(known)), Some(ports)) => {
            let mut ports: Vec<u16> = known.iter().chain(ports).copied().collect();
            ports.sort_unstable();
            ports.dedup();
            Some(ports.into())
        }
    };
    selected.insert(key, (AuthorizationPolicy { ports, ..policy.clone() }, row.bytes));
}
