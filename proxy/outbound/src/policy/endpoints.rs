//! How endpoints are chosen and left out, and how many requests they have at once.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use leno_balance::{Affinity, Algorithm, Locality, Settings, hash};
use leno_http::{HeaderLine, RequestView};
use leno_resilience::{Full, Gate, Gradient, Permit};
use leno_types::mesh::Distribution;
use leno_types::traffic::{self, Balancing, Ejection, HashOn, Traffic, WorkerLimits};

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

/// RESOURCE_EXHAUSTED, as which a rate limit refuses.
const GRPC_EXHAUSTED: u8 = 8;

/// The policy of the endpoints of one port of a service, for one worker.
#[derive(Debug)]
pub(crate) struct EndpointPolicy {
    limits: WorkerLimits,
    ejection: Option<Ejection>,
    balancing: Option<Balancing>,
    gate: Option<Rc<Gate>>,
    gradient: Option<RefCell<Gradient>>,
    /// Of the workload whose requests these are.
    source: u64,
}

impl EndpointPolicy {
    /// What holds by `traffic`; `source` names the workload whose requests these are. Requests that are
    /// under way by `before` count.
    pub(crate) fn new(traffic: &Traffic, before: Option<&Self>, source: &str) -> Self {
        let limits = traffic.limits.unwrap_or_default();
        let first = limits.requests.unwrap_or(FIRST_LIMIT).min(FIRST_LIMIT);
        let gradient = limits.adaptive.then(|| RefCell::new(Gradient::new(first)));
        let limit = match &gradient {
            Some(gradient) => Some(gradient.borrow().limit()),
            None => limits.requests,
        };
        let pending = limits.pending.unwrap_or(PENDING);
        let known = before.and_then(|before| before.gate.clone());
        let gate = limit.map(|limit| match known {
            Some(gate) => {
                gate.set(limit, pending);
                gate
            }
            None => Gate::new(limit, pending),
        });
        let (ejection, balancing) = (traffic.ejection, traffic.balancing.clone());
        Self { limits, ejection, balancing, gate, gradient, source: hash(source.as_bytes()) }
    }

    /// Whether it is what `traffic` says.
    pub(crate) fn is_of(&self, traffic: &Traffic) -> bool {
        self.limits == traffic.limits.unwrap_or_default()
            && self.ejection == traffic.ejection
            && self.balancing == traffic.balancing
    }

    /// Most connections to all endpoints.
    pub(crate) fn connections(&self) -> u32 {
        self.limits.connections.unwrap_or(u32::MAX)
    }

    /// How the balancer is to choose.
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

    /// The algorithm that policy asks for.
    fn asked(&self) -> Option<&traffic::Algorithm> {
        self.balancing.as_ref().map(Balancing::algorithm)
    }

    /// What a request asks of the balancer.
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

    /// What a connection asks of it whose requests nobody sees.
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

    /// The line that keeps a session on the endpoint with this key, unless it is there already.
    pub(crate) fn session_line(&self, wanted: Affinity, key: u64) -> Option<HeaderLine> {
        let name = self.balancing.as_ref()?.session_cookie.as_ref()?;
        if wanted.session == Some(key) {
            return None;
        }
        let value = format!("{name}={key:016x}; Path=/; HttpOnly; SameSite=Lax");
        HeaderLine::new("Set-Cookie", value.as_bytes()).ok()
    }

    /// A place among the requests under way; none is needed where policy sets no bound.
    pub(crate) async fn enter(&self) -> Result<Option<Permit>, Full> {
        match &self.gate {
            Some(gate) => gate.enter().await.map(Some),
            None => Ok(None),
        }
    }

    /// A request was answered, or not, after this time.
    pub(crate) fn answered(&self, latency: Duration, is_overload: bool) {
        let (Some(gradient), Some(gate)) = (&self.gradient, &self.gate) else { return };
        let mut gradient = gradient.borrow_mut();
        if is_overload {
            gradient.dropped();
        } else {
            gradient.answered(latency, gate.under_way(), leno_transport::now());
        }
        gate.set(gradient.limit(), self.limits.pending.unwrap_or(PENDING));
    }

    /// Whether a response comes without the work that was asked for, so that its latency says nothing:
    /// the endpoint failed, or refused it for its rate.
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

/// The value of a cookie (RFC 6265 section 5.4), which HTTP/2 may have in several headers.
pub(crate) fn cookie<'a>(request: RequestView<'a>, name: &Arc<str>) -> Option<&'a [u8]> {
    let lines = request.headers().filter(|(header, _)| header.eq_ignore_ascii_case("cookie"));
    lines.flat_map(|(_, value)| value.split(|byte| *byte == b';')).find_map(|pair| {
        let (key, value) = pair.split_at_checked(pair.iter().position(|byte| *byte == b'=')?)?;
        let value = value.strip_prefix(b"=")?;
        (key.trim_ascii() == name.as_bytes()).then(|| value.trim_ascii())
    })
}
