//! Routes as proxies are told them: data alone, references resolved.
//!
//! The index makes these values of the Gateway API's objects, one list for a service and those who
//! may call it; `leno-policy` compiles them into what requests are matched against.

use std::sync::Arc;
use std::time::Duration;

use crate::ServiceName;

/// One route, as far as it concerns one service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// What it matches.
    pub kind: RouteKind,
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
    /// When it was created, in seconds of Unix time; 0 where nobody has said. The oldest of two
    /// that contradict each other holds.
    pub created: u64,
    /// The ports of the service that it attaches to; none means all.
    pub ports: Vec<u16>,
    /// Of [`RouteKind::Tls`]: the names of servers, in lower case, that clients ask for; one that
    /// begins with `*.` means all below.
    pub hostnames: Vec<Arc<str>>,
    /// Its rules, in the order given.
    pub rules: Vec<Rule>,
}

/// What a route matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RouteKind {
    /// Connections that are relayed as bytes: `TCPRoute`.
    Tcp,
    /// Those in which the client speaks TLS of its own: `TLSRoute`.
    Tls,
    /// HTTP requests: `HTTPRoute`.
    Http,
    /// gRPC calls: `GRPCRoute`. Where both kinds attach to one port, this one holds (GEP-1294).
    Grpc,
}

/// Which requests, and what becomes of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// Its name, where it has one.
    pub name: Option<Arc<str>>,
    /// It applies to requests that match any of these; none means all.
    pub matches: Vec<Match>,
    /// What is done to them.
    pub filters: Vec<Filter>,
    /// Where they go, by weight.
    pub backends: Vec<Backend>,
    /// How long they may take.
    pub timeouts: Timeouts,
    /// When they are sent again; none means as policy says.
    pub retry: Option<Retry>,
    /// What keeps a client's requests together.
    pub session: Option<Session>,
}

/// Conditions that must all hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// Of the path.
    pub path: PathMatch,
    /// The method; none means every one.
    pub method: Option<Arc<str>>,
    /// Of headers.
    pub headers: Vec<ValueMatch>,
    /// Of query parameters.
    pub query: Vec<ValueMatch>,
}

/// A condition of the path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathMatch {
    /// Byte by byte.
    Exact(Arc<str>),
    /// By elements from the left.
    Prefix(Arc<str>),
    /// By a regular expression that matches the whole path.
    Regex(Arc<str>),
    /// `/<service>/<method>`, of gRPC; none means every one.
    Grpc {
        /// The service with its package.
        service: Option<TextMatch>,
        /// The method.
        method: Option<TextMatch>,
    },
}

/// A condition of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TextMatch {
    /// Byte by byte.
    Exact(Arc<str>),
    /// By a regular expression that matches the whole of it.
    Regex(Arc<str>),
}

/// A condition of a header or a query parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueMatch {
    /// The name; of headers in any case.
    pub name: Arc<str>,
    /// The value.
    pub value: TextMatch,
}

/// What is done to a request, to its response, or in its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Filter {
    /// Changes the request's headers.
    RequestHeaders(HeaderChanges),
    /// Changes the response's headers.
    ResponseHeaders(HeaderChanges),
    /// Answers with another place.
    Redirect(Redirect),
    /// Changes host and path.
    Rewrite(Rewrite),
    /// Sends a copy elsewhere.
    Mirror(Mirror),
    /// Answers and marks requests of other origins.
    Cors(Cors),
}

/// Changes of headers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderChanges {
    /// In place of all of the same name.
    pub set: Vec<(Arc<str>, Arc<str>)>,
    /// To those of the same name.
    pub add: Vec<(Arc<str>, Arc<str>)>,
    /// Left out.
    pub remove: Vec<Arc<str>>,
}

/// A redirection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Redirect {
    /// `http` or `https`; none means the request's.
    pub scheme: Option<Arc<str>>,
    /// The host; none means the request's.
    pub hostname: Option<Arc<str>>,
    /// The path; none means the request's.
    pub path: Option<PathChange>,
    /// The port.
    pub port: Option<u16>,
    /// 301, 302, 303, 307 or 308.
    pub status: u16,
}

/// Another host and path on the way to the backend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rewrite {
    /// The host; none means the request's.
    pub hostname: Option<Arc<str>>,
    /// The path; none means the request's.
    pub path: Option<PathChange>,
}

/// Another path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathChange {
    /// In place of the whole path.
    Full(Arc<str>),
    /// In place of the prefix that was matched.
    Prefix(Arc<str>),
}

/// Copies of requests that nobody waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirror {
    /// Where to.
    pub target: Target,
    /// So many requests,
    pub numerator: u32,
    /// of so many; never 0.
    pub denominator: u32,
}

/// What pages of other origins may do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cors {
    /// Origins that may; the host may begin with `*`.
    pub origins: Vec<Arc<str>>,
    /// With cookies and other credentials.
    pub credentials: bool,
    /// By these methods.
    pub methods: Vec<Arc<str>>,
    /// With these request headers.
    pub headers: Vec<Arc<str>>,
    /// Reading these response headers.
    pub exposed: Vec<Arc<str>>,
    /// For how many seconds a browser may remember that.
    pub max_age_s: u32,
}

/// Where a rule sends requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backend {
    /// What takes them.
    pub target: Target,
    /// Its part of the sum of all weights.
    pub weight: u32,
    /// What is done to requests that go there, after what the rule does to all.
    pub filters: Vec<Filter>,
}

/// What takes requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A port of a service.
    Service {
        /// The service.
        name: ServiceName,
        /// The number that clients dial.
        port: u16,
    },
    /// Nothing: requests to it fail.
    Invalid(InvalidTarget),
}

/// Why a reference leads nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidTarget {
    /// There is no such service.
    NotFound,
    /// The service has no such port.
    NoSuchPort,
    /// It is in another namespace, which has not granted it.
    NotGranted,
    /// It is of a kind that takes no requests.
    Kind,
}

/// How long a request may take; none means without end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timeouts {
    /// In all.
    pub request: Option<Duration>,
    /// Each time that it is sent to a backend.
    pub backend_request: Option<Duration>,
}

/// When a request of a rule is sent again (GEP-1731).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Retry {
    /// Statuses that are taken for failures, beside what fails without a response.
    pub codes: Vec<u16>,
    /// Most tries after the first; none means one.
    pub attempts: Option<u32>,
    /// The least wait before a try; none means as policy has it.
    pub backoff: Option<Duration>,
}

/// What keeps the requests of one client with one endpoint (GEP-1619).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Session {
    /// The name of the cookie or header.
    pub name: Arc<str>,
    /// It is a header of requests and responses, and not a cookie.
    pub is_header: bool,
    /// How long a session lasts in all.
    pub absolute: Option<Duration>,
    /// How long it lasts without a request.
    pub idle: Option<Duration>,
    /// The cookie outlives the client's process.
    pub is_permanent: bool,
}

impl Default for PathMatch {
    /// Every path.
    fn default() -> Self {
        Self::Prefix("/".into())
    }
}

impl RouteKind {
    /// Whether it matches requests, and not connections.
    #[must_use]
    pub const fn is_of_requests(self) -> bool {
        matches!(self, Self::Http | Self::Grpc)
    }

    /// `kind` in YAML.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "TCPRoute",
            Self::Tls => "TLSRoute",
            Self::Http => "HTTPRoute",
            Self::Grpc => "GRPCRoute",
        }
    }
}

impl InvalidTarget {
    /// The reason as the Gateway API's `ResolvedRefs` condition has it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotFound | Self::NoSuchPort => "BackendNotFound",
            Self::NotGranted => "RefNotPermitted",
            Self::Kind => "InvalidKind",
        }
    }
}
