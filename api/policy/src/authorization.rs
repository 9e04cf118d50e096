//! Whether a client may connect, and whether its requests are permitted.
//!
//! [`AuthorizationTable`] is compiled from the policies that select one workload. A connection is
//! evaluated once: [`AuthorizationTable::connection`] keeps the rules that match the client and the
//! port. [`AuthorizationTable::decide`] then evaluates only what these rules require of a request; it uses no regular
//! expression. It allocates only for a path that has to be decoded or normalised and is long (more than 256 bytes or 16
//! segments), or if more than four audit and external policies match.
//!
//! ```text
//! Authorization ─ compile ─► AuthorizationTable ─ connection(client, port) ─► ConnectionRules
//!                                   └─ decide(rules, request) ─► permitted, or denied and why
//!
//! the proxy cannot apply the policies ─► denied
//! deny rule matches ─► denied
//! servers disagree on the path, and the rules depend on it ─► denied
//! allow policy selects the port ─► permitted if an allow rule matches, else denied
//! otherwise ─► the namespace's default
//! permitted, and external rules match ─► the caller asks their authorizers (for relayed bytes: denied)
//! ```

mod certificate;
mod compile;
mod connection;
mod decide;
mod examine;
mod header;
mod host;
mod path;
mod paths;

use std::net::IpAddr;
use std::sync::Arc;

use leno_types::Identity;
use leno_types::authorization::{
    Action, ClientMatch, DefaultAuthorization, HeaderMatch, PathReading,
};
use leno_types::tokens::ClaimMatch;
use leno_types::traffic::PolicySource;

pub use certificate::CertificateView;
pub use connection::ConnectionRules;
pub use examine::{ExaminedClient, PolicyMatch};
pub use header::is_spelling;
pub use path::{AmbiguousPath, ambiguity, canonical_path};

use paths::PathTable;

/// The policies of a workload, compiled.
#[derive(Debug)]
pub struct AuthorizationTable {
    policies: Vec<CompiledPolicy>,
    /// One or more entries for each combination of a rule and a condition of its `to`: first those of deny rules, then
    /// of allow, audit and external rules.
    entries: Vec<Entry>,
    /// The distinct values of `from`.
    clients: Vec<Vec<ClientMatch>>,
    paths: PathTable,
    /// The distinct methods of allow rules.
    methods: Vec<Arc<str>>,
    /// The distinct methods of deny and audit rules, in upper case.
    methods_in_any_case: Vec<Arc<str>>,
    /// The distinct hosts without wildcard, sorted.
    hosts: Vec<Arc<str>>,
    headers: Vec<HeaderMatch>,
    /// The headers that only policies may set, each with the policy that sets it.
    owned: Vec<(PolicyIndex, Arc<str>)>,
    /// Which clients are permitted on ports that no allow policy selects.
    default: DefaultAuthorization,
    reading: PathReading,
    /// The trust domain of the mesh itself.
    trust_domain: Arc<str>,
    /// The namespace of the workload.
    namespace: Arc<str>,
    /// Whether the proxy can apply the policies. If not, everything is denied.
    is_usable: bool,
}

/// A policy of the table, by position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PolicyIndex(pub(crate) u32);

#[derive(Debug)]
struct CompiledPolicy {
    source: PolicySource,
    action: Action,
    /// The ports for which the policy holds; `None` means all.
    ports: Option<Arc<[u16]>>,
}

/// The clients and ports that a rule selects, and the conditions for their requests.
#[derive(Debug)]
struct Entry {
    policy: PolicyIndex,
    action: Action,
    /// The position of the entry's clients in the table's `clients`; `None` means every client.
    clients: Option<u32>,
    /// The ports for which the entry holds; `None` means all.
    ports: Option<Box<[u16]>>,
    request: RequestConditions,
}

/// The conditions of an entry on a request, or on TLS of the application. An empty list is no condition.
#[derive(Debug, Default)]
struct RequestConditions {
    /// Positions in the table's methods: those of `methods_in_any_case`, unless the action is to allow.
    methods: Box<[u32]>,
    /// Positions in the table's hosts.
    hosts: Box<[u32]>,
    /// The part of each host with a wildcard that follows the asterisk, such as `.example.com`.
    wildcards: Box<[Arc<str>]>,
    /// Whether the entry is in the table's paths.
    has_paths: bool,
    /// The method of a gRPC call.
    grpc_method: Option<Arc<str>>,
    /// Positions in the table's headers.
    headers: Box<[u32]>,
    /// The claims that a valid token of the policy's issuers must have; `None` if no token is required.
    token: Option<Box<[ClaimMatch]>>,
    /// Names in the TLS that the application itself makes. An entry that has any matches no plaintext request.
    server_names: Box<[Arc<str>]>,
}

/// The client of a connection, and the port to which it has connected.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionView<'a> {
    /// The client's identity, if it has proven one.
    pub identity: Option<&'a Identity>,
    /// The certificate that proves the identity.
    pub certificate: Option<CertificateView>,
    /// The address from which the client connects. An IPv4 address must not be in IPv4-mapped form.
    pub address: IpAddr,
    /// The client's other addresses. A workload that has both families connects over either.
    pub others: OtherAddresses<'a>,
    /// The workload's port.
    pub port: u16,
}

/// The addresses of a client other than the one from which it connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherAddresses<'a> {
    /// All other addresses of the client.
    Known(&'a [IpAddr]),
    /// There may be another address, of the other family. A deny rule assumes that any block of that family contains
    /// it; allow and audit rules assume that none does.
    Unknown,
}

/// A request, as authorization sees it: only the parts that reach the application.
pub trait AuthorizationRequest {
    /// The method, as sent.
    fn method(&self) -> &str;

    /// The path, as sent and without its query; `*` if the request has no path.
    fn path(&self) -> &[u8];

    /// The authority, `host` or `host:port`; empty if the request has none.
    fn authority(&self) -> &str;

    /// Calls `see` with the name and the value of each header line for whose name `is_wanted` returns true. Lines that
    /// the proxy removes are left out.
    fn each_line(&self, is_wanted: &dyn Fn(&str) -> bool, see: &mut dyn FnMut(&str, &[u8]));

    /// Whether the request has a valid token of one of the policy's issuers, with all of these claims. Called only if
    /// all other conditions of a rule match.
    fn has_token(&self, _policy: PolicyIndex, _claims: &[ClaimMatch]) -> bool {
        false
    }
}

/// The server name (SNI) of the TLS connection that the application itself makes. The mesh's own TLS has another name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerNameView<'a> {
    /// The connection carries no TLS of the application.
    NoTls,
    /// TLS with this name.
    Name(&'a str),
    /// TLS without a name, or with a name that cannot be read.
    Unknown,
}

/// Whether a connection or a request is permitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthorizationDecision {
    /// Permitted by this policy, or by the default if it is `None`.
    Permitted(Option<PolicyIndex>),
    /// The connection or request is denied.
    Denied(Denial),
}

/// Why a connection or a request is denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denial {
    /// A deny policy matches.
    Policy(PolicyIndex),
    /// Allow policies select the port, and none of them matches.
    NotAllowed,
    /// No allow policy selects the port, and the default does not permit the client.
    Default,
    /// Policies depend on the path, and servers do not agree on how to read it.
    Path(AmbiguousPath),
    /// This external policy matches, but the connection is relayed as bytes, so there are no requests for its
    /// authorizer to decide on.
    Bytes(PolicyIndex),
    /// The proxy cannot apply the policies.
    Unusable,
}

impl Denial {
    /// The name of the reason in metrics and logs.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Policy(_) => "policy",
            Self::NotAllowed => "not-allowed",
            Self::Default => "default",
            Self::Path(_) => "ambiguous-path",
            Self::Bytes(_) => "no-request",
            Self::Unusable => "unusable",
        }
    }
}

impl PolicyIndex {
    /// The position of the policy in the table, from 0.
    #[must_use]
    pub const fn position(self) -> usize {
        self.0 as usize
    }
}

impl AuthorizationTable {
    /// The documents of the policies, in the order of their positions.
    pub fn sources(&self) -> impl Iterator<Item = &PolicySource> {
        self.policies.iter().map(|policy| &policy.source)
    }

    /// The document of a policy.
    #[must_use]
    pub fn source(&self, policy: PolicyIndex) -> Option<&PolicySource> {
        self.policies.get(policy.position()).map(|policy| &policy.source)
    }

    /// Whether the rules of a port depend on requests, so that its connections must be parsed as HTTP.
    #[must_use]
    pub fn reads_requests(&self, port: u16) -> bool {
        self.entries.iter().any(|entry| entry.is_for(port) && entry.reads_requests())
    }

    /// Whether the rules of a port depend on the server name of TLS.
    #[must_use]
    pub fn reads_server_names(&self, port: u16) -> bool {
        let reads = |entry: &Entry| !entry.request.server_names.is_empty();
        self.entries.iter().any(|entry| entry.is_for(port) && reads(entry))
    }

    /// The headers of a port that only policies may set: claims of tokens, and answers of authorizers. A client's
    /// headers with these names do not fulfil any condition.
    pub fn owned(&self, port: u16) -> impl Iterator<Item = (PolicyIndex, &str)> {
        let is_here = move |policy: &PolicyIndex| {
            self.policies.get(policy.position()).is_some_and(|policy| policy.is_for(port))
        };
        let here = self.owned.iter().filter(move |(policy, _)| is_here(policy));
        here.map(|(policy, name)| (*policy, &**name))
    }

    /// How the application reads paths.
    #[must_use]
    pub fn reading(&self) -> PathReading {
        self.reading
    }

    /// Whether everything is permitted and nothing is audited.
    #[must_use]
    pub fn is_open(&self) -> bool {
        let all = self.default == DefaultAuthorization::All;
        self.policies.is_empty() && all && self.is_usable
    }
}

impl CompiledPolicy {
    fn is_for(&self, port: u16) -> bool {
        self.ports.as_ref().is_none_or(|ports| ports.contains(&port))
    }
}

impl Entry {
    /// Whether the entry cannot be evaluated without a request: it has a condition on requests, or it asks an external
    /// authorizer, which decides only on requests.
    fn reads_requests(&self) -> bool {
        self.action == Action::External || self.request.reads_requests()
    }

    fn is_for(&self, port: u16) -> bool {
        self.ports.as_ref().is_none_or(|ports| ports.contains(&port))
    }
}

impl RequestConditions {
    /// Whether any of the conditions is on a request.
    fn reads_requests(&self) -> bool {
        !self.methods.is_empty()
            || !self.hosts.is_empty()
            || !self.wildcards.is_empty()
            || self.has_paths
            || self.grpc_method.is_some()
            || !self.headers.is_empty()
            || self.token.is_some()
    }

    /// Whether there is no condition.
    fn is_empty(&self) -> bool {
        !self.reads_requests() && self.server_names.is_empty()
    }
}
