//! Checks one request against the policies of a workload.

use std::net::IpAddr;

use leno_policy::authorization::{
    AuthorizationDecision, AuthorizationRequest, ConnectionView, Denial, PolicyIndex, PolicyMatch,
    ServerNameView,
};
use leno_resources::Object;
use leno_types::authorization::AuthorizationPolicy;
use leno_types::mesh::{Endpoint, declared};
use leno_types::tokens::ClaimMatch;
use leno_types::{Identity, InstanceName, Protocol};
use serde::Serialize;

use super::{
    EnforcedPolicies, FOR_BYTES, LaterAccess, OUTSIDE, ObservedClient, STRICT, action, later, words,
};
use crate::explain::{
    BackendAnswer, ClientAnswer, ExplainQuestion, Explanation, HeaderEdits, OutcomeAnswer,
};
use crate::mesh::MeshModel;
use crate::sender::{Sender, Unanswerable};

/// The sender of a checked request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckClient {
    /// A workload, an instance or a service account of the mesh, by name.
    Named(String),
    /// A client with this identity.
    Identity(Identity),
    /// A client without an identity, at this address.
    Address(IpAddr),
    /// A client without an identity, at any address.
    Anything,
}

/// The result for one request to a workload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AuthorizationCheck {
    /// The client, if it is a workload of the mesh.
    pub client: Option<ClientAnswer>,
    /// Its identity, if it has one.
    pub identity: Option<String>,
    /// `<namespace>/<name>` of the workload.
    pub workload: String,
    /// The workload's port.
    pub port: u16,
    /// The decision of the workload's policies.
    pub answer: AuthorizationAnswer,
}

/// The decision of the workload's policies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AuthorizationAnswer {
    /// The instances with this decision, `<namespace>/<name>:<port>`.
    pub servers: Vec<String>,
    /// Whether the request is permitted.
    pub permitted: bool,
    /// The policy that decides, if one does.
    pub policy: Option<String>,
    /// Why the request is permitted or denied, in words.
    pub reason: String,
    /// Every policy of the workload.
    pub policies: Vec<PolicyVerdict>,
    /// How the decision changes as the client's certificate gets older.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub later: Vec<LaterAccess>,
}

/// The verdict of one policy on a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PolicyVerdict {
    /// `<namespace>/<name>`.
    pub name: String,
    /// `Allow`, `Deny`, `Audit` or `External`.
    pub action: &'static str,
    /// Whether it matches the request.
    pub matches: bool,
    /// Why it matches, or why not.
    pub reason: &'static str,
    /// Where it is written, `file:line:column`, if known.
    pub place: Option<String>,
}

/// A server that may receive the request.
pub(crate) struct AskedServer {
    /// The instance and its port; `None` outside of the mesh.
    pub(crate) at: Option<(InstanceName, u16)>,
    /// The backend, with its changes of the request.
    pub(crate) backend: Option<BackendAnswer>,
}

/// A request as it arrives at the workload, after changes by routes.
pub(super) struct ArrivingRequest<'a> {
    method: &'a str,
    path: &'a str,
    authority: &'a str,
    headers: Vec<(String, String)>,
    /// The claims of the request's token, which is assumed to be valid.
    claims: &'a [(String, String)],
}

impl<'a> ArrivingRequest<'a> {
    /// A request with only a method, a path and an authority.
    pub(super) fn of_request(method: &'a str, path: &'a str, authority: &'a str) -> Self {
        Self { method, path, authority, headers: Vec::new(), claims: &[] }
    }

    fn new(question: &'a ExplainQuestion, backend: Option<&'a BackendAnswer>) -> Self {
        let target = backend.and_then(|backend| backend.target.as_deref());
        let host = backend.and_then(|backend| backend.host.as_deref());
        let headers = match backend {
            Some(backend) => edited(&question.headers, &backend.request_headers),
            None => question.headers.clone(),
        };
        Self {
            method: &question.method,
            path: target.unwrap_or(&question.target),
            authority: host.unwrap_or_else(|| question.authority()),
            headers,
            claims: &[],
        }
    }
}

impl AuthorizationRequest for ArrivingRequest<'_> {
    fn method(&self) -> &str {
        self.method
    }

    fn path(&self) -> &[u8] {
        self.path.split('?').next().unwrap_or_default().as_bytes()
    }

    fn authority(&self) -> &str {
        self.authority
    }

    fn each_line(&self, is_wanted: &dyn Fn(&str) -> bool, see: &mut dyn FnMut(&str, &[u8])) {
        let is = |given: &str, wanted: &str| given.eq_ignore_ascii_case(wanted);
        let ends_here = |name: &str| {
            self.headers.iter().any(|(given, value)| {
                is(given, "connection") && value.split(',').any(|option| is(option.trim(), name))
            })
        };
        let wanted = self.headers.iter().filter(|(name, _)| is_wanted(name) && !ends_here(name));
        wanted.for_each(|(name, value)| see(name, value.as_bytes()));
    }

    fn has_token(&self, _policy: PolicyIndex, claims: &[ClaimMatch]) -> bool {
        let is = |one: &ClaimMatch, (name, value): &(String, String)| {
            **name == *one.name
                && (one.values.is_empty() || one.values.iter().any(|wanted| **wanted == **value))
        };
        let has = |one: &ClaimMatch| self.claims.iter().any(|claim| is(one, claim));
        !self.claims.is_empty() && claims.iter().all(has)
    }
}

impl MeshModel {
    /// Checks one request against the policies of a workload: on the question's port, on the port behind it if
    /// that is a service's port, or on the workload's only port. If there are `claims`, the request is assumed to
    /// have a valid token of every issuer with these claims.
    ///
    /// # Errors
    /// [`Unanswerable`] if there is no such workload or client.
    pub fn check(
        &self,
        namespace: Option<&str>,
        workload: &str,
        client: &CheckClient,
        (question, claims): (&ExplainQuestion, &[(String, String)]),
    ) -> Result<AuthorizationCheck, Unanswerable> {
        let server = self.sender(namespace, workload)?;
        let enforced = server.instance.as_ref().and_then(|name| self.enforced(name));
        let sender = match client {
            CheckClient::Named(name) => Some(self.sender(namespace, name)?),
            _ => None,
        };
        let declared_ports = enforced.as_ref().map_or(&[][..], |one| &*one.policy.ports);
        let known: Vec<u16> = declared_ports.iter().map(|one| one.port).collect();
        if !known.is_empty()
            && !known.contains(&question.port)
            && question.names_port()
            && !self.has_service_port(&server.namespace, question.port)
        {
            let workload = format!("{}/{}", server.namespace, server.workload);
            return Err(Unanswerable::NoPort { workload, port: question.port, known });
        }
        let port = match *known {
            [only] => only,
            _ if known.contains(&question.port) => question.port,
            _ => {
                let behind = |name| self.port_behind(name, question);
                server.instance.as_ref().and_then(behind).unwrap_or(question.port)
            }
        };
        let (seen, answer) = match &enforced {
            None => (None, AuthorizationAnswer::unenforced()),
            Some(enforced) => {
                let seen = match (client, &sender) {
                    (_, Some(sender)) => self.seen(sender, enforced.policy.mtls),
                    (CheckClient::Identity(identity), None) => {
                        ObservedClient::outside(Some(identity.clone()), OUTSIDE)
                    }
                    (CheckClient::Address(address), None) => self.seen_at(*address),
                    (_, None) => ObservedClient::outside(None, OUTSIDE),
                };
                let arriving = ArrivingRequest { claims, ..ArrivingRequest::new(question, None) };
                let is_bytes = declared(&enforced.policy.ports, port) == Protocol::Opaque;
                let sent = (&arriving, question, !is_bytes);
                let answer = self.decide(enforced, (&seen, port), sent);
                (Some(seen), answer)
            }
        };
        let identity = seen.and_then(|seen| seen.identity);
        Ok(AuthorizationCheck {
            client: sender.map(|sender| ClientAnswer::of(&sender)),
            identity: identity.as_ref().map(ToString::to_string),
            workload: format!("{}/{}", server.namespace, server.workload),
            port,
            answer,
        })
    }

    /// The port of an instance to which a service forwards the question's port. The service is the one that the
    /// question names, or else the first one in the namespace that has the port.
    fn port_behind(&self, instance: &InstanceName, question: &ExplainQuestion) -> Option<u16> {
        let named = question.host.split('.').next();
        let mut found = None;
        for service in self.index.services_in(&instance.namespace) {
            let ports = service.ports.iter().filter(|one| one.port == question.port);
            let mut endpoints = ports.flat_map(|one| one.endpoints.iter());
            let of_instance = |one: &&Endpoint| one.workload.as_ref() == Some(instance);
            let Some(endpoint) = endpoints.find(of_instance) else { continue };
            if named == Some(&*service.name.name) {
                return Some(endpoint.port);
            }
            found.get_or_insert(endpoint.port);
        }
        found
    }

    /// Whether this port belongs to a service of the namespace.
    fn has_service_port(&self, namespace: &str, port: u16) -> bool {
        self.objects.iter().any(|object| {
            let Object::Service(service) = object else { return false };
            let mut ports = service.spec.iter().flat_map(|spec| spec.ports.iter().flatten());
            object.key().namespace == namespace && ports.any(|one| one.port == i32::from(port))
        })
    }

    /// Adds to an explanation how the servers' policies decide about the request.
    pub(crate) fn authorize(
        &self,
        answer: &mut Explanation,
        sender: &Sender,
        question: &ExplainQuestion,
    ) {
        let mut targets = Vec::new();
        for backend in answer.backends.iter().filter(|backend| backend.share > 0.0) {
            for endpoint in &backend.endpoints {
                let name = endpoint.workload.as_deref().and_then(|name| name.parse().ok());
                let port =
                    endpoint.address.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
                targets.push(AskedServer { at: name.zip(port), backend: Some(backend.clone()) });
            }
        }
        self.authorize_at(answer, sender, question, targets);
    }

    /// Adds how the policies of these servers decide about the request.
    pub(crate) fn authorize_at(
        &self,
        answer: &mut Explanation,
        sender: &Sender,
        question: &ExplainQuestion,
        targets: Vec<AskedServer>,
    ) {
        let mut all: Vec<AuthorizationAnswer> = Vec::new();
        let servers = targets.len();
        let is_http = answer.outcome.kind != "relayed";
        for AskedServer { at, backend } in &targets {
            let Some((name, port)) = at else { continue };
            let Some(enforced) = self.enforced(name) else { continue };
            let seen = self.seen(sender, enforced.policy.mtls);
            if enforced.table.is_open() || enforced.refuses(&seen) {
                continue;
            }
            let arriving = ArrivingRequest::new(question, backend.as_ref());
            let is_bytes = declared(&enforced.policy.ports, *port) == Protocol::Opaque;
            let sent = (&arriving, question, is_http && !is_bytes);
            let decided = self.decide(&enforced, (&seen, *port), sent);
            merge(&mut all, decided, format!("{name}:{port}"));
        }
        let denied = all.iter().filter(|one| !one.permitted);
        let denying: usize = denied.map(|one| one.servers.len()).sum();
        if denying > 0 && denying == servers {
            let reason = all.iter().find(|one| !one.permitted).map(|one| one.reason.as_str());
            let is_http = is_http && question.is_http();
            answer.outcome = OutcomeAnswer::denied(is_http, reason.unwrap_or_default());
        } else if denying > 0 {
            answer.notes.push(format!("{denying} of {servers} endpoints deny the request"));
        }
        answer.authorization = all;
    }

    /// The decision about a request, now and when the client's certificate gets older.
    fn decide(
        &self,
        enforced: &EnforcedPolicies,
        (seen, port): (&ObservedClient, u16),
        sent: (&ArrivingRequest<'_>, &ExplainQuestion, bool),
    ) -> AuthorizationAnswer {
        let is_same = |one: &AuthorizationAnswer, other: &AuthorizationAnswer| {
            (one.permitted, &one.policy, &one.reason)
                == (other.permitted, &other.policy, &other.reason)
        };
        let view = seen.view(port, self.certificate);
        let decide = |view: &ConnectionView<'_>| self.decide_now(enforced, (seen, view), sent);
        let (now, then) = later::decisions(&enforced.table, view, decide, is_same);
        let later = then.into_iter().map(|(certificate_age_s, then)| {
            let AuthorizationAnswer { permitted, policy, reason, .. } = then;
            let access = if permitted { "permitted" } else { "denied" };
            LaterAccess { certificate_age_s, access, policy, reason }
        });
        AuthorizationAnswer { later: later.collect(), ..now }
    }

    fn decide_now(
        &self,
        enforced: &EnforcedPolicies,
        (seen, view): (&ObservedClient, &ConnectionView<'_>),
        (arriving, question, is_http): (&ArrivingRequest<'_>, &ExplainQuestion, bool),
    ) -> AuthorizationAnswer {
        let rules = enforced.table.connection(view);
        let is_http = is_http && question.is_http();
        let decision: AuthorizationDecision = match is_http {
            true => enforced.table.decide(&rules, arriving, |_| ()),
            false => {
                let name = question.server_name();
                let name = name.map_or(ServerNameView::NoTls, ServerNameView::Name);
                enforced.table.decide_opaque(&rules, name, |_| ())
            }
        };
        let examined = enforced.table.examine(view, is_http.then_some(arriving));
        let asked = enforced.asked(&examined.policies, PolicyMatch::Matches);
        let policies = &enforced.policy.authorization.policies;
        // On an opaque connection, a rule about requests can never be excluded.
        let by = match decision {
            AuthorizationDecision::Denied(Denial::Policy(by) | Denial::Bytes(by)) if !is_http => {
                Some(by.position())
            }
            _ => None,
        };
        let verdict = |(at, (policy, found)): (usize, (&AuthorizationPolicy, PolicyMatch))| {
            let is_for_bytes = by == Some(at) && found == PolicyMatch::SomeRequests;
            PolicyVerdict {
                name: format!("{}/{}", policy.source.namespace, policy.source.name),
                action: action(policy.action),
                matches: is_for_bytes || found == PolicyMatch::Matches,
                reason: if is_for_bytes { FOR_BYTES } else { words(found) },
                place: self.place_of(policy),
            }
        };
        let verdicts = policies.iter().zip(examined.policies).enumerate().map(verdict);
        let (permitted, policy, mut reason) = match enforced.refuses(seen) {
            true => (false, None, STRICT.to_owned()),
            false => enforced.reason(decision),
        };
        if let Some(asked) = asked.filter(|_| permitted) {
            reason = format!("{reason}, if {asked} does too, which is consulted");
        }
        let (servers, policies) = (Vec::new(), verdicts.collect());
        AuthorizationAnswer { servers, permitted, policy, reason, policies, later: Vec::new() }
    }
}

impl AuthorizationAnswer {
    fn unenforced() -> Self {
        Self {
            servers: Vec::new(),
            permitted: true,
            policy: None,
            reason: "the workload has no proxy, which would enforce policies".to_owned(),
            policies: Vec::new(),
            later: Vec::new(),
        }
    }
}

/// Adds a decision to the answers. Servers with the same decision share one answer.
fn merge(all: &mut Vec<AuthorizationAnswer>, decided: AuthorizationAnswer, server: String) {
    let alike = |one: &&mut AuthorizationAnswer| {
        one.policies == decided.policies
            && one.reason == decided.reason
            && one.permitted == decided.permitted
            && one.later == decided.later
    };
    match all.iter_mut().find(alike) {
        Some(known) => known.servers.push(server),
        None => all.push(AuthorizationAnswer { servers: vec![server], ..decided }),
    }
}

/// The headers after a route's changes.
fn edited(headers: &[(String, String)], edits: &HeaderEdits) -> Vec<(String, String)> {
    let changed = |name: &str| {
        let set = edits.set.iter().any(|(set, _)| set.eq_ignore_ascii_case(name));
        set || edits.remove.iter().any(|removed| removed.eq_ignore_ascii_case(name))
    };
    let kept = headers.iter().filter(|(name, _)| !changed(name));
    kept.chain(&edits.set).chain(&edits.add).cloned().collect()
}
