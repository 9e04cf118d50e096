//! Routes as proxies receive them: only data, in which references are already resolved.
//!
//! The index builds these values from the objects of the Gateway API, with one list for each service and group of
//! clients. `leno-policy` compiles them into tables in which it looks up requests.

use std::sync::Arc;
use std::time::Duration;

use crate::ServiceName;

/// One route, with only the parts that concern one service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The route's kind.
    pub kind: RouteKind,
    /// The route's namespace.
    pub namespace: Arc<str>,
    /// The route's name.
    pub name: Arc<str>,
    /// When the route was created, in seconds of Unix time; 0 if unknown. If two routes contradict each other, the
    /// older route wins.
    pub created: u64,
    /// The ports of the service to which the route is attached; none means all.
    pub ports: Vec<u16>,
    /// For [`RouteKind::Tls`]: the server names that the route matches, in lower case. A name that begins with `*.`
    /// matches all names below.
    pub hostnames: Vec<Arc<str>>,
    /// The route's rules, in the order given.
    pub rules: Vec<RouteRule>,
}

/// The kind of a route, which depends on what it matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RouteKind {
    /// Connections that are relayed as bytes: `TCPRoute`.
    Tcp,
    /// Connections with the client's own TLS: `TLSRoute`.
    Tls,
    /// HTTP requests: `HTTPRoute`.
    Http,
    /// gRPC calls: `GRPCRoute`. It takes precedence over an `HTTPRoute` on the same port
    /// (GEP-1294).
    Grpc,
}

/// A set of requests, and what happens to them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteRule {
    /// The rule's name, if it has one.
    pub name: Option<Arc<str>>,
    /// The rule applies to requests that match any of these. If there are none, it applies to all requests.
    pub matches: Vec<RouteMatch>,
    /// How these requests are changed.
    pub filters: Vec<Filter>,
    /// The backends to which these requests go, by weight.
    pub backends: Vec<RouteBackend>,
    /// The timeouts of these requests.
    pub timeouts: RouteTimeouts,
    /// When these requests are retried; `None` means that the policy decides.
    pub retry: Option<RouteRetry>,
    /// How a client's requests are kept on one endpoint; `None` if they are not.
    pub session: Option<SessionAffinity>,
}

/// Conditions that a request must all meet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteMatch {
    /// The condition on the path.
    pub path: PathMatch,
    /// The method; `None` means all.
    pub method: Option<Arc<str>>,
    /// Conditions on headers.
    pub headers: Vec<ValueMatch>,
    /// Conditions on query parameters.
    pub query: Vec<ValueMatch>,
}

/// A condition on the path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathMatch {
    /// The path is compared byte by byte.
    Exact(Arc<str>),
    /// The path is compared by its elements, from the left.
    Prefix(Arc<str>),
    /// A regular expression that matches the whole path.
    Regex(Arc<str>),
    /// `/<service>/<method>` of gRPC; `None` means all.
    Grpc {
        /// The service with its package.
        service: Option<TextMatch>,
        /// The method.
        method: Option<TextMatch>,
    },
}

/// A condition on a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TextMatch {
    /// The text is compared byte by byte.
    Exact(Arc<str>),
    /// A regular expression that matches the whole text.
    Regex(Arc<str>),
}

/// A condition on a header or a query parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueMatch {
    /// The name. The name of a header may be in upper or lower case.
    pub name: Arc<str>,
    /// The value.
    pub value: TextMatch,
}

/// A change of a request or its response, or an answer in place of the backend's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Filter {
    /// Changes the request's headers.
    RequestHeaders(HeaderChanges),
    /// Changes the response's headers.
    ResponseHeaders(HeaderChanges),
    /// Answers with a redirection.
    Redirect(Redirect),
    /// Changes host and path.
    Rewrite(Rewrite),
    /// Sends a copy to another backend.
    Mirror(Mirror),
    /// Answers preflights, and sets CORS headers on responses.
    Cors(Cors),
}

/// Changes of headers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderChanges {
    /// Headers to set. Each replaces all headers of the same name.
    pub set: Vec<(Arc<str>, Arc<str>)>,
    /// Headers to add. Headers of the same name that are already there remain.
    pub add: Vec<(Arc<str>, Arc<str>)>,
    /// Names of headers to remove.
    pub remove: Vec<Arc<str>>,
}

/// A redirection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Redirect {
    /// The scheme, `http` or `https`; `None` means that of the request.
    pub scheme: Option<Arc<str>>,
    /// The host; `None` means that of the request.
    pub hostname: Option<Arc<str>>,
    /// The path; `None` means that of the request.
    pub path: Option<PathChange>,
    /// The port. `None` means the default port of `scheme` if that is set, else the port that the client dialled.
    pub port: Option<u16>,
    /// The status of the response: 301, 302, 303, 307 or 308.
    pub status: u16,
}

/// Changes host and path before the request is forwarded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rewrite {
    /// The host; `None` means that of the request.
    pub hostname: Option<Arc<str>>,
    /// The path; `None` means that of the request.
    pub path: Option<PathChange>,
}

/// Replaces a path or a part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathChange {
    /// Replaces the whole path.
    Full(Arc<str>),
    /// Replaces the prefix that was matched.
    Prefix(Arc<str>),
}

/// Sends copies of requests. The proxy does not wait for the responses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirror {
    /// The backend that receives the copies.
    pub target: RouteTarget,
    /// The numerator of the fraction of requests that are copied.
    pub numerator: u32,
    /// The denominator of this fraction. It is never 0.
    pub denominator: u32,
}

/// Which requests browsers may send from pages of other origins, and what those pages may read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cors {
    /// The allowed origins; the host may begin with `*`.
    pub origins: Vec<Arc<str>>,
    /// Whether requests may carry cookies and other credentials.
    pub credentials: bool,
    /// The allowed methods.
    pub methods: Vec<Arc<str>>,
    /// The allowed request headers.
    pub headers: Vec<Arc<str>>,
    /// The response headers that pages may read.
    pub exposed: Vec<Arc<str>>,
    /// How many seconds a browser may cache the response to a preflight request.
    pub max_age_s: u32,
}

/// A backend of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteBackend {
    /// The object that receives the requests.
    pub target: RouteTarget,
    /// The backend's share of the requests, relative to the sum of all weights.
    pub weight: u32,
    /// Filters for requests to this backend, applied after the filters of the rule.
    pub filters: Vec<Filter>,
}

/// An object that receives requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteTarget {
    /// A port of a service.
    Service {
        /// The service.
        name: ServiceName,
        /// The port number to which clients connect.
        port: u16,
    },
    /// The reference leads to no usable object, so requests to it fail.
    Invalid(InvalidTarget),
}

/// Why a reference is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidTarget {
    /// The service does not exist.
    NotFound,
    /// The service has no such port.
    NoSuchPort,
    /// The object is in another namespace, which has not granted the reference.
    NotGranted,
    /// The object's kind cannot receive requests.
    Kind,
}

/// How long a request may take; `None` means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RouteTimeouts {
    /// The limit for the whole request.
    pub request: Option<Duration>,
    /// The limit for each attempt with a backend.
    pub backend_request: Option<Duration>,
}

/// When a request of a rule is retried (GEP-1731).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteRetry {
    /// Statuses that count as failures, in addition to failures without a response.
    pub codes: Vec<u16>,
    /// The largest number of retries; `None` means one.
    pub attempts: Option<u32>,
    /// The shortest wait before a retry; `None` means the default backoff.
    pub backoff: Option<Duration>,
}

/// Keeps the requests of one client on one endpoint (GEP-1619).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionAffinity {
    /// The name of the cookie or header.
    pub name: Arc<str>,
    /// Whether the session is in a header of requests and responses instead of a cookie.
    pub is_header: bool,
    /// How long a session may last.
    pub absolute: Option<Duration>,
    /// How long a session may last without a request.
    pub idle: Option<Duration>,
    /// Whether clients keep the cookie when they end.
    pub is_permanent: bool,
}

impl Default for PathMatch {
    /// Every path.
    fn default() -> Self {
        Self::Prefix("/".into())
    }
}

impl RouteKind {
    /// Whether routes of this kind match requests; otherwise they match connections.
    #[must_use]
    pub const fn is_of_requests(self) -> bool {
        matches!(self, Self::Http | Self::Grpc)
    }

    /// The kind as written in `kind` in YAML.
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
    /// The reason, as in the Gateway API's `ResolvedRefs` condition.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotFound | Self::NoSuchPort => "BackendNotFound",
            Self::NotGranted => "RefNotPermitted",
            Self::Kind => "InvalidKind",
        }
    }
}
