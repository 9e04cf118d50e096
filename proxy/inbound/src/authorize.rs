//! Decides which clients and requests the workload's policies permit.
//!
//! The policies are evaluated for a client once per connection, and again when they change, or when the client's
//! certificate changes and they depend on it. Each request is then compared with the rules that may still match.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leno_discovery::Directory;
use leno_http::{Answer, HeaderLine, RequestView};
use leno_policy::authorization::{
    AuthorizationDecision, AuthorizationRequest, AuthorizationTable, CertificateView,
    ConnectionRules, ConnectionView, Denial, PolicyIndex, ServerNameView,
};
use leno_telemetry::{AuditedRequest, Registry};
use leno_tls::ShownCertificate;
use leno_tokens::{TokenCache, TokenError};
use leno_transport::OwnTls;
use leno_types::authorization::{Action, Authorization, AuthorizationPolicy, CertificateValidity};
use leno_types::tokens::ClaimMatch;
use leno_types::{Identity, Protocol};

use crate::addresses::{Addresses, answered};
use crate::bearer::{TokenRules, UnknownKeys};
use crate::external::{Authorizer, Grants, MeshServices};
use crate::{Client, Worker, bearer};

/// The value of `leno-error` when a policy denies a request.
pub(crate) const AUTHORIZATION_DENIED: &str = "authorization-denied";

/// The reason in metrics and logs if an allow rule would have matched with a valid token.
const NO_TOKEN: &str = "token";

/// How many lines about clients (denied or audited requests, refused tunnels) a worker logs in one [`LOG_PERIOD`].
/// Clients decide how many such events there are.
const MAX_LOGGED: u32 = 20;
const LOG_PERIOD: Duration = Duration::from_secs(1);

/// Logs an event of a client, unless the log budget is used up.
macro_rules! log_client {
    ($access:ident, $worker:ident, $message:expr; $($fields:tt)*) => {
        if let Some(left_out) = $worker.log.take() {
            tracing::warn!(
                $($fields)*,
                client = $access.name(),
                address = %$access.client,
                server = %$worker.parts.workload,
                server_identity = own_identity($worker),
                port = $access.port,
                left_out,
                "{}",
                $message
            );
        }
    };
}

/// The workload's policies, and what one worker needs to evaluate them.
#[derive(Debug)]
pub(crate) struct Policies {
    /// The policies as discovery has sent them.
    of: Arc<Authorization>,
    pub(crate) table: AuthorizationTable,
    /// The number of matches, by position of the policy.
    counters: Vec<Rc<Cell<u64>>>,
    /// The number of requests and connections that no policy decided about, so that the default permitted them.
    default: Rc<Cell<u64>>,
    /// Tokens that were verified for the policies.
    tokens: TokenCache,
    /// Reports tokens to the control plane that were signed with a key that the policies do not have.
    unknown_keys: UnknownKeys,
    /// The authorizers of external policies, by position of the policy. There are none if no policy is external.
    authorizers: Vec<Option<Rc<Authorizer>>>,
}

/// A client, and the result of evaluating the policies for it.
#[derive(Debug)]
pub(crate) struct Access {
    identity: Option<Identity>,
    certificate: Option<ShownCertificate>,
    client: std::net::SocketAddr,
    port: u16,
    /// Whether the port is declared opaque. Policies must then permit the bytes of a request, too; see
    /// [`Access::at_port_of`].
    carries_bytes: bool,
    /// The client's other addresses, looked up as soon as policies depend on them.
    addresses: RefCell<Addresses>,
    /// The result of the last evaluation of the policies; `None` before the first one.
    rules: RefCell<Option<Evaluated>>,
}

/// The result of evaluating the policies for one client.
#[derive(Clone, Debug)]
struct Evaluated {
    policies: Rc<Policies>,
    rules: Rc<ConnectionRules>,
    /// The validity of the client's certificate at the time of the evaluation.
    validity: Option<CertificateValidity>,
    /// The time of the evaluation, as the time since 1970.
    at: Duration,
}

/// Whether a client that has sent nothing, and may wait for its server, is permitted to reach it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Silence {
    /// The proxy may connect to the server.
    Permitted,
    /// The decision depends on the server name in TLS, which the client may still send.
    Undecided,
    /// The client is denied, whatever it sends.
    Denied,
}

/// Whether a request or relay in progress is still permitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Still {
    /// The request or relay is still permitted. If there is a time (since 1970), the decision must be repeated then,
    /// because a token expires or the age of the client's certificate reaches a limit of a rule.
    Permitted(Option<Duration>),
    /// The request or relay is no longer permitted. Metrics already count it as ended.
    Ended,
}

/// A request that the workload's own policies permit.
#[derive(Debug, Default)]
pub(crate) struct Permit {
    /// When the decision must be repeated (time since 1970), because a token expires or the age of the client's
    /// certificate reaches a limit of a rule.
    pub(crate) until: Option<Duration>,
    /// The external authorizers that must also permit the request.
    pub(crate) authorizers: Vec<Rc<Authorizer>>,
    /// The changes that the policies make to the request.
    pub(crate) grants: Grants,
}

/// A denial of a request, with the answer to the client.
#[derive(Debug)]
pub(crate) struct Denied {
    pub(crate) status: u16,
    /// The label in metrics.
    pub(crate) label: &'static str,
    cause: String,
    headers: Vec<HeaderLine>,
    /// The body, with its content type. If there is none, the body is one line of text.
    body: Option<Box<(String, Vec<u8>)>>,
}

impl Denied {
    fn new(status: u16, cause: String) -> Self {
        Self::failed(status, AUTHORIZATION_DENIED, cause)
    }

    /// A denial that is counted as `label` in metrics. `cause` is sent in `leno-error`.
    pub(crate) fn failed(status: u16, label: &'static str, cause: String) -> Self {
        Self { status, label, cause, headers: Vec::new(), body: None }
    }

    /// Sets the headers of the answer, and its body unless `body` is empty.
    pub(crate) fn answered(
        self,
        headers: Vec<HeaderLine>,
        content_type: Option<&str>,
        body: Vec<u8>,
    ) -> Self {
        let content_type = content_type.unwrap_or("text/plain; charset=utf-8").to_owned();
        let body = (!body.is_empty()).then(|| Box::new((content_type, body)));
        Self { headers, body, ..self }
    }

    pub(crate) fn answer(&self) -> Answer<'_> {
        let answer = Answer { headers: &self.headers, ..Answer::error(self.status, &self.cause) };
        match self.body.as_deref() {
            Some((content_type, body)) => Answer { content_type, body, ..answer },
            None => answer,
        }
    }
}

/// Limits how many lines are logged in each [`LOG_PERIOD`].
#[derive(Debug)]
pub(crate) struct LogBudget {
    since: Cell<Instant>,
    logged: Cell<u32>,
    left_out: Cell<u64>,
}

impl Default for LogBudget {
    fn default() -> Self {
        let since = Cell::new(leno_transport::now());
        Self { since, logged: Cell::new(0), left_out: Cell::new(0) }
    }
}

impl LogBudget {
    /// Takes one line from the budget. Returns how many lines were left out before it; `None` if the budget is used
    /// up.
    pub(crate) fn take(&self) -> Option<u64> {
        let now = leno_transport::now();
        if now.saturating_duration_since(self.since.get()) >= LOG_PERIOD {
            self.since.set(now);
            self.logged.set(0);
        }
        if self.logged.get() >= MAX_LOGGED {
            self.left_out.set(self.left_out.get().saturating_add(1));
            return None;
        }
        self.logged.set(self.logged.get().saturating_add(1));
        Some(self.left_out.take())
    }
}

impl Policies {
    pub(crate) fn new(
        of: Arc<Authorization>,
        namespace: &str,
        (services, registry, directory): (&dyn MeshServices, &Registry, &Directory),
    ) -> Self {
        let table = AuthorizationTable::new(&of, namespace);
        let counter = |policy: &AuthorizationPolicy| {
            let source = &policy.source;
            let decision = match policy.action {
                Action::Allow => "allow",
                Action::Deny => "deny",
                Action::Audit => "audit",
                // The authorizer of such a policy counts its own decisions.
                Action::External => return Rc::default(),
            };
            registry.authorization(decision, &format!("{}/{}", source.namespace, source.name))
        };
        let counters = of.policies.iter().map(counter).collect();
        let default = registry.authorization("allow", "default");
        let authorizer = |policy: &AuthorizationPolicy| {
            let name = format!("{}/{}", policy.source.namespace, policy.source.name);
            let external = policy.external.as_ref()?;
            Some(Rc::new(Authorizer::new(external, name, (services, registry))))
        };
        let has_external = of.policies.iter().any(|policy| policy.external.is_some());
        let authorizers = match has_external {
            true => of.policies.iter().map(authorizer).collect(),
            false => Vec::new(),
        };
        let (tokens, unknown_keys) = (TokenCache::default(), UnknownKeys::new(directory.clone()));
        Self { of, table, counters, default, tokens, unknown_keys, authorizers }
    }

    /// The rules for the tokens of requests, with the cache of verified tokens.
    fn token_rules(&self) -> TokenRules<'_> {
        TokenRules { cache: &self.tokens, of: &self.of, unknown: &self.unknown_keys }
    }

    /// Whether requests on a port must be parsed, because rules depend on them or because their heads are changed.
    pub(crate) fn read_requests(&self, port: u16) -> bool {
        self.table.reads_requests(port) || self.table.owned(port).next().is_some()
    }

    /// The changes to the head of a permitted request: headers that only policies may set are removed, and those with
    /// claims of valid tokens are set.
    fn grants(&self, port: u16, request: RequestView<'_>) -> Grants {
        let mut grants = Grants::default();
        let mut before = None;
        for (policy, name) in self.table.owned(port) {
            grants.remove(request, name);
            if before.replace(policy) == Some(policy) {
                continue;
            }
            let lines = bearer::claim_headers(self.token_rules(), request, policy.position());
            lines.into_iter().for_each(|line| grants.set(line));
        }
        grants
    }

    /// Closes connections to authorizers that have been idle for too long.
    pub(crate) fn sweep(&self) {
        self.authorizers.iter().flatten().for_each(|one| one.sweep());
    }

    /// Whether these policies were made from `authorization`.
    pub(crate) fn is_of(&self, authorization: &Arc<Authorization>) -> bool {
        Arc::ptr_eq(&self.of, authorization) || self.of == *authorization
    }

    fn count(&self, policy: PolicyIndex) {
        if let Some(counter) = self.counters.get(policy.position()) {
            counter.set(counter.get().wrapping_add(1));
        }
    }

    fn name(&self, policy: PolicyIndex) -> String {
        let source = self.table.source(policy);
        source.map(|one| format!("{}/{}", one.namespace, one.name)).unwrap_or_default()
    }
}

/// A request's head without the headers that the proxy removes.
struct Forwarded<'a> {
    head: RequestView<'a>,
    policies: &'a Policies,
    /// If a rule of an Allow policy matches except for its token: why no valid token was found for it.
    token: Cell<Option<TokenError>>,
    /// The earliest expiry of the tokens that rules have found valid.
    until: Cell<Option<Duration>>,
}

impl<'a> Forwarded<'a> {
    fn new(head: RequestView<'a>, policies: &'a Policies) -> Self {
        Self { head, policies, token: Cell::new(None), until: Cell::new(None) }
    }
}

impl AuthorizationRequest for Forwarded<'_> {
    fn method(&self) -> &str {
        self.head.method()
    }

    fn path(&self) -> &[u8] {
        self.head.path()
    }

    fn authority(&self) -> &str {
        self.head.authority()
    }

    fn each_line(&self, is_wanted: &dyn Fn(&str) -> bool, see: &mut dyn FnMut(&str, &[u8])) {
        self.head.forwarded(is_wanted).for_each(|(name, value)| see(name, value));
    }

    fn has_token(&self, policy: PolicyIndex, claims: &[ClaimMatch]) -> bool {
        match bearer::has_token(self.policies.token_rules(), self.head, policy.position(), claims) {
            Ok(Some(until)) => {
                self.until.set(Some(self.until.get().map_or(until, |first| first.min(until))));
                true
            }
            Ok(None) => false,
            Err(error) => {
                let of = self.policies.of.policies.get(policy.position());
                let permits = of.is_some_and(|policy| policy.action == Action::Allow);
                if permits && matches!(self.token.get(), None | Some(TokenError::Missing)) {
                    self.token.set(Some(error));
                }
                false
            }
        }
    }
}

impl Access {
    pub(crate) fn new(client: &Client, port: u16) -> Self {
        let Client { identity, certificate, address, .. } = client;
        Self {
            identity: identity.clone(),
            certificate: *certificate,
            client: *address,
            port,
            carries_bytes: false,
            addresses: RefCell::default(),
            rules: RefCell::default(),
        }
    }

    /// Sets the declared protocol of the port. On an opaque port the application may interpret the bytes of a request
    /// in another way than the proxy, so rules that are only about requests are not enough to permit them.
    pub(crate) fn at_port_of(self, declared: Protocol) -> Self {
        Self { carries_bytes: declared == Protocol::Opaque, ..self }
    }

    /// Decides about a request of this client, by the result of evaluating the policies. Calls `see` with each
    /// matching policy that only audits, or whose external authorizer must be asked.
    fn decide(
        &self,
        (policies, rules): (&Policies, &ConnectionRules),
        request: &Forwarded<'_>,
        see: impl FnMut(PolicyIndex),
    ) -> AuthorizationDecision {
        match policies.table.decide(rules, request, see) {
            AuthorizationDecision::Permitted(by) if self.carries_bytes => {
                match policies.table.decide_opaque(rules, ServerNameView::NoTls, |_| ()) {
                    AuthorizationDecision::Permitted(_) => AuthorizationDecision::Permitted(by),
                    denied => denied,
                }
            }
            decision => decision,
        }
    }

    /// The validity of the certificate that the client has presented last.
    fn validity(&self) -> Option<CertificateValidity> {
        self.certificate.and_then(ShownCertificate::validity)
    }

    /// The rules that apply to this client. If they depend on its other addresses, this waits for discovery's answer,
    /// up to [`crate::addresses::ANSWER_TIMEOUT`]. If there is no answer, deny rules that could apply to the client
    /// match. `None` if the policies permit everything.
    async fn resolved(&self, shared: &Worker) -> Option<(Rc<Policies>, Rc<ConnectionRules>)> {
        let (policies, rules) = self.rules(shared)?;
        let awaited = match rules.lacks_addresses() {
            true => self.addresses.borrow().awaited(),
            false => None,
        };
        let Some(awaited) = awaited else { return Some((policies, rules)) };
        answered(awaited, self.is_workload(&policies)).await;
        self.rules(shared)
    }

    /// Whether the client has proven an identity of the mesh's own trust domain.
    fn is_workload(&self, policies: &Policies) -> bool {
        let domain = &policies.of.trust_domain;
        self.identity.as_ref().is_some_and(|identity| identity.trust_domain() == domain)
    }

    fn evaluate(&self, policies: &Rc<Policies>) -> Evaluated {
        let addresses = self.addresses.borrow();
        let (identity, address) = (self.identity.as_ref(), self.client.ip());
        let validity = self.validity();
        let at = bearer::now();
        let now_s = i64::try_from(at.as_secs()).unwrap_or(i64::MAX);
        let view = ConnectionView {
            identity,
            certificate: validity.map(|validity| CertificateView { validity, now_s }),
            address,
            others: addresses.others(),
            port: self.port,
        };
        let rules = Rc::new(policies.table.connection(&view));
        Evaluated { policies: Rc::clone(policies), rules, validity, at }
    }

    /// Whether an evaluation is still valid. The policies must be the same. If rules depend on the certificate, the
    /// certificate must be the same, its age must not have reached a limit of a rule, and the clock must not have been
    /// set back.
    fn is_current(&self, evaluated: &Evaluated, policies: &Rc<Policies>) -> bool {
        let Evaluated { policies: of, rules, validity, at } = evaluated;
        let is_of_now = || {
            let now = bearer::now();
            *at <= now && until(rules).is_none_or(|until| now < until)
        };
        Rc::ptr_eq(of, policies)
            && (!rules.reads_certificate() || is_of_now() && *validity == self.validity())
    }

    /// The rules that apply to this client now; `None` if the policies permit everything.
    fn rules(&self, shared: &Worker) -> Option<(Rc<Policies>, Rc<ConnectionRules>)> {
        let policies = shared.policies();
        if policies.table.is_open() {
            return None;
        }
        let mut known = self.rules.borrow_mut();
        let mut evaluated = match &*known {
            Some(evaluated) if self.is_current(evaluated, &policies) => {
                if !evaluated.rules.lacks_addresses() {
                    return Some((policies, Rc::clone(&evaluated.rules)));
                }
                evaluated.clone()
            }
            _ => self.evaluate(&policies),
        };
        let find = || {
            let (own, is_workload) = (self.client.ip(), self.is_workload(&policies));
            self.addresses.borrow_mut().find(&shared.parts.directory, own, is_workload)
        };
        if evaluated.rules.lacks_addresses() && find() {
            evaluated = self.evaluate(&policies);
        }
        let rules = Rc::clone(&evaluated.rules);
        *known = Some(evaluated);
        Some((policies, rules))
    }

    /// Decides about a request by the workload's own policies. The caller must ask the authorizers of the permit, and
    /// decide again at [`Permit::until`].
    pub(crate) async fn request(
        &self,
        shared: &Worker,
        request: RequestView<'_>,
    ) -> Result<Permit, Denied> {
        let Some((policies, rules)) = self.resolved(shared).await else {
            return Ok(Permit::default());
        };
        let forwarded = Forwarded::new(request, &policies);
        let mut authorizers = Vec::new();
        let decision = self.decide((&policies, &rules), &forwarded, |policy| {
            match policies.authorizers.get(policy.position()).cloned().flatten() {
                Some(authorizer) => authorizers.push(authorizer),
                None => self.audited(shared, (&policies, policy), Some(request)),
            }
        });
        let until = earlier(forwarded.until.get(), until(&rules));
        self.conclude(shared, &policies, (decision, forwarded.token.get()), Some(request))?;
        Ok(Permit { until, authorizers, grants: policies.grants(self.port, request) })
    }

    /// The current decision about a request, as one line for people.
    pub(crate) fn described(&self, shared: &Worker, request: RequestView<'_>) -> String {
        let client = match &self.identity {
            Some(identity) => identity.to_string(),
            None => format!("{} without an identity", self.client.ip()),
        };
        let Some((policies, rules)) = self.rules(shared) else {
            return format!("permits {client}: no policy selects the workload");
        };
        let name = |policy| format!("AuthorizationPolicy {}", policies.name(policy));
        let forwarded = Forwarded::new(request, &policies);
        match self.decide((&policies, &rules), &forwarded, |_| ()) {
            AuthorizationDecision::Permitted(Some(policy)) => {
                format!("permits {client} by {}", name(policy))
            }
            AuthorizationDecision::Permitted(None) => format!("permits {client} by default"),
            AuthorizationDecision::Denied(Denial::Policy(policy)) => {
                format!("denies {client} by {}", name(policy))
            }
            AuthorizationDecision::Denied(other) => format!("denies {client}: {}", other.label()),
        }
    }

    /// Decides about a connection that is relayed as opaque bytes.
    pub(crate) async fn connection(
        &self,
        shared: &Worker,
        tls: Option<&OwnTls>,
    ) -> Result<(), Denied> {
        let Some((policies, rules)) = self.resolved(shared).await else { return Ok(()) };
        let decision = policies.table.decide_opaque(&rules, server_name(tls), |policy| {
            self.audited(shared, (&policies, policy), None);
        });
        self.conclude(shared, &policies, (decision, None), None)
    }

    /// The workload's port.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// The client's address.
    pub(crate) fn address(&self) -> std::net::SocketAddr {
        self.client
    }

    /// The client's address, and its identity as text. The text is empty if the client has no identity.
    pub(crate) fn client(&self) -> (std::net::SocketAddr, String) {
        (self.client, self.identity.as_ref().map(ToString::to_string).unwrap_or_default())
    }

    /// Logs that an authorizer denied a request or did not decide.
    pub(crate) fn log_external(
        &self,
        shared: &Worker,
        (policy, decision): (&str, &str),
        request: &str,
    ) {
        let message = "an external authorizer has not permitted a request";
        log_client!(self, shared, message; policy, decision, request);
    }

    /// Decides again about a request that was permitted; see [`Access::request`].
    pub(crate) fn still(&self, shared: &Worker, request: RequestView<'_>) -> Still {
        let Some((policies, rules)) = self.rules(shared) else { return Still::Permitted(None) };
        if self.is_undecided(shared, &rules) {
            return Still::Permitted(None);
        }
        let forwarded = Forwarded::new(request, &policies);
        let decision = self.decide((&policies, &rules), &forwarded, |_| ());
        match self.is_ended(shared, &policies, (decision, forwarded.token.get())) {
            true => Still::Ended,
            false => Still::Permitted(earlier(forwarded.until.get(), until(&rules))),
        }
    }

    /// Decides again about a request that has waited for authorizers. `request` is `None` if it has not waited.
    pub(crate) fn is_still_permitted(
        &self,
        shared: &Worker,
        request: Option<RequestView<'_>>,
    ) -> Result<(), Denied> {
        match request.map(|request| self.still(shared, request)) {
            Some(Still::Ended) => Err(Denied::new(403, AUTHORIZATION_DENIED.to_owned())),
            _ => Ok(()),
        }
    }

    /// Decides again about a relay that was permitted. For the time that is returned, see [`Still::Permitted`].
    pub(crate) fn still_relayed(&self, shared: &Worker, tls: Option<&OwnTls>) -> Still {
        let Some((policies, rules)) = self.rules(shared) else { return Still::Permitted(None) };
        if self.is_undecided(shared, &rules) {
            return Still::Permitted(None);
        }
        let decision = policies.table.decide_opaque(&rules, server_name(tls), |_| ());
        match self.is_ended(shared, &policies, (decision, None)) {
            true => Still::Ended,
            false => Still::Permitted(until(&rules)),
        }
    }

    /// Whether the decision about a request or relay in progress must wait, because a changed policy depends on
    /// addresses that discovery has not sent yet. If so, schedules another decision.
    fn is_undecided(&self, shared: &Worker, rules: &ConnectionRules) -> bool {
        let waits = rules.lacks_addresses() && self.addresses.borrow().awaited().is_some();
        if waits {
            shared.decide_again();
        }
        waits
    }

    /// Decides about a client that waits until its server sends first.
    pub(crate) async fn silent(&self, shared: &Worker) -> Silence {
        let Some((policies, rules)) = self.resolved(shared).await else {
            return Silence::Permitted;
        };
        let decision = policies.table.decide_opaque(&rules, ServerNameView::NoTls, |_| ());
        match decision {
            AuthorizationDecision::Permitted(_) => Silence::Permitted,
            AuthorizationDecision::Denied(_) if policies.table.reads_server_names(self.port) => {
                Silence::Undecided
            }
            AuthorizationDecision::Denied(_) => Silence::Denied,
        }
    }

    fn is_ended(
        &self,
        shared: &Worker,
        policies: &Policies,
        (decision, token): (AuthorizationDecision, Option<TokenError>),
    ) -> bool {
        let AuthorizationDecision::Denied(denial) = decision else { return false };
        let reason = match denial {
            Denial::Policy(policy) => policies.name(policy),
            Denial::NotAllowed if token.is_some() => NO_TOKEN.to_owned(),
            other => other.label().to_owned(),
        };
        let counter = shared.parts.registry.authorization("end", &reason);
        counter.set(counter.get().wrapping_add(1));
        let message = "ended: policies no longer permit what is in progress";
        log_client!(self, shared, message; reason);
        true
    }

    fn audited(
        &self,
        shared: &Worker,
        (policies, policy): (&Policies, PolicyIndex),
        request: Option<RequestView<'_>>,
    ) {
        policies.count(policy);
        shared.parts.registry.audited(self.audited_request(policies.name(policy), request));
        log_client!(self, shared, "audited";
            policy = policies.name(policy), request = described(request));
    }

    fn audited_request(&self, policy: String, request: Option<RequestView<'_>>) -> AuditedRequest {
        let path = request.map(|request| String::from_utf8_lossy(request.path()));
        AuditedRequest {
            policy: policy.into(),
            client: self.identity.as_ref().map(ToString::to_string).unwrap_or_default().into(),
            address: self.identity.is_none().then(|| self.client.ip()),
            port: self.port,
            method: request.map_or("", |request| request.method()).into(),
            host: request.map_or("", |request| request.authority()).into(),
            path: path.unwrap_or_default().into(),
        }
    }

    fn conclude(
        &self,
        shared: &Worker,
        policies: &Policies,
        (decision, token): (AuthorizationDecision, Option<TokenError>),
        request: Option<RequestView<'_>>,
    ) -> Result<(), Denied> {
        let denial = match decision {
            AuthorizationDecision::Permitted(Some(policy)) => {
                policies.count(policy);
                return Ok(());
            }
            AuthorizationDecision::Permitted(None) => {
                policies.default.set(policies.default.get().wrapping_add(1));
                return Ok(());
            }
            AuthorizationDecision::Denied(denial) => denial,
        };
        // An invalid token is the reason only if no policy allowed the request. With a valid token, one might have
        // allowed it.
        let token = token.filter(|_| denial == Denial::NotAllowed);
        let reason = token.map_or(denial.label(), |_| NO_TOKEN);
        let policy = match denial {
            Denial::Policy(policy) => {
                policies.count(policy);
                policies.name(policy)
            }
            _ => {
                let counter = shared.parts.registry.authorization("deny", reason);
                counter.set(counter.get().wrapping_add(1));
                String::new()
            }
        };
        let detail = || match (denial, token) {
            (_, Some(error)) => error.label().to_owned(),
            (Denial::Path(why), _) => why.to_string(),
            (Denial::Bytes(policy), _) => policies.name(policy),
            _ => String::new(),
        };
        let request = || described(request);
        log_client!(self, shared, "denied"; reason, policy, detail = detail(), request = request());
        Err(match token {
            Some(error) => Denied {
                headers: bearer::challenge(error).into_iter().collect(),
                ..Denied::new(401, format!("{AUTHORIZATION_DENIED}; reason={}", error.label()))
            },
            None => Denied::new(403, self.cause(policies, denial, &policy)),
        })
    }

    /// The value of `leno-error` for the client. Only clients in the policy's namespace get the policy's name. A path
    /// that cannot be compared with rules is named to all clients as the reason.
    fn cause(&self, policies: &Policies, denial: Denial, policy: &str) -> String {
        let is_own = |index: PolicyIndex| {
            let source = policies.table.source(index);
            self.identity.as_ref().zip(source).is_some_and(|(identity, source)| {
                *identity.trust_domain() == policies.of.trust_domain
                    && *identity.namespace() == *source.namespace
            })
        };
        match denial {
            Denial::Policy(index) if is_own(index) => {
                format!("{AUTHORIZATION_DENIED}; policy={policy}")
            }
            Denial::Path(_) => format!("{AUTHORIZATION_DENIED}; reason={}", denial.label()),
            _ => AUTHORIZATION_DENIED.to_owned(),
        }
    }

    /// The client's identity for logs.
    fn name(&self) -> String {
        self.identity.as_ref().map_or_else(|| "(no identity)".to_owned(), ToString::to_string)
    }
}

/// Until when the evaluation is valid, as the time since 1970.
fn until(rules: &ConnectionRules) -> Option<Duration> {
    rules.until_s().map(|until_s| Duration::from_secs(u64::try_from(until_s).unwrap_or_default()))
}

fn earlier(one: Option<Duration>, other: Option<Duration>) -> Option<Duration> {
    one.into_iter().chain(other).min()
}

/// The text for logs, which is the method and path of a request, or `a connection` for a relay of bytes.
pub(crate) fn described(request: Option<RequestView<'_>>) -> String {
    match request {
        Some(request) => {
            format!("{} {}", request.method(), String::from_utf8_lossy(request.path()))
        }
        None => "a connection".to_owned(),
    }
}

/// The workload's own identity for logs.
fn own_identity(shared: &Worker) -> String {
    shared.parts.tls.identity().map(|identity| identity.to_string()).unwrap_or_default()
}

/// `tls` is `None` if no policy depended on the server name when the connection began.
fn server_name(tls: Option<&OwnTls>) -> ServerNameView<'_> {
    match tls {
        None => ServerNameView::Unknown,
        Some(OwnTls { is_tls: false, .. }) => ServerNameView::NoTls,
        Some(OwnTls { server_name: None, .. }) => ServerNameView::Unknown,
        Some(OwnTls { server_name: Some(name), .. }) => ServerNameView::Name(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_do_not_fill_the_log() {
        let budget = LogBudget::default();
        let lines = (0..1_000).filter(|_| budget.take().is_some()).count();
        assert!((20..=40).contains(&lines), "{lines}");
        budget.since.set(Instant::now() - LOG_PERIOD);
        let left_out = 1_000 - lines as u64;
        assert_eq!(budget.take(), Some(left_out));
    }
}
