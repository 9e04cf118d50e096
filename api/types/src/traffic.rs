//! Traffic policy and rate limits as proxies receive them: data only, references resolved.
//!
//! The index builds these values from `TrafficPolicy` and `RateLimitPolicy` documents,
//! `leno-policy` decides which of them apply to a request, and the planes enforce them. A part that
//! a policy does not set is `None`, so that a policy with a wider scope can set it.

use std::sync::Arc;
use std::time::Duration;

use crate::routes::RouteKind;

/// How clients treat a service, or the requests of one route to it.
///
/// Retries, timeouts, hedging and faults concern requests, so the policies of the dialled service and of the route that
/// the request follows apply. Limits, ejection and balancing concern endpoints, so the policy of the service to which
/// the endpoints belong applies, whatever route leads to them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// The document of the policy.
    pub source: PolicySource,
    /// The part of the service to which the policy applies.
    pub scope: PolicyScope,
    /// When a request is retried.
    pub retries: Option<Retries>,
    /// The time limits of requests.
    pub timeouts: TrafficTimeouts,
    /// When a copy of a request is sent before the first has failed.
    pub hedging: Option<Hedging>,
    /// Limits on concurrent connections and requests.
    pub limits: Option<WorkerLimits>,
    /// When a failing endpoint is ejected.
    pub ejection: Option<Ejection>,
    /// How endpoints are chosen.
    pub balancing: Option<Balancing>,
    /// Failures injected for tests.
    pub faults: Option<Faults>,
}

/// The document of a policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PolicySource {
    /// When the document was created, in seconds of Unix time; 0 if unknown. Of two policies with the same scope, the
    /// older one wins.
    pub created: u64,
    /// The document's namespace.
    pub namespace: Arc<str>,
    /// The document's name.
    pub name: Arc<str>,
}

/// The part of a service to which a policy applies. For each part of a policy, the narrowest scope wins.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PolicyScope {
    /// The whole service.
    #[default]
    Service,
    /// One port.
    Port(u16),
    /// The requests of one route.
    Route {
        /// The kind of the route.
        kind: RouteKind,
        /// The namespace of the route.
        namespace: Arc<str>,
        /// The name of the route.
        name: Arc<str>,
        /// The rule with this name; `None` means all rules.
        rule: Option<Arc<str>>,
    },
}

/// When a request is retried, on another endpoint if there is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retries {
    /// How many retries there may be.
    pub attempts: u32,
    /// Response statuses that count as failures.
    pub statuses: Vec<StatusRange>,
    /// gRPC statuses that count as failures.
    pub grpc_statuses: Vec<u8>,
    /// Failures without a response that cause a retry.
    pub on: RetryConditions,
    /// Whether to retry requests with non-idempotent methods (RFC 9110 section 9.2.2), too, even if
    /// the application may have received them.
    pub non_idempotent: bool,
    /// How long one attempt may take until its response begins.
    pub per_try_timeout: Option<Duration>,
    /// How long to wait between attempts.
    pub backoff: RetryBackoff,
    /// How many requests may be retries.
    pub budget: RetryBudget,
    /// The longest `Retry-After` for which to wait. A response with a longer one is passed to the client.
    pub max_retry_after: Duration,
}

/// A range of statuses, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusRange {
    /// The lowest.
    pub from: u16,
    /// The highest.
    pub to: u16,
}

/// Which failures without a response cause a retry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetryConditions {
    /// No connection could be made.
    pub connect_failure: bool,
    /// The connection or stream broke before a response.
    pub reset: bool,
    /// The server refused the stream and did not process it.
    pub refused_stream: bool,
    /// An attempt took too long.
    pub timeout: bool,
}

/// The wait before a retry. It doubles with each retry, up to a limit, and is shortened by a random part of up to half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryBackoff {
    /// The wait before the first retry.
    pub base: Duration,
    /// The longest wait.
    pub max: Duration,
}

/// How many retries a worker may make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryBudget {
    /// Retries for each 100 requests.
    pub percent: u32,
    /// Retries per second that are always allowed.
    pub min_per_second: u32,
}

/// Timeouts. `None` means that the policy sets no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrafficTimeouts {
    /// For a request with all its attempts, until the end of the response.
    pub request: Option<Duration>,
    /// Until the response begins, over all attempts.
    pub response: Option<Duration>,
    /// For a period without any byte in either direction.
    pub idle: Option<Duration>,
    /// For an opaque or upgraded connection, from its first byte or the upgrade until its last byte.
    pub stream: Option<Duration>,
}

/// Sends copies of a request while the first is still running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hedging {
    /// How long to wait for a response before each further copy; with a percentile, the shortest
    /// wait.
    pub delay: Duration,
    /// If set, the wait is this percentile (in tenths of a percent) of the recent times until a response began.
    pub percentile: Option<u16>,
    /// How many copies there may be, in addition to the first request.
    pub copies: u32,
    /// Whether to copy requests with non-idempotent methods, too.
    pub non_idempotent: bool,
}

/// Limits per worker. `None` means that the policy sets no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerLimits {
    /// Connections to all endpoints.
    pub connections: Option<u32>,
    /// Requests to which an endpoint is assigned.
    pub requests: Option<u32>,
    /// Requests that wait for an endpoint.
    pub pending: Option<u32>,
    /// Requests on one endpoint.
    pub requests_per_endpoint: Option<u32>,
    /// Whether the limit on requests adapts to what the endpoints can serve.
    pub adaptive: bool,
}

/// When a failing endpoint is ejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ejection {
    /// The number of consecutive failures that ejects an endpoint, at least 1; `None` disables
    /// this.
    pub consecutive_failures: Option<u32>,
    /// Ejects an endpoint that succeeds less often than the others; `None` disables this.
    pub success_rate: Option<SuccessRate>,
    /// How long the first ejection lasts. Each further ejection lasts twice as long as the one before.
    pub base: Duration,
    /// The longest ejection.
    pub max: Duration,
    /// The largest share of ejected endpoints, in percent. The first endpoint may always be ejected, and the last
    /// endpoint never.
    pub max_percent: u8,
    /// If fewer than this percentage of endpoints is left, all are used again (panic), because the cause is then more
    /// likely the client, the network or a dependency of the service.
    pub panic_percent: u8,
}

/// Compares the success rates of endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SuccessRate {
    /// How often the endpoints are compared, by their requests since the last comparison.
    pub interval: Duration,
    /// Endpoints with fewer requests are not compared.
    pub minimum_requests: u32,
    /// How far below the mean of the others an endpoint must be, in hundredths of the others' standard deviation.
    pub deviations_percent: u32,
}

/// How endpoints are chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Balancing {
    /// The algorithm; `None` leaves it to a policy with a wider scope.
    pub algorithm: Option<Algorithm>,
    /// The time over which a new endpoint's share grows to its full size.
    pub slow_start: Option<Duration>,
    /// The cookie that keeps a session on its endpoint.
    pub session_cookie: Option<Arc<str>>,
    /// How many requests each near endpoint must have, on average, before other endpoints are used.
    pub overflow: Option<u32>,
}

impl Balancing {
    /// The algorithm, or the default.
    #[must_use]
    pub fn algorithm(&self) -> &Algorithm {
        self.algorithm.as_ref().unwrap_or(&Algorithm::PeakEwma)
    }
}

/// An algorithm that chooses an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// Of two random endpoints, the one with the lower product of latency and load.
    #[default]
    PeakEwma,
    /// Of two random endpoints, the one with the lower load.
    LeastRequest,
    /// One endpoint after the other.
    RoundRobin,
    /// A random endpoint.
    Random,
    /// By a consistent hash on a ring of endpoints.
    RingHash(HashOn),
    /// By a hash in a Maglev table.
    Maglev(HashOn),
}

/// What is hashed: requests with equal values go to the same endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HashOn {
    /// The value of a header; its name is in lower case.
    Header(Arc<str>),
    /// The value of a cookie.
    Cookie(Arc<str>),
    /// The name of the workload that sends the request.
    Source,
}

/// Failures injected for tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Requests that are delayed.
    pub delay: Option<Delay>,
    /// Requests that the proxy answers instead of forwarding them.
    pub abort: Option<Abort>,
}

/// A share of requests, in millionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestShare(pub u32);

/// A delay before a request is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delay {
    /// How long the request is delayed.
    pub by: Duration,
    /// The share of requests.
    pub share: RequestShare,
}

/// A response of the proxy, in place of the endpoint's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abort {
    /// The status of the response. A gRPC call receives the corresponding gRPC status.
    pub status: u16,
    /// The share of requests.
    pub share: RequestShare,
}

/// A rate limit of a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// The document that it comes from.
    pub source: PolicySource,
    /// The port of the workload; `None` means all.
    pub port: Option<u16>,
    /// How requests are grouped for counting.
    pub key: LimitKey,
    /// Requests that are allowed in each period.
    pub requests: u32,
    /// The period.
    pub per: Duration,
    /// How many requests may come at once.
    pub burst: u32,
    /// Whether all instances of the workload share the limit.
    pub is_global: bool,
}

impl RateLimit {
    /// The name of a limit that several proxies share. Each limit of a policy has one name, which is the same for all
    /// targets and ports of the policy.
    #[must_use]
    pub fn shared_name(&self) -> String {
        let PolicySource { namespace, name, .. } = &self.source;
        let (requests, per_ms, burst) = (self.requests, self.per.as_millis(), self.burst);
        format!("{namespace}/{name}/{requests}/{per_ms}/{burst}")
    }
}

/// How requests are grouped for counting.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum LimitKey {
    /// All requests together.
    #[default]
    Workload,
    /// By the client's identity, or by its address if it has none.
    Client,
    /// By the value of a header; its name is in lower case.
    Header(Arc<str>),
}

impl RequestShare {
    /// All requests.
    pub const ALL: Self = Self(1_000_000);
}

impl StatusRange {
    /// A single status.
    #[must_use]
    pub const fn one(status: u16) -> Self {
        Self { from: status, to: status }
    }

    /// Whether the range includes a status.
    #[must_use]
    pub const fn contains(self, status: u16) -> bool {
        self.from <= status && status <= self.to
    }
}

impl Default for RetryBackoff {
    /// 25 ms to 250 ms, as in the Gateway API's retries and in other meshes.
    fn default() -> Self {
        Self { base: Duration::from_millis(25), max: Duration::from_millis(250) }
    }
}

impl Default for RetryBudget {
    /// 20 percent of the requests, and at least ten a second, as in GEP-3388.
    fn default() -> Self {
        Self { percent: 20, min_per_second: 10 }
    }
}

impl Default for Ejection {
    /// No ejection. The times and shares apply once a policy enables it.
    fn default() -> Self {
        Self {
            consecutive_failures: None,
            success_rate: None,
            base: Duration::from_secs(1),
            max: Duration::from_secs(60),
            max_percent: 50,
            panic_percent: 30,
        }
    }
}

impl Default for SuccessRate {
    fn default() -> Self {
        Self { interval: Duration::from_secs(10), minimum_requests: 50, deviations_percent: 190 }
    }
}
