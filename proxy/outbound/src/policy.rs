//! What policy says about the requests to one destination, with the state that this takes.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use leno_balance::{Algorithm, Locality, Rng, Settings, Wanted, hash};
use leno_http::{Cause, Failure, HeaderLine, Limits, Place, RequestView, ResponseView};
use leno_resilience::{
    Budget, Decision, Ending, Facts, Fault, Full, Gate, Gradient, Permit, Retry, Why, draw,
    retry_after,
};
use leno_telemetry::{Counter, Registry};
use leno_types::traffic::{self, HashOn, Traffic};

/// Requests on each near endpoint from which others help, where policy does not say: a few more
/// than an endpoint that keeps up has.
const OVERFLOW: u32 = 16;

/// Requests that may wait where policy bounds those under way and does not say: enough for the
/// jitter of arrivals.
const PENDING: u32 = 1_024;

/// The bound that an adaptive one starts from.
const FIRST_LIMIT: u32 = 100;

/// Statuses by which an endpoint is judged: it could not do what it should have.
const FAILED: std::ops::RangeInclusive<u16> = 500..=599;

/// gRPC statuses that say the same: UNKNOWN, DEADLINE_EXCEEDED, INTERNAL, UNAVAILABLE, DATA_LOSS.
const GRPC_FAILED: [u8; 5] = [2, 4, 13, 14, 15];

/// The policy of one destination, for one worker.
#[derive(Debug)]
pub(crate) struct ClientPolicy {
    traffic: Traffic,
    /// Bounds of the HTTP engine, where policy changes them.
    limits: Option<Limits>,
    budget: RefCell<Budget>,
    gate: Option<Rc<Gate>>,
    gradient: Option<RefCell<Gradient>>,
    rng: RefCell<Rng>,
    /// Of the workload whose requests these are.
    source: u64,
}

/// The times and tries of one request.
#[derive(Debug)]
pub(crate) struct Plan {
    /// None where policy retries nothing.
    retry: Option<Retry>,
    is_idempotent: bool,
    request_by: Option<Instant>,
    response_by: Option<Instant>,
    /// What was decided on the last try's response.
    again: Cell<Option<Duration>>,
}

impl ClientPolicy {
    /// What holds by `policies`; `source` names the workload whose requests these are.
    pub(crate) fn new(traffic: Traffic, source: &str, limits: &Limits) -> Self {
        let idle = traffic.timeouts.idle;
        let budget = traffic.retries.as_ref().map(|retries| retries.budget).unwrap_or_default();
        let bounds = traffic.limits.unwrap_or_default();
        let gradient = bounds.adaptive.then(|| {
            RefCell::new(Gradient::new(bounds.requests.unwrap_or(FIRST_LIMIT).min(FIRST_LIMIT)))
        });
        let limit = match &gradient {
            Some(gradient) => Some(gradient.borrow().limit()),
            None => bounds.requests,
        };
        Self {
            limits: idle.map(|stall| Limits { stall, ..limits.clone() }),
            budget: RefCell::new(Budget::new(budget)),
            gate: limit.map(|limit| Gate::new(limit, bounds.pending.unwrap_or(PENDING))),
            gradient,
            rng: RefCell::new(Rng::random()),
            source: hash(source.as_bytes()),
            traffic,
        }
    }

    /// How long an opaque connection may last.
    pub(crate) fn stream_timeout(&self) -> Option<Duration> {
        self.traffic.timeouts.stream
    }

    /// The bounds of an exchange.
    pub(crate) fn limits<'a>(&'a self, otherwise: &'a Limits) -> &'a Limits {
        self.limits.as_ref().unwrap_or(otherwise)
    }

    /// How the balancer is to choose.
    pub(crate) fn settings(&self) -> Settings {
        let balancing = self.traffic.balancing.as_ref();
        let per_endpoint = self.traffic.limits.and_then(|limits| limits.requests_per_endpoint);
        let overflow = balancing.and_then(|b| b.overflow).unwrap_or(OVERFLOW);
        Settings {
            algorithm: balancing.map_or(Algorithm::PeakEwma, |b| algorithm(&b.algorithm)),
            slow_start: balancing.and_then(|b| b.slow_start).unwrap_or_default(),
            locality: Locality::SameZone { overflow },
            ejection: self.traffic.ejection.unwrap_or_default(),
            endpoint_requests: per_endpoint.unwrap_or(u32::MAX),
        }
    }

    /// What a request asks of the balancer.
    pub(crate) fn wanted(&self, request: RequestView<'_>) -> Wanted {
        let Some(balancing) = &self.traffic.balancing else { return Wanted::default() };
        let on = match &balancing.algorithm {
            traffic::Algorithm::RingHash(on) | traffic::Algorithm::Maglev(on) => Some(on),
            _ => None,
        };
        let hash = on.and_then(|on| match on {
            HashOn::Header(name) => request.header(name).map(hash),
            HashOn::Cookie(name) => cookie(request, name).map(hash),
            HashOn::Source => Some(self.source),
        });
        let session = balancing.session_cookie.as_ref().and_then(|name| {
            let value = std::str::from_utf8(cookie(request, name)?).ok()?;
            u64::from_str_radix(value, 16).ok()
        });
        Wanted { hash, session }
    }

    /// The line that keeps a session on the endpoint with this key, unless it is there already.
    pub(crate) fn session_line(&self, wanted: Wanted, key: u64) -> Option<HeaderLine> {
        let name = self.traffic.balancing.as_ref()?.session_cookie.as_ref()?;
        if wanted.session == Some(key) {
            return None;
        }
        let value = format!("{name}={key:016x}; Path=/; HttpOnly; SameSite=Lax");
        HeaderLine::new("Set-Cookie", value.as_bytes()).ok()
    }

    /// What is done to a request on purpose.
    pub(crate) fn fault(&self) -> Fault {
        match &self.traffic.faults {
            Some(faults) => draw(faults, &mut self.rng.borrow_mut()),
            None => Fault::default(),
        }
    }

    /// A place among the requests under way; none is needed where policy sets no bound.
    pub(crate) async fn enter(&self) -> Result<Option<Permit>, Full> {
        match &self.gate {
            Some(gate) => gate.enter().await.map(Some),
            None => Ok(None),
        }
    }

    /// The times and tries of a request that comes now.
    pub(crate) fn plan(&self, is_idempotent: bool) -> Plan {
        let timeouts = self.traffic.timeouts;
        let within = |timeout: Duration| Instant::now().checked_add(timeout);
        let retries = self.traffic.retries.as_ref();
        Plan {
            retry: retries.map(|_| Retry::new(&mut self.budget.borrow_mut(), Instant::now())),
            is_idempotent,
            request_by: timeouts.request.and_then(within),
            response_by: timeouts.response.and_then(within),
            again: Cell::new(None),
        }
    }

    /// A request was answered, or not, after this time.
    pub(crate) fn answered(&self, latency: Duration, is_overload: bool) {
        let (Some(gradient), Some(gate)) = (&self.gradient, &self.gate) else { return };
        let mut gradient = gradient.borrow_mut();
        if is_overload {
            gradient.dropped();
        } else {
            gradient.answered(latency, gate.under_way(), Instant::now());
        }
        let pending = self.traffic.limits.and_then(|limits| limits.pending);
        gate.set(gradient.limit(), pending.unwrap_or(PENDING));
    }

    /// Whether a response counts against its endpoint.
    pub(crate) fn is_bad(status: u16, grpc: Option<u8>) -> bool {
        FAILED.contains(&status) || grpc.is_some_and(|status| GRPC_FAILED.contains(&status))
    }
}

impl Plan {
    /// When the exchange must be over.
    pub(crate) fn request_by(&self) -> Option<Instant> {
        self.request_by
    }

    /// When the response of a try that begins now must have begun.
    pub(crate) fn response_by(&self, policy: &ClientPolicy) -> Option<Instant> {
        let per_try = policy.traffic.retries.as_ref().and_then(|retries| retries.per_try_timeout);
        let per_try = per_try.and_then(|timeout| Instant::now().checked_add(timeout));
        [self.response_by, per_try].into_iter().flatten().min()
    }

    /// Whether policy decides on retries.
    pub(crate) fn decides(&self) -> bool {
        self.retry.is_some()
    }

    /// Whether the method promises that sending the request twice is like sending it once.
    pub(crate) fn is_idempotent(&self) -> bool {
        self.is_idempotent
    }

    /// How many retries policy has decided on.
    pub(crate) fn made(&self) -> u32 {
        self.retry.as_ref().map_or(0, Retry::made)
    }

    /// What was decided on the response that was judged last.
    pub(crate) fn again(&self) -> Option<Duration> {
        self.again.take()
    }

    /// Decides on a response whose head is here; whether the request is to be sent again.
    pub(crate) fn judge(
        &mut self,
        (policy, registry): (&ClientPolicy, &Registry),
        response: ResponseView<'_>,
        is_replayable: bool,
    ) -> bool {
        if self.retry.is_none() {
            return false;
        }
        let grpc = response.header("grpc-status").and_then(number);
        let ending = match (response.status(), grpc) {
            (200, Some(status)) => Ending::Grpc(status),
            (status, _) => Ending::Status(status),
        };
        let asked = response.header("retry-after");
        let retry_after = asked.and_then(|value| retry_after(value, SystemTime::now()));
        let facts = Facts { is_replayable, retry_after, ..Facts::default() };
        let again = self.decide((policy, registry), ending, facts);
        self.again.set(again);
        again.is_some()
    }

    /// Decides after a failure without a response.
    pub(crate) fn after(
        &mut self,
        (policy, registry): (&ClientPolicy, &Registry),
        failure: &Failure,
    ) -> Option<Duration> {
        let ending = match &failure.cause {
            Cause::Late => Ending::TimedOut,
            _ if failure.unprocessed => Ending::RefusedStream,
            Cause::Reset(_) | Cause::Closed | Cause::Broken(_) | Cause::Head(_) => Ending::Reset,
            _ => return None,
        };
        let silent = failure.place == Place::Server;
        let facts = Facts {
            is_unprocessed: failure.unprocessed,
            is_replayable: failure.retryable,
            ..Facts::default()
        };
        silent.then(|| self.decide((policy, registry), ending, facts))?
    }

    /// Decides after no connection could be made.
    pub(crate) fn after_connecting(
        &mut self,
        (policy, registry): (&ClientPolicy, &Registry),
    ) -> Option<Duration> {
        let facts = Facts { is_unprocessed: true, is_replayable: true, ..Facts::default() };
        self.decide((policy, registry), Ending::ConnectFailed, facts)
    }

    fn decide(
        &mut self,
        (policy, registry): (&ClientPolicy, &Registry),
        ending: Ending,
        facts: Facts,
    ) -> Option<Duration> {
        let retries = policy.traffic.retries.as_ref()?;
        let now = Instant::now();
        let until = [self.request_by, self.response_by].into_iter().flatten().min();
        let facts = Facts {
            is_idempotent: self.is_idempotent,
            time_left: until.map(|until| until.saturating_duration_since(now)),
            ..facts
        };
        let resources = (&mut *policy.budget.borrow_mut(), &mut *policy.rng.borrow_mut());
        match self.retry.as_mut()?.decide(retries, (ending, facts), resources, now) {
            Decision::Again(wait) => Some(wait),
            Decision::Final(why) => {
                if let Some(counter) = counter(why) {
                    registry.count(counter);
                }
                None
            }
        }
    }
}

/// What a retry that is not made is counted as.
const fn counter(why: Why) -> Option<Counter> {
    match why {
        Why::NoFailure => None,
        Why::Attempts => Some(Counter::RetriesOverAttempts),
        Why::Method => Some(Counter::RetriesOfMethod),
        Why::Body => Some(Counter::RetriesWithoutBody),
        Why::Time => Some(Counter::RetriesWithoutTime),
        Why::Budget => Some(Counter::RetriesOverBudget),
    }
}

fn algorithm(of: &traffic::Algorithm) -> Algorithm {
    match of {
        traffic::Algorithm::PeakEwma => Algorithm::PeakEwma,
        traffic::Algorithm::LeastRequest => Algorithm::LeastRequest,
        traffic::Algorithm::RoundRobin => Algorithm::RoundRobin,
        traffic::Algorithm::Random => Algorithm::Random,
        traffic::Algorithm::RingHash(_) => Algorithm::RingHash,
        traffic::Algorithm::Maglev(_) => Algorithm::Maglev,
    }
}

/// The value of a cookie (RFC 6265 section 5.4), which HTTP/2 may have in several headers.
fn cookie<'a>(request: RequestView<'a>, name: &Arc<str>) -> Option<&'a [u8]> {
    let lines = request.headers().filter(|(header, _)| header.eq_ignore_ascii_case("cookie"));
    lines.flat_map(|(_, value)| value.split(|byte| *byte == b';')).find_map(|pair| {
        let (key, value) = pair.split_at_checked(pair.iter().position(|byte| *byte == b'=')?)?;
        (key.trim_ascii() == name.as_bytes()).then(|| value[1..].trim_ascii())
    })
}

fn number(value: &[u8]) -> Option<u8> {
    std::str::from_utf8(value).ok()?.parse().ok()
}
