//! How endpoints are chosen and ejected, and how many requests they may have at a time.

use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use leno_balance::{Affinity, Algorithm, Locality, Settings, hash};
use leno_http::{HeaderLine, RequestView};
use leno_resilience::{Full, Gate, Gradient, Permit};
use leno_types::mesh::Distribution;
use leno_types::traffic::{self, Balancing, Ejection, HashOn, Traffic, WorkerLimits};
use tokio::time::sleep;

/// The default number of requests on each near endpoint above which endpoints farther away are used, too. An endpoint
/// that is not overloaded has slightly fewer.
const OVERFLOW: u32 = 16;

/// The default number of requests that may wait, if policy limits those in progress. It is enough for requests that
/// arrive irregularly.
const PENDING: u32 = 1_024;

/// The initial value of an adaptive limit, unless policy's own limit is lower.
const FIRST_LIMIT: u32 = 100;

/// How often a request that waits for an adaptive limit checks whether a measurement has taken too long.
const LOOK: Duration = Duration::from_millis(500);

/// The statuses that count as a failure of the endpoint.
const FAILED: std::ops::RangeInclusive<u16> = 500..=599;

/// The gRPC statuses that count as a failure of the endpoint: UNKNOWN, DEADLINE_EXCEEDED, INTERNAL, UNAVAILABLE,
/// DATA_LOSS.
const GRPC_FAILED: [u8; 5] = [2, 4, 13, 14, 15];

/// The gRPC status RESOURCE_EXHAUSTED, with which a rate limit refuses a call.
const GRPC_EXHAUSTED: u8 = 8;

/// One worker's policy of the endpoints of one port of a service.
#[derive(Debug)]
pub(crate) struct EndpointPolicy {
    limits: WorkerLimits,
    ejection: Option<Ejection>,
    balancing: Option<Balancing>,
    bound: Option<Rc<Bound>>,
    /// The hash of the client workload's name.
    source: u64,
}

/// How many requests may be in progress. Policies that follow each other share it, so that requests which began under an
/// earlier one are counted, and change the limit as the present one says.
#[derive(Debug)]
struct Bound {
    gate: Rc<Gate>,
    /// What adapts the limit, unless it is fixed.
    gradient: RefCell<Option<Gradient>>,
    pending: Cell<u32>,
}

impl Bound {
    /// The bound that `limits` set, if any: the one of the policy before, `known`, with the new limits, or a new one.
    fn of(limits: WorkerLimits, known: Option<Rc<Self>>) -> Option<Rc<Self>> {
        let first = limits.requests.unwrap_or(FIRST_LIMIT).min(FIRST_LIMIT);
        let gradient = limits.adaptive.then(|| Gradient::new(first));
        let limit = gradient.as_ref().map(Gradient::limit).or(limits.requests)?;
        let pending = limits.pending.unwrap_or(PENDING);
        let Some(known) = known else {
            let (gate, gradient) = (Gate::new(limit, pending), RefCell::new(gradient));
            return Some(Rc::new(Self { gate, gradient, pending: Cell::new(pending) }));
        };
        known.gradient.replace(gradient);
        known.pending.set(pending);
        known.gate.set(limit, pending);
        Some(known)
    }

    async fn enter(&self) -> Result<Permit, Full> {
        if let Some(permit) = self.gate.try_enter() {
            return Ok(permit);
        }
        if self.gradient.borrow().is_none() {
            return self.gate.enter().await;
        }
        // Requests that may not wait, or not for long, end such a measurement, too.
        self.adapt(|gradient| gradient.end_measuring(leno_transport::now()));
        if let Some(permit) = self.gate.try_enter() {
            return Ok(permit);
        }
        // This is boxed, so that requests that need not wait need no memory for it.
        Box::pin(self.enter_adapted()).await
    }

    /// Waits for a permit, and meanwhile ends measurements that take too long: if the requests in progress do not end, only
    /// those that wait or arrive can do that.
    async fn enter_adapted(&self) -> Result<Permit, Full> {
        let mut entered = pin!(self.gate.enter());
        loop {
            tokio::select! {
                biased;
                entered = &mut entered => return entered,
                () = sleep(LOOK) => {
                    self.adapt(|gradient| gradient.end_measuring(leno_transport::now()));
                }
            }
        }
    }

    fn answered(&self, latency: Duration, is_overload: bool) {
        let under_way = self.gate.under_way();
        self.adapt(|gradient| match is_overload {
            true => gradient.dropped(),
            false => gradient.answered(latency, under_way, leno_transport::now()),
        });
    }

    /// Changes the limit, unless it is fixed.
    fn adapt(&self, change: impl FnOnce(&mut Gradient)) {
        let mut gradient = self.gradient.borrow_mut();
        let Some(gradient) = gradient.as_mut() else { return };
        change(gradient);
        self.gate.set(gradient.limit(), self.pending.get());
    }
}

impl EndpointPolicy {
    /// The policy that `traffic` sets. `source` is the name of the client workload. Requests that are in progress
    /// under `before` still count towards the limit.
    pub(crate) fn new(traffic: &Traffic, before: Option<&Self>, source: &str) -> Self {
        let limits = traffic.limits.unwrap_or_default();
        let bound = Bound::of(limits, before.and_then(|before| before.bound.clone()));
        let (ejection, balancing) = (traffic.ejection, traffic.balancing.clone());
        Self { limits, ejection, balancing, bound, source: hash(source.as_bytes()) }
    }

    /// Whether the policy was made from the same settings.
    pub(crate) fn is_of(&self, traffic: &Traffic) -> bool {
        self.limits == traffic.limits.unwrap_or_default()
            && self.ejection == traffic.ejection
            && self.balancing == traffic.balancing
    }

    /// The largest number of connections to all endpoints together.
    pub(crate) fn connections(&self) -> u32 {
        self.limits.connections.unwrap_or(u32::MAX)
    }

    /// The settings of the balancer, for a service that prefers near endpoints in this way.
    pub(crate) fn settings(&self, distribution: Distribution) -> Settings {
        let balancing = self.balancing.as_ref();
        let overflow = balancing.and_then(|b| b.overflow).unwrap_or(OVERFLOW);
        Settings {
            algorithm: self.asked().map_or(Algorithm::PeakEwma, algorithm),
            slow_start: balancing.and_then(|b| b.slow_start).unwrap_or_default(),
            locality: match distribution {
                Distribution::Any => Locality::Any,
                Distribution::SameZone => Locality::SameZone { overflow },
                Distribution::SameNode => Locality::SameNode { overflow },
            },
            ejection: self.ejection.unwrap_or_default(),
            endpoint_requests: self.limits.requests_per_endpoint.unwrap_or(u32::MAX),
        }
    }

    /// The algorithm that policy selects.
    fn asked(&self) -> Option<&traffic::Algorithm> {
        self.balancing.as_ref().map(Balancing::algorithm)
    }

    /// The endpoint that a request should go to: the one for the hash of a header, a cookie or the client workload,
    /// and the one that its session cookie names.
    pub(crate) fn wanted(&self, request: RequestView<'_>) -> Affinity {
        let Some(balancing) = &self.balancing else { return Affinity::default() };
        let on = match self.asked() {
            Some(traffic::Algorithm::RingHash(on) | traffic::Algorithm::Maglev(on)) => Some(on),
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
        Affinity { hash, session }
    }

    /// The endpoint that an opaque connection should go to, if policy hashes the client workload.
    pub(crate) fn wanted_of_stream(&self) -> Affinity {
        let by_source = matches!(
            self.asked(),
            Some(
                traffic::Algorithm::RingHash(HashOn::Source)
                    | traffic::Algorithm::Maglev(HashOn::Source)
            )
        );
        Affinity { hash: by_source.then_some(self.source), session: None }
    }

    /// The `Set-Cookie` line that keeps a session on the endpoint with this key. `None` if the request's cookie already
    /// names this endpoint, or if policy has no sessions.
    pub(crate) fn session_line(&self, wanted: Affinity, key: u64) -> Option<HeaderLine> {
        let name = self.balancing.as_ref()?.session_cookie.as_ref()?;
        if wanted.session == Some(key) {
            return None;
        }
        let value = format!("{name}={key:016x}; Path=/; HttpOnly; SameSite=Lax");
        HeaderLine::new("Set-Cookie", value.as_bytes()).ok()
    }

    /// Waits until the request is admitted among those in progress. `None` means that policy sets no limit.
    pub(crate) async fn enter(&self) -> Result<Option<Permit>, Full> {
        match &self.bound {
            Some(bound) => bound.enter().await.map(Some),
            None => Ok(None),
        }
    }

    /// Records for an adaptive limit that a request was answered, or failed, after this time. `is_overload` says that
    /// the server refused it because it has too much to do.
    pub(crate) fn answered(&self, latency: Duration, is_overload: bool) {
        if let Some(bound) = &self.bound {
            bound.answered(latency, is_overload);
        }
    }

    /// Whether a response does not contain the requested work, so that its latency says nothing: the endpoint failed,
    /// or refused the request because of a rate limit.
    pub(crate) fn is_refusal(status: u16, grpc: Option<u8>) -> bool {
        Self::is_bad(status, grpc) || status == 429 || grpc == Some(GRPC_EXHAUSTED)
    }

    /// Whether a response counts against its endpoint.
    pub(crate) fn is_bad(status: u16, grpc: Option<u8>) -> bool {
        FAILED.contains(&status) || grpc.is_some_and(|status| GRPC_FAILED.contains(&status))
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

/// The value of a cookie (RFC 6265 section 5.4). In HTTP/2, cookies may be in several headers.
pub(crate) fn cookie<'a>(request: RequestView<'a>, name: &Arc<str>) -> Option<&'a [u8]> {
    let lines = request.headers().filter(|(header, _)| header.eq_ignore_ascii_case("cookie"));
    lines.flat_map(|(_, value)| value.split(|byte| *byte == b';')).find_map(|pair| {
        let (key, value) = pair.split_at_checked(pair.iter().position(|byte| *byte == b'=')?)?;
        let value = value.strip_prefix(b"=")?;
        (key.trim_ascii() == name.as_bytes()).then(|| value.trim_ascii())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(limits: WorkerLimits, before: Option<&EndpointPolicy>) -> EndpointPolicy {
        EndpointPolicy::new(&Traffic { limits: Some(limits), ..Traffic::default() }, before, "web")
    }

    #[test]
    fn requests_that_began_under_an_adaptive_limit_leave_a_fixed_one_alone() {
        let adaptive = policy(WorkerLimits { adaptive: true, ..WorkerLimits::default() }, None);
        let fixed = WorkerLimits { requests: Some(20), ..WorkerLimits::default() };
        let fixed = policy(fixed, Some(&adaptive));
        adaptive.answered(Duration::from_millis(10), true);
        let gate = &fixed.bound.as_ref().unwrap().gate;
        let permits: Vec<Permit> = std::iter::from_fn(|| gate.try_enter()).take(30).collect();
        assert_eq!(permits.len(), 20);
    }

    #[tokio::test(start_paused = true)]
    async fn streams_that_do_not_end_keep_a_measurement_open_for_a_second() {
        let adaptive = policy(WorkerLimits { adaptive: true, ..WorkerLimits::default() }, None);
        let gate = &adaptive.bound.as_ref().unwrap().gate;
        let _streams: Vec<Permit> = std::iter::from_fn(|| gate.try_enter()).take(10).collect();
        for _ in 0..400 {
            tokio::time::advance(Duration::from_millis(100)).await;
            (0..10).for_each(|_| adaptive.answered(Duration::from_millis(1), false));
            if gate.try_enter().is_none() {
                break;
            }
        }
        assert!(gate.try_enter().is_none(), "it measures with fewer requests than the streams");
        assert!(adaptive.enter().await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn requests_that_may_not_wait_end_a_measurement_that_takes_too_long() {
        let limits = WorkerLimits { adaptive: true, pending: Some(0), ..WorkerLimits::default() };
        let adaptive = policy(limits, None);
        let gate = &adaptive.bound.as_ref().unwrap().gate;
        let _streams: Vec<Permit> = std::iter::from_fn(|| gate.try_enter()).take(10).collect();
        while gate.try_enter().is_some() {
            tokio::time::advance(Duration::from_millis(100)).await;
            (0..10).for_each(|_| adaptive.answered(Duration::from_millis(1), false));
        }
        assert!(adaptive.enter().await.is_err(), "it measures");
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(adaptive.enter().await.is_ok());
    }
}
