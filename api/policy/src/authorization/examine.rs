//! Explains to users how far each policy matches a client and its request. Proxies do not need it.

use super::path::{self, Decoded};
use super::{
    AuthorizationDecision, AuthorizationRequest, AuthorizationTable, CompiledPolicy,
    ConnectionView, Denial, Entry, decide,
};

/// How far a policy matches a client, or a request of it. The greater the value, the more of the policy matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PolicyMatch {
    /// The policy is for other ports.
    OtherPorts,
    /// No rule of the policy is for the client.
    OtherClients,
    /// The policy has rules for the client, but none matches the request.
    OtherRequests,
    /// A rule for the client depends on the path, and servers do not agree on how to read the path.
    AmbiguousPath,
    /// The policy matches some requests of the client; no request was given.
    SomeRequests,
    /// The policy matches.
    Matches,
}

/// How the policies match a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExaminedClient {
    /// The result of each policy of the table, by position.
    pub policies: Vec<PolicyMatch>,
    /// The decision on requests that match none of the conditions on requests.
    pub otherwise: AuthorizationDecision,
}

impl AuthorizationTable {
    /// How far each policy matches a client, and its request if there is one.
    #[must_use]
    pub fn examine<R: AuthorizationRequest>(
        &self,
        client: &ConnectionView<'_>,
        request: Option<&R>,
    ) -> ExaminedClient {
        let rules = self.connection(client);
        let mut buffer = Decoded::new();
        let path =
            request.map(|request| path::canonical(request.path(), &mut buffer, self.reading));
        let mut reached = vec![false; self.entries.len()];
        if let Some(Ok(path)) = path {
            self.paths.each(path, |at| {
                if let Some(reached) = reached.get_mut(at as usize) {
                    *reached = true;
                }
            });
        }
        let clients = self.matching_clients(client);
        let of_request = |entry: &Entry, is_reached: bool| {
            let Some(request) = request else { return PolicyMatch::SomeRequests };
            let reads_path = entry.request.has_paths || entry.request.grpc_method.is_some();
            match path {
                Some(Err(_)) if reads_path => return PolicyMatch::AmbiguousPath,
                _ if entry.request.has_paths && !is_reached => return PolicyMatch::OtherRequests,
                _ => {}
            }
            let path = path.and_then(Result::ok);
            match decide::fulfils((self, &rules), request, path, entry) {
                true => PolicyMatch::Matches,
                false => PolicyMatch::OtherRequests,
            }
        };
        // A policy without entries matches no client of its ports.
        let of_ports = |policy: &CompiledPolicy| match &policy.ports {
            Some(ports) if !ports.contains(&client.port) => PolicyMatch::OtherPorts,
            _ => PolicyMatch::OtherClients,
        };
        let mut policies: Vec<PolicyMatch> = self.policies.iter().map(of_ports).collect();
        for entry in &self.entries {
            if let Some(known) = policies.get_mut(entry.policy.position()) {
                *known = PolicyMatch::OtherPorts;
            }
        }
        for (entry, is_reached) in self.entries.iter().zip(reached) {
            if !entry.is_for(client.port) {
                continue;
            }
            let found = match (clients.has(entry), entry.request.is_empty()) {
                (false, _) => PolicyMatch::OtherClients,
                (true, true) => PolicyMatch::Matches,
                (true, false) => of_request(entry, is_reached),
            };
            if let Some(known) = policies.get_mut(entry.policy.position()) {
                *known = found.max(*known);
            }
        }
        let otherwise = match rules.denied {
            _ if !self.is_usable => AuthorizationDecision::Denied(Denial::Unusable),
            Some(policy) => AuthorizationDecision::Denied(Denial::Policy(policy)),
            None => rules.concluded(rules.allowed),
        };
        ExaminedClient { policies, otherwise }
    }
}
