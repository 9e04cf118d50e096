//! The decision about one request, or about one connection that is relayed as bytes.
#![expect(clippy::indexing_slicing, reason = "there are two kinds of answers")]

use leno_types::authorization::Action;
use smallvec::SmallVec;

use super::header::has_header;
use super::path::{self, Decoded};
use super::{
    AuthorizationDecision, AuthorizationRequest, AuthorizationTable, ConnectionRules, Denial,
    Entry, PolicyIndex, ServerNameView, host,
};

/// For how many conditions on headers the result is remembered during a request; further conditions are evaluated each
/// time.
const REMEMBERED: u32 = 64;

/// The audit and external policies that match a request; few do.
type Audited = SmallVec<[PolicyIndex; 4]>;

/// The parts of a request that conditions refer to, found once per request.
struct Facts<'t, 'r, R> {
    table: &'t AuthorizationTable,
    request: &'r R,
    /// The positions of conditions on headers that clients cannot set.
    owned: &'t [u32],
    path: Option<&'r [u8]>,
    host: &'r str,
    /// Positions in the table's methods.
    method: Option<u32>,
    method_in_any_case: Option<u32>,
    known_host: Option<u32>,
    /// The cached results of the first [`REMEMBERED`] conditions on headers, one bit for each. Index 0 is for the
    /// question whether any line fulfils the condition, index 1 for the question whether all lines do. A bit of
    /// `evaluated` is set once the bit of `results` is valid.
    evaluated: [u64; 2],
    results: [u64; 2],
}

impl AuthorizationTable {
    /// Decides about a request. `noted` is called with each audit policy that matches it. It is also called with each
    /// external policy that matches it, whose authorizer decides if the request is permitted.
    pub fn decide<R: AuthorizationRequest>(
        &self,
        rules: &ConnectionRules,
        request: &R,
        mut noted: impl FnMut(PolicyIndex),
    ) -> AuthorizationDecision {
        if !self.is_usable {
            return AuthorizationDecision::Denied(Denial::Unusable);
        }
        let mut buffer = Decoded::new();
        let path = path::canonical(request.path(), &mut buffer, self.reading);
        let mut facts = Facts::new(self, rules, request, path.ok());
        let (mut denied, mut allowed) = (rules.denied, rules.allowed);
        let mut also: Audited = rules.audited.iter().copied().collect();
        let (is_denied, is_allowed) = (denied.is_some(), allowed.is_some());
        let mut see = |at: u32| {
            let Some(entry) = self.entries.get(at as usize) else { return };
            let is_needed = match entry.action {
                Action::Deny => !is_denied && denied.is_none_or(|before| entry.policy < before),
                Action::Allow => !is_allowed && allowed.is_none_or(|before| entry.policy < before),
                Action::Audit | Action::External => !also.contains(&entry.policy),
            };
            if is_needed && facts.fulfil(entry) {
                match entry.action {
                    Action::Deny => denied = Some(entry.policy),
                    Action::Allow => allowed = Some(entry.policy),
                    Action::Audit | Action::External => also.push(entry.policy),
                }
            }
        };
        rules.pathless.iter().for_each(|at| see(*at));
        match path {
            Ok(path) => self.paths.each(path, |at| {
                if rules.matches(at) {
                    see(at);
                }
            }),
            // Some servers may read the path as one that an audit rule names.
            Err(_) => self.each_audit_of_paths(rules, see),
        }
        also.into_iter().for_each(&mut noted);
        match (denied, path) {
            (Some(policy), _) => AuthorizationDecision::Denied(Denial::Policy(policy)),
            (None, Err(why)) if rules.reads_path => {
                AuthorizationDecision::Denied(Denial::Path(why))
            }
            (None, _) => rules.concluded(allowed),
        }
    }

    /// Calls `see` with the entries of audit rules that have a condition on the path, whatever the path is.
    fn each_audit_of_paths(&self, rules: &ConnectionRules, see: impl FnMut(u32)) {
        let is_wanted = |entry: &Entry, at: u32| {
            entry.action == Action::Audit && entry.request.has_paths && rules.matches(at)
        };
        let entries = self.entries.iter().zip(0..).filter(|(entry, at)| is_wanted(entry, *at));
        entries.map(|(_, at)| at).for_each(see);
    }

    /// Decides on a connection that is relayed as bytes. A deny rule with conditions on requests matches, because
    /// nothing shows that its conditions are not fulfilled; an allow rule with such conditions does not match. If an
    /// external rule may match, the connection is denied, because an authorizer decides only on requests.
    pub fn decide_opaque(
        &self,
        rules: &ConnectionRules,
        name: ServerNameView<'_>,
        mut audited: impl FnMut(PolicyIndex),
    ) -> AuthorizationDecision {
        if !self.is_usable {
            return AuthorizationDecision::Denied(Denial::Unusable);
        }
        let (mut denied, mut allowed) = (rules.denied, rules.allowed);
        let is_external = |policy: &PolicyIndex| {
            self.policies.get(policy.position()).is_some_and(|one| one.action == Action::External)
        };
        let (of_all, mut also): (Audited, Audited) =
            rules.audited.iter().copied().partition(is_external);
        let mut external = of_all.first().copied();
        for (entry, at) in self.entries.iter().zip(0..) {
            if !rules.matches(at) {
                continue;
            }
            let conditions = &entry.request;
            let is_uncertain = conditions.reads_requests();
            let names = &conditions.server_names;
            let (surely, perhaps) = match name {
                _ if names.is_empty() => (true, true),
                ServerNameView::NoTls => (false, false),
                ServerNameView::Unknown => (false, true),
                ServerNameView::Name(name) => {
                    let is = names.iter().any(|one| host::matches(one, host::bare(name)));
                    (is, is)
                }
            };
            match entry.action {
                Action::Deny if perhaps => denied = denied.or(Some(entry.policy)),
                Action::External if perhaps => external = external.or(Some(entry.policy)),
                Action::Allow if surely && !is_uncertain => {
                    allowed = allowed.or(Some(entry.policy));
                }
                Action::Audit if surely && !is_uncertain && !also.contains(&entry.policy) => {
                    also.push(entry.policy);
                }
                _ => {}
            }
        }
        also.into_iter().for_each(&mut audited);
        match (denied, external, rules.concluded(allowed)) {
            (Some(policy), ..) => AuthorizationDecision::Denied(Denial::Policy(policy)),
            (None, Some(policy), AuthorizationDecision::Permitted(_)) => {
                AuthorizationDecision::Denied(Denial::Bytes(policy))
            }
            (None, _, concluded) => concluded,
        }
    }
}

impl ConnectionRules {
    /// The decision if no deny rule matches.
    pub(super) fn concluded(&self, allowed: Option<PolicyIndex>) -> AuthorizationDecision {
        match allowed {
            Some(policy) => AuthorizationDecision::Permitted(Some(policy)),
            None if self.is_selected => AuthorizationDecision::Denied(Denial::NotAllowed),
            None if self.is_default => AuthorizationDecision::Permitted(None),
            None => AuthorizationDecision::Denied(Denial::Default),
        }
    }
}

impl<'t, 'r, R: AuthorizationRequest> Facts<'t, 'r, R> {
    fn new(
        table: &'t AuthorizationTable,
        rules: &'t ConnectionRules,
        request: &'r R,
        path: Option<&'r [u8]>,
    ) -> Self {
        let method = if rules.reads_method { request.method() } else { "" };
        let known = table.methods.iter().position(|one| **one == *method);
        let in_any_case = |one: &std::sync::Arc<str>| one.eq_ignore_ascii_case(method);
        let folded = table.methods_in_any_case.iter().position(in_any_case);
        let host = if rules.reads_host { host::bare(request.authority()) } else { "" };
        let known_host = if rules.reads_host {
            table.hosts.binary_search_by(|one| host::compare(one, host)).ok()
        } else {
            None
        };
        Self {
            table,
            request,
            owned: &rules.owned,
            path,
            host,
            method: known.map(|at| at as u32),
            method_in_any_case: folded.map(|at| at as u32),
            known_host: known_host.map(|at| at as u32),
            evaluated: [0; 2],
            results: [0; 2],
        }
    }

    /// Whether the request fulfils the conditions of an entry, besides those on the path.
    fn fulfil(&mut self, entry: &Entry) -> bool {
        let conditions = &entry.request;
        if !conditions.server_names.is_empty() {
            // A connection with plaintext requests carries no TLS of the application.
            return false;
        }
        let is_any = |list: &[u32], one: Option<u32>| one.is_some_and(|one| list.contains(&one));
        // Methods are case-sensitive (RFC 9110 section 9.1), but some servers convert them to upper case.
        let method = match entry.action {
            Action::Allow => self.method,
            Action::Deny | Action::Audit | Action::External => self.method_in_any_case,
        };
        if !conditions.methods.is_empty() && !is_any(&conditions.methods, method) {
            return false;
        }
        let names_hosts = !conditions.hosts.is_empty() || !conditions.wildcards.is_empty();
        let is_below = || conditions.wildcards.iter().any(|end| host::ends_with(self.host, end));
        if names_hosts && !is_any(&conditions.hosts, self.known_host) && !is_below() {
            return false;
        }
        if let Some(method) = &conditions.grpc_method
            && !self.is_call_of(entry.action, method)
        {
            return false;
        }
        let of_all = entry.action == Action::Allow;
        let fits = conditions.headers.iter().all(|at| self.header(*at, of_all));
        // Checked last, because this may verify a signature.
        fits && conditions
            .token
            .as_ref()
            .is_none_or(|claims| self.request.has_token(entry.policy, claims))
    }

    /// Whether the request is a call of this gRPC method. An ambiguous path may be any call; deny rules need not match
    /// it, because the ambiguity itself denies the request.
    fn is_call_of(&self, action: Action, method: &str) -> bool {
        match self.path {
            Some(path) => is_call_of(path, method),
            None => action == Action::Audit,
        }
    }

    fn header(&mut self, at: u32, of_all: bool) -> bool {
        let Some(condition) = self.table.headers.get(at as usize) else { return false };
        if self.owned.contains(&at) {
            return false;
        }
        if at >= REMEMBERED {
            return has_header(self.request, condition, of_all);
        }
        let (kind, bit) = (usize::from(of_all), 1_u64 << at);
        if self.evaluated[kind] & bit == 0 {
            self.evaluated[kind] |= bit;
            if has_header(self.request, condition, of_all) {
                self.results[kind] |= bit;
            }
        }
        self.results[kind] & bit != 0
    }
}

/// Whether a request fulfils the conditions of an entry, besides those on the path.
pub(super) fn fulfils<R: AuthorizationRequest>(
    (table, rules): (&AuthorizationTable, &ConnectionRules),
    request: &R,
    path: Option<&[u8]>,
    entry: &Entry,
) -> bool {
    Facts::new(table, rules, request, path).fulfil(entry)
}

/// Whether a path has the form `/service/method` and names this method.
fn is_call_of(path: &[u8], method: &str) -> bool {
    let mut segments = path.split(|byte| *byte == b'/');
    segments.next() == Some(b"")
        && segments.next().is_some_and(|service| !service.is_empty())
        && segments.next() == Some(method.as_bytes())
        && segments.next().is_none()
}
