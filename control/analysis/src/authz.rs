//! Determines which clients may reach a workload, which policy decides that, and what a change of policies would
//! do.
//!
//! The decisions are made by the same table that the workload's proxy uses.

mod access;
mod check;
mod later;
mod suggest;

pub use access::{AccessChange, ClientAccess, PolicySummary, WorkloadAccess, access_changes};
pub(crate) use check::AskedServer;
pub use check::{AuthorizationAnswer, AuthorizationCheck, CheckClient, PolicyVerdict};
pub use later::LaterAccess;
pub(crate) use later::assumed;
pub use suggest::{RecordedRequest, RecordedRequests, Suggestion};

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use leno_index::AddressOwner;
use leno_policy::authorization::{
    AuthorizationDecision, AuthorizationTable, CertificateView, ConnectionView, Denial,
    OtherAddresses, PolicyMatch,
};
use leno_resources::{Kind, Object, ObjectKey};
use leno_types::authorization::{Action, AuthorizationPolicy};
use leno_types::mesh::ServerPolicy;
use leno_types::{Identity, InstanceName, MtlsMode};

use crate::mesh::MeshModel;
use crate::sender::Sender;

/// An address that stands for all addresses that no document contains (RFC 5737).
const OUTSIDE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

/// The reason in answers: a client without an identity is refused.
const STRICT: &str = "mTLS is strict, and the client has no identity";

/// The reason in answers: a policy about requests applies to an opaque connection.
const FOR_BYTES: &str = "it has conditions on requests, which an opaque connection may carry";

/// The policies that a workload enforces, and the table made from them.
pub(crate) struct EnforcedPolicies {
    pub(crate) policy: Arc<ServerPolicy>,
    pub(crate) table: AuthorizationTable,
}

/// A client as a server's proxy sees it.
#[derive(Clone, Debug)]
pub(crate) struct ObservedClient {
    pub(crate) identity: Option<Identity>,
    /// All addresses of the client, at least one. Which one it uses depends on the address of the server.
    pub(crate) addresses: Vec<IpAddr>,
}

impl ObservedClient {
    /// A client that is not a workload of the mesh.
    fn outside(identity: Option<Identity>, address: IpAddr) -> Self {
        Self { identity, addresses: vec![address] }
    }

    /// The client's connection to a port, as policies see it. `certificate` is ignored if the client has no
    /// identity.
    fn view(&self, port: u16, certificate: CertificateView) -> ConnectionView<'_> {
        let (address, others) = self.addresses.split_first().unwrap_or((&OUTSIDE, &[]));
        let (identity, others) = (self.identity.as_ref(), OtherAddresses::Known(others));
        let certificate = identity.map(|_| certificate);
        ConnectionView { identity, certificate, address: *address, others, port }
    }
}

impl EnforcedPolicies {
    /// Whether the mTLS mode alone refuses the client.
    fn refuses(&self, client: &ObservedClient) -> bool {
        client.identity.is_none() && self.policy.mtls == MtlsMode::Strict
    }

    /// For a decision: whether it permits, the policy that made it, and the reason as text.
    fn reason(&self, decision: AuthorizationDecision) -> (bool, Option<String>, String) {
        let default = self.policy.authorization.default;
        let by =
            |index| self.table.source(index).map(|one| format!("{}/{}", one.namespace, one.name));
        match decision {
            AuthorizationDecision::Permitted(Some(policy)) => {
                let policy = by(policy).unwrap_or_default();
                (true, Some(policy.clone()), format!("AuthorizationPolicy {policy} permits it"))
            }
            AuthorizationDecision::Permitted(None) => (
                true,
                None,
                format!("no Allow policy applies to the port, and the default is {default}"),
            ),
            AuthorizationDecision::Denied(Denial::Policy(policy)) => {
                let policy = by(policy).unwrap_or_default();
                (false, Some(policy.clone()), format!("AuthorizationPolicy {policy} denies it"))
            }
            AuthorizationDecision::Denied(Denial::NotAllowed) => {
                (false, None, "Allow policies apply to the port, but none matches".to_owned())
            }
            AuthorizationDecision::Denied(Denial::Default) => (
                false,
                None,
                format!("no Allow policy applies to the port, and the default is {default}"),
            ),
            AuthorizationDecision::Denied(Denial::Path(why)) => {
                (false, None, format!("policies depend on the path, which is ambiguous: {why}"))
            }
            AuthorizationDecision::Denied(Denial::Bytes(policy)) => {
                let policy = by(policy).unwrap_or_default();
                let reason = format!(
                    "the authorizer of AuthorizationPolicy {policy} decides on requests, and the connection carries none"
                );
                (false, Some(policy), reason)
            }
            AuthorizationDecision::Denied(Denial::Unusable) => {
                let unusable = self.policy.authorization.unusable.as_deref().unwrap_or_default();
                (false, None, format!("the policies cannot be applied: {unusable}"))
            }
        }
    }
}

impl EnforcedPolicies {
    /// The names of the external authorizers of those policies that have this match. An external authorizer
    /// decides about requests that the other policies permit.
    fn asked(&self, all: &[PolicyMatch], wanted: PolicyMatch) -> Option<String> {
        let policies = self.policy.authorization.policies.iter().zip(all);
        let external = policies.filter(|(_, found)| **found == wanted);
        let mut asked: Vec<String> = external
            .filter_map(|(policy, _)| {
                let authorizer = policy.external.as_deref()?;
                Some(format!("{}:{}", authorizer.service, authorizer.port))
            })
            .collect();
        asked.dedup();
        (!asked.is_empty()).then(|| asked.join(" and "))
    }
}

impl MeshModel {
    /// The policies that the proxy of an instance enforces; `None` if it has no proxy.
    pub(crate) fn enforced(&self, instance: &InstanceName) -> Option<EnforcedPolicies> {
        let policy = self.index.server_policy(instance)?;
        let table = AuthorizationTable::new(&policy.authorization, &instance.namespace);
        Some(EnforcedPolicies { policy, table })
    }

    /// A sender as servers with this mTLS mode see it. If the sender has no instance, its address is not known.
    pub(crate) fn seen(&self, sender: &Sender, mtls: MtlsMode) -> ObservedClient {
        let instance = sender.instance.as_ref();
        let has_identity = sender.meshed && mtls != MtlsMode::Disabled;
        let identity = instance.filter(|_| has_identity);
        let workload = instance.and_then(|name| self.index.workload(name));
        let identity = identity.and_then(|name| self.index.identity_of(name)).cloned();
        match workload {
            Some(one) if !one.addresses.is_empty() => {
                ObservedClient { identity, addresses: one.addresses.clone() }
            }
            _ => ObservedClient::outside(identity, OUTSIDE),
        }
    }

    /// A client without an identity at this address, as servers see it.
    pub(crate) fn seen_at(&self, address: IpAddr) -> ObservedClient {
        match self.index.address(address) {
            Some(AddressOwner::Workload(workload)) => {
                ObservedClient { identity: None, addresses: workload.addresses.clone() }
            }
            _ => ObservedClient::outside(None, address),
        }
    }

    /// The position of a policy in its file.
    fn place_of(&self, policy: &AuthorizationPolicy) -> Option<String> {
        let (namespace, name) =
            (policy.source.namespace.to_string(), policy.source.name.to_string());
        let key = ObjectKey { kind: Kind::AuthorizationPolicy, namespace, name };
        self.places.get(&key).cloned()
    }

    /// This mesh with `more` objects, which replace objects of the same name.
    #[must_use]
    pub fn with_objects(&self, more: Vec<Object>) -> Self {
        let replaced = |object: &&Object| !more.iter().any(|one| one.key() == object.key());
        let mut objects: Vec<Object> = self.objects.iter().filter(replaced).cloned().collect();
        objects.extend(more);
        let mesh = Self::told(self.settings.clone(), objects);
        Self {
            places: self.places.clone(),
            owners: self.owners.clone(),
            way_out: self.way_out,
            dns_of_leno_up: self.dns_of_leno_up,
            certificate: self.certificate,
            ..mesh
        }
    }
}

fn action(action: Action) -> &'static str {
    match action {
        Action::Allow => "Allow",
        Action::Deny => "Deny",
        Action::Audit => "Audit",
        Action::External => "External",
    }
}

fn words(found: PolicyMatch) -> &'static str {
    match found {
        PolicyMatch::OtherPorts => "it applies to other ports",
        PolicyMatch::OtherClients => "no rule matches the client",
        PolicyMatch::OtherRequests => "no rule that matches the client matches the request",
        PolicyMatch::AmbiguousPath => {
            "a rule that matches the client depends on the path, which is ambiguous"
        }
        PolicyMatch::SomeRequests => "it depends on the request",
        PolicyMatch::Matches => "it matches",
    }
}
