//! Traffic policy and rate limits as proxies are told them: data alone, references resolved.
//!
//! The index makes these values of `TrafficPolicy` and `RateLimitPolicy` documents, `leno-policy` says
//! which of them hold for a request, and the planes do what they say. A part that a policy does not
//! speak of is none, so that a policy of the whole service still holds for it.

use std::sync::Arc;
use std::time::Duration;

use crate::routes::RouteKind;

/// How clients treat a service, or what one route sends to it.
///
/// Retries, timeouts, hedging and faults are of a request: those of the service that was dialled hold, and
/// of the route that it follows. Limits, ejection and balancing are of endpoints: those of the service whose
/// endpoints they are hold, whatever led there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Where it comes from.
    pub source: Source,
    /// What of the service it is for.
    pub scope: Scope,
    /// When a request is sent again.
    pub retries: Option<Retries>,
    /// How long things may take.
    pub timeouts: Timeouts,
    /// When a request is sent a second time before the first has failed.
    pub hedging: Option<Hedging>,
    /// How much may be under way at once.
    pub limits: Option<Limits>,
    /// When an endpoint that fails is left out.
    pub ejection: Option<Ejection>,
    /// How endpoints are chosen.
    pub balancing: Option<Balancing>,
    /// What is made to fail on purpose.
    pub faults: Option<Faults>,
}

/// The document that a policy was written in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Source {
    /// When it was created, in seconds of Unix time; 0 where nobody has said. The oldest of two for
    /// the same scope holds.
    pub created: u64,
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
}

/// What of a service a policy is for. The narrower one holds, part by part.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// All of it.
    #[default]
    Service,
    /// One port.
    Port(u16),
    /// What a route sends.
    Route {
        /// Its kind.
        kind: RouteKind,
        /// Its namespace.
        namespace: Arc<str>,
        /// Its name.
        name: Arc<str>,
        /// The rule of this name; none means all of them.
        rule: Option<Arc<str>>,
    },
}

/// When a request is sent again, to another endpoint if there is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retries {
    /// Most tries after the first.
    pub attempts: u32,
    /// Responses that are taken for failures.
    pub statuses: Vec<StatusRange>,
    /// gRPC statuses that are.
    pub grpc_statuses: Vec<u8>,
    /// Failures without a response.
    pub on: Conditions,
    /// Whether requests are sent again whose method does not promise that this changes nothing
    /// (RFC 9110 section 9.2.2), and that may have reached the application.
    pub non_idempotent: bool,
    /// How long one try may take until its response begins.
    pub per_try_timeout: Option<Duration>,
    /// How long to wait between tries.
    pub backoff: Backoff,
    /// How many requests may be retries.
    pub budget: Budget,
    /// The longest `Retry-After` that is waited for; with a longer one the response is passed on.
    pub max_retry_after: Duration,
}

/// Statuses from one to another, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusRange {
    /// The lowest.
    pub from: u16,
    /// The highest.
    pub to: u16,
}

/// Failures without a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Conditions {
    /// No connection could be made.
    pub connect_failure: bool,
    /// The connection or stream broke before a response.
    pub reset: bool,
    /// The server refused the stream, unprocessed.
    pub refused_stream: bool,
    /// A try took too long.
    pub timeout: bool,
}

/// The wait before a retry: doubled each time, up to a bound, less a random part of its half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// Before the first retry.
    pub base: Duration,
    /// The longest.
    pub max: Duration,
}

/// How many retries a worker may make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Retries for each 100 requests.
    pub percent: u32,
    /// Retries a second that are always allowed.
    pub min_per_second: u32,
}

/// How long things may take. None means that policy sets no bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timeouts {
    /// A request with all its tries, until the response is over.
    pub request: Option<Duration>,
    /// Until the response begins, over all tries.
    pub response: Option<Duration>,
    /// Without a byte in either direction.
    pub idle: Option<Duration>,
    /// An opaque connection, or one that was upgraded, from its first byte or the upgrade to
    /// its last.
    pub stream: Option<Duration>,
}

/// A second copy of a request, while the first is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hedging {
    /// How long to wait for a response before each further copy; the least wait where there is a
    /// percentile.
    pub delay: Duration,
    /// The percentile of the times until responses began that is waited for, in tenths of a percent.
    pub percentile: Option<u16>,
    /// Most copies after the first.
    pub copies: u32,
    /// Whether requests are copied whose method does not promise that this changes nothing.
    pub non_idempotent: bool,
}

/// How much a worker may have under way at once. None means that policy sets no bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Connections to all endpoints.
    pub connections: Option<u32>,
    /// Requests that have an endpoint.
    pub requests: Option<u32>,
    /// Requests that wait for a place among them.
    pub pending: Option<u32>,
    /// Requests on one endpoint.
    pub requests_per_endpoint: Option<u32>,
    /// Whether the bound on requests follows what the endpoints stand.
    pub adaptive: bool,
}

/// When an endpoint that fails is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ejection {
    /// Failures in a row that eject it, one or more; none never does.
    pub consecutive_failures: Option<u32>,
    /// Whether one that succeeds less often than the others is.
    pub success_rate: Option<SuccessRate>,
    /// How long the first ejection lasts; doubled by each further one.
    pub base: Duration,
    /// The longest.
    pub max: Duration,
    /// Most endpoints left out at once, in percent; one may always be, the last one never.
    pub max_percent: u8,
    /// When fewer than so many percent are left, all are used again (panic): what fails then is
    /// more likely the client, the network or what the service depends on.
    pub panic_percent: u8,
}

/// Comparing endpoints by how often they succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SuccessRate {
    /// How often they are compared, over what was seen since.
    pub interval: Duration,
    /// One with fewer requests is not judged.
    pub minimum_requests: u32,
    /// How far below the mean of the others one must lie, in hundredths of their standard deviation.
    pub deviations_percent: u32,
}

/// How endpoints are chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Balancing {
    /// The way; none where a policy leaves it to the service.
    pub algorithm: Option<Algorithm>,
    /// The time in which a new endpoint grows to its share.
    pub slow_start: Option<Duration>,
    /// The cookie that keeps a session on its endpoint.
    pub session_cookie: Option<Arc<str>>,
    /// Requests on each near endpoint, on average, from which others help.
    pub overflow: Option<u32>,
}

impl Balancing {
    /// The way, where none is named as well.
    #[must_use]
    pub fn algorithm(&self) -> &Algorithm {
        self.algorithm.as_ref().unwrap_or(&Algorithm::PeakEwma)
    }
}

/// A way to choose an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// Latency times load, of two random ones.
    #[default]
    PeakEwma,
    /// Load, of two random ones.
    LeastRequest,
    /// In turns.
    RoundRobin,
    /// Random.
    Random,
    /// By a hash on a ring.
    RingHash(HashOn),
    /// By a hash in a Maglev table.
    Maglev(HashOn),
}

/// What requests are kept together by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HashOn {
    /// The value of a header, named in lower case.
    Header(Arc<str>),
    /// The value of a cookie.
    Cookie(Arc<str>),
    /// The client's address.
    Source,
}

/// What is made to fail on purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Requests that are held up.
    pub delay: Option<Delay>,
    /// Requests that are answered instead of sent.
    pub abort: Option<Abort>,
}

/// A share of requests, in millionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Share(pub u32);

/// A delay before a request is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delay {
    /// How long.
    pub by: Duration,
    /// Of how many requests.
    pub share: Share,
}

/// An answer in place of the endpoint's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abort {
    /// Its status; a gRPC call gets what stands for it.
    pub status: u16,
    /// Of how many requests.
    pub share: Share,
}

/// How much a workload takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// Where it comes from.
    pub source: Source,
    /// The port of the workload; none means all.
    pub port: Option<u16>,
    /// What counts together.
    pub key: LimitKey,
    /// Requests that are allowed in each period.
    pub requests: u32,
    /// The period.
    pub per: Duration,
    /// Requests that may come at once.
    pub burst: u32,
    /// Whether all instances of the workload share it.
    pub is_global: bool,
}

impl RateLimit {
    /// What all proxies call a limit that they share: everything that one policy is attached to has one
    /// for each of its limits, whatever the ports.
    #[must_use]
    pub fn shared_name(&self) -> String {
        let Source { namespace, name, .. } = &self.source;
        let (requests, per_ms, burst) = (self.requests, self.per.as_millis(), self.burst);
        format!("{namespace}/{name}/{requests}/{per_ms}/{burst}")
    }
}

/// What requests of a rate limit are counted together by.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum LimitKey {
    /// All of them.
    #[default]
    Workload,
    /// Those of one client identity; of one address where it has none.
    Client,
    /// Those with one value of a header, named in lower case.
    Header(Arc<str>),
}

impl Share {
    /// All.
    pub const ALL: Self = Self(1_000_000);
}

impl StatusRange {
    /// One status.
    #[must_use]
    pub const fn one(status: u16) -> Self {
        Self { from: status, to: status }
    }

    /// Whether it is among them.
    #[must_use]
    pub const fn contains(self, status: u16) -> bool {
        self.from <= status && status <= self.to
    }
}

impl Default for Backoff {
    /// 25 ms to 250 ms, as Gateway API's retries and the peers have it.
    fn default() -> Self {
        Self { base: Duration::from_millis(25), max: Duration::from_millis(250) }
    }
}

impl Default for Budget {
    /// A fifth of the requests and ten a second, as GEP-3388 has it.
    fn default() -> Self {
        Self { percent: 20, min_per_second: 10 }
    }
}

impl Default for Ejection {
    /// Never, with the times and shares that hold once it is asked for.
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
