//! Retries, timeouts, hedging and faults of requests.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant, SystemTime};

use leno_balance::Rng;
use leno_http::{Cause, Failure, Limits, Party, ResponseView};
use leno_resilience::{
    Budget, Decision, Ending, Facts, Fault, Hedge, Latencies, Retry, Why, draw, is_failure,
    retry_after,
};
use leno_telemetry::{Counter, Registry};
use leno_types::traffic::{Faults, Hedging, Retries, Traffic, TrafficTimeouts};

use super::EndpointPolicy;

/// The status that the server's proxy sends if the application's response is invalid or missing.
const BAD_GATEWAY: u16 = 502;

/// The gRPC status UNAVAILABLE, with which the server's proxy answers a gRPC request in the same case as
/// [`BAD_GATEWAY`].
const GRPC_UNAVAILABLE: u8 = 14;

/// One worker's policy of the requests to one port of a service, or of the requests that follow one route.
#[derive(Debug)]
pub(crate) struct RequestPolicy {
    retries: Option<Retries>,
    timeouts: TrafficTimeouts,
    hedging: Option<Hedging>,
    /// The latencies of responses, if hedging needs a percentile of them.
    latencies: Option<RefCell<Latencies>>,
    faults: Option<Faults>,
    /// The limits of the HTTP engine, if policy changes them.
    limits: Option<Limits>,
    /// The budget from which retries and copies of requests are paid, and to which requests add.
    budget: RefCell<Budget>,
    rng: RefCell<Rng>,
}

/// The deadlines and attempts of one request.
#[derive(Debug)]
pub(crate) struct Plan {
    /// The retries; `None` if policy has none.
    retry: Option<Retry>,
    is_idempotent: bool,
    /// When the request must be complete, including its response.
    request_by: Option<Instant>,
    /// When the response must have begun.
    response_by: Option<Instant>,
    /// If the response of the last attempt is to be retried, the wait before the retry.
    again: Cell<Option<Duration>>,
}

impl RequestPolicy {
    /// The policy that `traffic` sets. It keeps the tokens that `before` has saved in its budget, so that a change of
    /// policy does not grant additional retries.
    pub(crate) fn new(traffic: &Traffic, before: Option<&Self>, limits: &Limits) -> Self {
        let budget = traffic.retries.as_ref().map(|retries| retries.budget).unwrap_or_default();
        let budget = match before.filter(|before| before.pays()) {
            Some(before) => before.budget.borrow().with_policy(budget),
            None => Budget::new(budget),
        };
        let known = before.and_then(|before| before.latencies.clone());
        let by_percentile = traffic.hedging.is_some_and(|hedging| hedging.percentile.is_some());
        Self {
            retries: traffic.retries.clone(),
            timeouts: traffic.timeouts,
            hedging: traffic.hedging,
            latencies: by_percentile.then(|| known.unwrap_or_default()),
            faults: traffic.faults,
            limits: changed(&traffic.timeouts, limits),
            budget: RefCell::new(budget),
            rng: RefCell::new(Rng::random()),
        }
    }

    /// Whether the policy was made from the same settings.
    pub(crate) fn is_of(&self, traffic: &Traffic) -> bool {
        self.retries == traffic.retries
            && self.timeouts == traffic.timeouts
            && self.hedging == traffic.hedging
            && self.faults == traffic.faults
    }

    /// How long an opaque connection, or an upgraded one, may last.
    pub(crate) fn stream_timeout(&self) -> Option<Duration> {
        self.timeouts.stream
    }

    /// How long an opaque connection may be idle.
    pub(crate) fn idle_timeout(&self) -> Option<Duration> {
        self.timeouts.idle
    }

    /// The limits for relaying a request and its response: those of policy if it has any, otherwise `otherwise`.
    pub(crate) fn limits<'a>(&'a self, otherwise: &'a Limits) -> &'a Limits {
        self.limits.as_ref().unwrap_or(otherwise)
    }

    /// Draws the fault that is injected into a request.
    pub(crate) fn fault(&self) -> Fault {
        match &self.faults {
            Some(faults) => draw(faults, &mut self.rng.borrow_mut()),
            None => Fault::default(),
        }
    }

    /// The copies that may be sent of a request that begins now. `None` if the request must not be copied, or if too
    /// few latencies are known to decide what is late.
    pub(crate) fn hedge(&self, is_idempotent: bool) -> Option<Hedge> {
        let hedging = self.hedging.filter(|hedging| is_idempotent || hedging.non_idempotent)?;
        let known = self.latencies.as_ref().zip(hedging.percentile);
        let late = known.map(|(latencies, percentile)| latencies.borrow().percentile(percentile));
        let delay = late.unwrap_or(Some(hedging.delay))?.max(hedging.delay);
        Some(Hedge::new(hedging.copies, delay))
    }

    /// Whether another copy should be sent now. If so, the budget pays for it.
    pub(crate) fn another(&self, hedge: &mut Hedge) -> bool {
        hedge.another(&mut self.budget.borrow_mut(), leno_transport::now())
    }

    /// Records that a response began after this time, or had not begun by then.
    pub(crate) fn observe(&self, latency: Duration) {
        if let Some(latencies) = &self.latencies {
            latencies.borrow_mut().observe(latency);
        }
    }

    /// Whether another copy may get a better response than this one.
    pub(crate) fn is_bad(&self, response: ResponseView<'_>) -> bool {
        let (ending, grpc) = ending(response);
        let is_failure = |retries| is_failure(retries, ending);
        EndpointPolicy::is_bad(response.status(), grpc)
            || self.retries.as_ref().is_some_and(is_failure)
    }

    /// Whether requests add tokens to the budget, because policy has retries or hedging.
    fn pays(&self) -> bool {
        self.retries.is_some() || self.hedging.is_some()
    }

    /// The deadlines and attempts of a request that begins now.
    pub(crate) fn plan(&self, is_idempotent: bool) -> Plan {
        let within = |timeout: Duration| leno_transport::now().checked_add(timeout);
        if self.pays() {
            self.budget.borrow_mut().request(leno_transport::now());
        }
        Plan {
            retry: self.retries.is_some().then(Retry::default),
            is_idempotent,
            request_by: self.timeouts.request.and_then(within),
            response_by: self.timeouts.response.and_then(within),
            again: Cell::new(None),
        }
    }
}

impl Plan {
    /// When the request must be complete, including its response.
    pub(crate) fn request_by(&self) -> Option<Instant> {
        self.request_by
    }

    /// When the response of an attempt that begins now must have begun.
    pub(crate) fn response_by(&self, policy: &RequestPolicy) -> Option<Instant> {
        let per_try = policy.retries.as_ref().and_then(|retries| retries.per_try_timeout);
        let per_try = per_try.and_then(|timeout| leno_transport::now().checked_add(timeout));
        [self.response_by, per_try].into_iter().flatten().min()
    }

    /// Whether policy has retries.
    pub(crate) fn decides(&self) -> bool {
        self.retry.is_some()
    }

    /// Whether the method is idempotent: sending the request twice has the same effect as sending it once.
    pub(crate) fn is_idempotent(&self) -> bool {
        self.is_idempotent
    }

    /// How many retries were made because of policy.
    pub(crate) fn made(&self) -> u32 {
        self.retry.as_ref().map_or(0, Retry::made)
    }

    /// Takes the wait before the retry, if the response that was judged last is to be retried.
    pub(crate) fn again(&self) -> Option<Duration> {
        self.again.take()
    }

    /// Decides about a response whose head has arrived. Returns whether the request must be sent again. `is_mesh` says
    /// that the response came through another proxy.
    pub(crate) fn judge(
        &mut self,
        (policy, registry): (&RequestPolicy, &Registry),
        response: ResponseView<'_>,
        (is_replayable, is_mesh): (bool, bool),
    ) -> bool {
        let Some(retries) = policy.retries.as_ref().filter(|_| self.retry.is_some()) else {
            return false;
        };
        let ending = match ending(response).0 {
            // If the connection behind the server's proxy breaks, that proxy reports it only by this answer.
            Ending::Status(BAD_GATEWAY) | Ending::Grpc(GRPC_UNAVAILABLE)
                if is_mesh && retries.on.reset && response.header("leno-error").is_some() =>
            {
                Ending::Reset
            }
            ending => ending,
        };
        let asked = response.header("retry-after");
        let retry_after = asked.and_then(|value| retry_after(value, SystemTime::now()));
        let facts = Facts { is_replayable, retry_after, ..Facts::default() };
        let again = self.decide((policy, registry), ending, facts);
        self.again.set(again);
        again.is_some()
    }

    /// Decides on a retry after a failure without a response.
    pub(crate) fn after(
        &mut self,
        (policy, registry): (&RequestPolicy, &Registry),
        failure: &Failure,
    ) -> Option<Duration> {
        let ending = match &failure.cause {
            Cause::Late => Ending::TimedOut,
            _ if failure.unprocessed => Ending::RefusedStream,
            Cause::Reset(_) | Cause::Reported(_) => Ending::Reset,
            Cause::Closed | Cause::Broken(_) | Cause::Head(_) => Ending::Reset,
            _ => return None,
        };
        let silent = failure.place == Party::Server;
        let facts = Facts {
            is_unprocessed: failure.unprocessed,
            is_replayable: failure.retryable,
            ..Facts::default()
        };
        silent.then(|| self.decide((policy, registry), ending, facts))?
    }

    /// Decides on a retry after connecting failed.
    pub(crate) fn after_connecting(
        &mut self,
        (policy, registry): (&RequestPolicy, &Registry),
    ) -> Option<Duration> {
        let facts = Facts { is_unprocessed: true, is_replayable: true, ..Facts::default() };
        self.decide((policy, registry), Ending::ConnectFailed, facts)
    }

    fn decide(
        &mut self,
        (policy, registry): (&RequestPolicy, &Registry),
        ending: Ending,
        facts: Facts,
    ) -> Option<Duration> {
        let retries = policy.retries.as_ref()?;
        let now = leno_transport::now();
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

/// The counter for a retry that is not made.
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

/// How an attempt ended whose response has this head, and the response's gRPC status.
fn ending(response: ResponseView<'_>) -> (Ending, Option<u8>) {
    let grpc = response.header("grpc-status").and_then(number);
    let ending = match (response.status(), grpc) {
        (200, Some(status)) => Ending::Grpc(status),
        (status, _) => Ending::Status(status),
    };
    (ending, grpc)
}

fn number(value: &[u8]) -> Option<u8> {
    std::str::from_utf8(value).ok()?.parse().ok()
}

/// The limits of the HTTP engine, if policy changes them. If policy limits the time of a response or of the whole
/// request, or sets its own idle time, the default wait for the beginning of a response does not apply.
fn changed(timeouts: &TrafficTimeouts, limits: &Limits) -> Option<Limits> {
    let response_wait = limits.stall;
    match timeouts.idle {
        Some(stall) => Some(Limits { stall, response_wait, stall_streams: true, ..limits.clone() }),
        None if timeouts.response.is_some() || timeouts.request.is_some() => {
            Some(Limits { response_wait, ..limits.clone() })
        }
        None => None,
    }
}
