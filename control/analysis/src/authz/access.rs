//! Determines the access of every client to a workload, port by port.

use std::collections::{BTreeMap, BTreeSet};

use leno_policy::authorization::{
    AuthorizationDecision, AuthorizationRequest, ConnectionView, Denial, PolicyMatch,
    ServerNameView,
};
use leno_types::Protocol;
use leno_types::authorization::Action;
use leno_types::mesh::declared;
use serde::Serialize;

use super::{EnforcedPolicies, LaterAccess, OUTSIDE, ObservedClient, STRICT, action, later};
use crate::mesh::MeshModel;
use crate::sender::{Sender, Unanswerable};

/// The name that stands for all clients that no document contains.
const ANYTHING: &str = "(anything else)";

/// The access of all clients to a workload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WorkloadAccess {
    /// `<namespace>/<name>`.
    pub workload: String,
    /// Whether it has a proxy, which enforces policies.
    pub enforced: bool,
    /// The mTLS mode, by which its proxy accepts or refuses plaintext.
    pub mtls: &'static str,
    /// Which clients may connect to ports for which there is no `Allow` policy.
    pub default: &'static str,
    /// The policies that select it.
    pub policies: Vec<PolicySummary>,
    /// Its clients, port by port.
    pub clients: Vec<ClientAccess>,
}

/// A policy that selects a workload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PolicySummary {
    /// `<namespace>/<name>`.
    pub name: String,
    /// `Allow`, `Deny`, `Audit` or `External`.
    pub action: &'static str,
    /// The ports to which its targets limit it; empty if it applies to all.
    pub ports: Vec<u16>,
    /// The place of its document as `file:line:column`; `None` if that is not known.
    pub place: Option<String>,
}

/// What a client may do on a port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct ClientAccess {
    /// `<namespace>/<name>` of a workload, or of an instance whose access differs from the others.
    pub client: String,
    /// Its identity, if it has one.
    pub identity: Option<String>,
    /// The workload's port; 0 stands for all ports if the workload declares none.
    pub port: u16,
    /// `permitted`, `denied`, or `requests` if it depends on the request.
    pub access: &'static str,
    /// The policy that decides, if one does.
    pub policy: Option<String>,
    /// The policies that decide about a part of the requests.
    pub policies_of_requests: Vec<String>,
    /// Why the client has this access, in words.
    pub reason: String,
    /// How the access changes when the client's certificate gets older.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub later: Vec<LaterAccess>,
}

/// A change of a client's access.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AccessChange {
    /// `<namespace>/<name>` of the workload that the client calls.
    pub workload: String,
    /// The client's access before the change; `None` if there was no such client or port.
    pub before: Option<ClientAccess>,
    /// The client's access after the change; `None` if there is no such client or port any more.
    pub after: Option<ClientAccess>,
}

/// Stands for a request while only the connection is decided about. No policy matches it.
struct NoRequest;

impl AuthorizationRequest for NoRequest {
    fn method(&self) -> &str {
        ""
    }

    fn path(&self) -> &[u8] {
        b"/"
    }

    fn authority(&self) -> &str {
        ""
    }

    fn each_line(&self, _: &dyn Fn(&str) -> bool, _: &mut dyn FnMut(&str, &[u8])) {}
}

impl MeshModel {
    /// The access of all clients to a workload or, if no workload is named, to every workload with a proxy.
    ///
    /// # Errors
    /// [`Unanswerable`] if there is no such workload.
    pub fn access(
        &self,
        namespace: Option<&str>,
        workload: Option<&str>,
    ) -> Result<Vec<WorkloadAccess>, Unanswerable> {
        if let Some(name) = workload {
            return Ok(vec![self.access_to(&self.sender(namespace, name)?)]);
        }
        let mut seen = BTreeSet::new();
        let servers = self.senders().into_iter().filter(|one| {
            let is_meant = namespace.is_none_or(|namespace| namespace == one.namespace);
            is_meant && one.meshed && seen.insert((one.namespace.clone(), one.workload.clone()))
        });
        Ok(servers.map(|server| self.access_to(&server)).collect())
    }

    fn access_to(&self, server: &Sender) -> WorkloadAccess {
        let workload = format!("{}/{}", server.namespace, server.workload);
        let enforced = server.instance.as_ref().and_then(|name| self.enforced(name));
        let Some(enforced) = enforced else {
            return WorkloadAccess {
                workload,
                enforced: false,
                mtls: "disabled",
                default: "all",
                policies: Vec::new(),
                clients: Vec::new(),
            };
        };
        let policies = enforced.policy.authorization.policies.iter().map(|policy| PolicySummary {
            name: format!("{}/{}", policy.source.namespace, policy.source.name),
            action: action(policy.action),
            ports: policy.ports.as_ref().map(|ports| ports.to_vec()).unwrap_or_default(),
            place: self.place_of(policy),
        });
        WorkloadAccess {
            workload,
            enforced: true,
            mtls: enforced.policy.mtls.as_str(),
            default: enforced.policy.authorization.default.as_str(),
            policies: policies.collect(),
            clients: self.clients_of(&enforced),
        }
    }

    fn clients_of(&self, enforced: &EnforcedPolicies) -> Vec<ClientAccess> {
        let mut ports: Vec<u16> = enforced.policy.ports.iter().map(|port| port.port).collect();
        ports.sort_unstable();
        ports.dedup();
        if ports.is_empty() {
            ports.push(0);
        }
        let mut by_client: BTreeMap<(String, u16), BTreeMap<ClientAccess, Vec<String>>> =
            BTreeMap::new();
        for sender in self.senders() {
            let Some(instance) = &sender.instance else { continue };
            let seen = self.seen(&sender, enforced.policy.mtls);
            let client = format!("{}/{}", sender.namespace, sender.workload);
            for port in &ports {
                let access = self.access_of(enforced, &client, &seen, *port);
                let alike = by_client.entry((client.clone(), *port)).or_default();
                alike.entry(access).or_default().push(instance.to_string());
            }
        }
        let mut all = Vec::new();
        for mut alike in by_client.into_values() {
            let differ = alike.len() > 1;
            while let Some((access, instances)) = alike.pop_first() {
                match differ {
                    true => all.extend(
                        instances
                            .into_iter()
                            .map(|client| ClientAccess { client, ..access.clone() }),
                    ),
                    false => all.push(access),
                }
            }
        }
        let outside = ObservedClient::outside(None, OUTSIDE);
        all.extend(ports.iter().map(|port| self.access_of(enforced, ANYTHING, &outside, *port)));
        all
    }

    /// The access of one client to one port, now and when its certificate gets older.
    fn access_of(
        &self,
        enforced: &EnforcedPolicies,
        client: &str,
        seen: &ObservedClient,
        port: u16,
    ) -> ClientAccess {
        let (now, then) = later::decisions(
            &enforced.table,
            seen.view(port, self.certificate),
            |view| access(enforced, (client, seen), view),
            |one, other| one == other,
        );
        let later = then.into_iter().map(|(certificate_age_s, then)| {
            let ClientAccess { access, policy, reason, .. } = then;
            LaterAccess { certificate_age_s, access, policy, reason }
        });
        ClientAccess { later: later.collect(), ..now }
    }
}

/// The access of one client to one port.
fn access(
    enforced: &EnforcedPolicies,
    (client, seen): (&str, &ObservedClient),
    view: &ConnectionView<'_>,
) -> ClientAccess {
    let port = view.port;
    let mut answer = ClientAccess {
        client: client.to_owned(),
        identity: seen.identity.as_ref().map(ToString::to_string),
        port,
        access: "denied",
        policy: None,
        policies_of_requests: Vec::new(),
        reason: STRICT.to_owned(),
        later: Vec::new(),
    };
    if enforced.refuses(seen) {
        return answer;
    }
    // On an opaque port, no policy can depend on a request.
    if declared(&enforced.policy.ports, port) == Protocol::Opaque
        && !enforced.table.reads_server_names(port)
    {
        let rules = enforced.table.connection(view);
        let decision = enforced.table.decide_opaque(&rules, ServerNameView::NoTls, |_| ());
        let (is_permitted, policy, reason) = enforced.reason(decision);
        let access = if is_permitted { "permitted" } else { "denied" };
        return ClientAccess { access, policy, reason, ..answer };
    }
    let examined = enforced.table.examine::<NoRequest>(view, None);
    let all = enforced.policy.authorization.policies.iter().zip(&examined.policies);
    let of_requests = |wanted: Action| -> Vec<String> {
        let some = all.clone().filter(|(policy, found)| {
            policy.action == wanted && **found == PolicyMatch::SomeRequests
        });
        some.map(|(policy, _)| format!("{}/{}", policy.source.namespace, policy.source.name))
            .collect()
    };
    let (is_permitted, policy, reason) = enforced.reason(examined.otherwise);
    answer.policy = policy;
    let (denying, permitting) = (of_requests(Action::Deny), of_requests(Action::Allow));
    let is_denied = matches!(
        examined.otherwise,
        AuthorizationDecision::Denied(Denial::Policy(_) | Denial::Unusable)
    );
    (answer.access, answer.reason) = if is_permitted && !denying.is_empty() {
        ("requests", format!("{reason}, except what {} denies", denying.join(", ")))
    } else if !is_permitted && !is_denied && !permitting.is_empty() {
        ("requests", format!("only what {} permits", permitting.join(", ")))
    } else {
        (if is_permitted { "permitted" } else { "denied" }, reason)
    };
    let of_all = enforced.asked(&examined.policies, PolicyMatch::Matches);
    let of_some = enforced.asked(&examined.policies, PolicyMatch::SomeRequests);
    if answer.access != "denied"
        && let Some((asked, what)) =
            of_all.map(|asked| (asked, "")).or(of_some.map(|asked| (asked, " about some requests")))
    {
        answer.access = "requests";
        answer.reason = format!("{}, if {asked} does too, which is consulted{what}", answer.reason);
    }
    if answer.access == "requests" {
        let asked = of_requests(Action::External);
        answer.policies_of_requests = denying.into_iter().chain(permitting).chain(asked).collect();
    }
    answer
}

/// The changes of access between two states of a mesh.
#[must_use]
pub fn access_changes(before: &[WorkloadAccess], after: &[WorkloadAccess]) -> Vec<AccessChange> {
    let lines = |all: &[WorkloadAccess]| -> BTreeMap<(String, String, u16), ClientAccess> {
        let of = |one: &WorkloadAccess| {
            let workload = one.workload.clone();
            one.clients
                .iter()
                .map(move |line| ((workload.clone(), line.client.clone(), line.port), line.clone()))
                .collect::<Vec<_>>()
        };
        all.iter().flat_map(of).collect()
    };
    let (before, after) = (lines(before), lines(after));
    let keys: BTreeSet<_> = before.keys().chain(after.keys()).collect();
    let change = |key: &(String, String, u16)| {
        let (before, after) = (before.get(key).cloned(), after.get(key).cloned());
        (before != after).then(|| AccessChange { workload: key.0.clone(), before, after })
    };
    keys.into_iter().filter_map(change).collect()
}
