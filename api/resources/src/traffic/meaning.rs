//! Converts a `TrafficPolicy` or `RateLimitPolicy` into the values that proxies receive.

use std::sync::Arc;
use std::time::Duration;

use leno_types::traffic::{
    Abort, Algorithm, Balancing, Delay, Ejection, Faults, HashOn, Hedging, LimitKey, PolicyScope,
    PolicySource, RateLimit, RequestShare, Retries, RetryBackoff, RetryBudget, RetryConditions,
    StatusRange, SuccessRate, Traffic, TrafficTimeouts, WorkerLimits,
};

use super::{
    AlgorithmName, BalancingSpec, EjectionSpec, FaultsSpec, HashSpec, HedgingSpec, RetriesSpec,
    SuccessRateSpec, TimeoutsSpec, TrafficPolicy,
};
use crate::ratelimit::{LimitScope, RateLimitPolicy, RateLimitSpec};

/// The longest `Retry-After` that a client waits for if the policy does not set a limit.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(5);

/// The names of gRPC's statuses; the index is the status number.
const GRPC: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

/// What one entry of `retries.on` means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RetryOn {
    ConnectFailure,
    Reset,
    RefusedStream,
    Timeout,
    Status(StatusRange),
    Grpc(u8),
}

impl RetryOn {
    /// `None` if the text is not a valid entry. Status classes and statuses below 400 are invalid,
    /// because they are not failures.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let of_class = || {
            let class: u16 = text.strip_suffix("xx")?.parse().ok()?;
            let from = class.checked_mul(100)?;
            (class == 4 || class == 5).then_some(StatusRange { from, to: from + 99 })
        };
        let of_status = || {
            let status = text.parse().ok().filter(|status| (400..=599).contains(status))?;
            Some(StatusRange::one(status))
        };
        match text {
            "connect-failure" => Some(Self::ConnectFailure),
            "reset" => Some(Self::Reset),
            "refused-stream" => Some(Self::RefusedStream),
            "timeout" => Some(Self::Timeout),
            _ => match of_class().or_else(of_status) {
                Some(range) => Some(Self::Status(range)),
                None => {
                    let number = GRPC.iter().position(|name| *name == text && text != "OK")?;
                    u8::try_from(number).ok().map(Self::Grpc)
                }
            },
        }
    }
}

impl TrafficPolicy {
    /// The values that proxies receive for one target of the policy.
    #[must_use]
    pub fn traffic(&self, scope: PolicyScope) -> Traffic {
        let spec = &self.spec;
        let limits = spec.limits.as_ref().map(|limits| WorkerLimits {
            connections: limits.connections,
            requests: limits.requests,
            pending: limits.pending,
            requests_per_endpoint: limits.requests_per_endpoint,
            adaptive: limits.adaptive,
        });
        Traffic {
            source: source(&self.metadata),
            scope,
            retries: spec.retries.as_ref().map(retries),
            timeouts: spec.timeouts.as_ref().map(timeouts).unwrap_or_default(),
            hedging: spec.hedging.as_ref().map(hedging),
            limits,
            ejection: spec.ejection.as_ref().map(ejection),
            balancing: spec.balancing.as_ref().map(balancing),
            faults: spec.faults.as_ref().map(faults),
        }
    }
}

impl RateLimitPolicy {
    /// The values that proxies receive for the policy. `port` is the port of the workload, if the target names one.
    #[must_use]
    pub fn limits(&self, port: Option<u16>) -> Vec<RateLimit> {
        let limit = |limit: &RateLimitSpec| RateLimit {
            source: source(&self.metadata),
            port,
            key: match &limit.by {
                Some(by) if by.client => LimitKey::Client,
                Some(by) => by.header.as_deref().map_or(LimitKey::Workload, |name| {
                    LimitKey::Header(name.to_ascii_lowercase().into())
                }),
                None => LimitKey::Workload,
            },
            requests: limit.requests,
            per: limit.per.map_or(Duration::from_secs(1), |per| per.0),
            burst: limit.burst.unwrap_or(limit.requests),
            is_global: limit.scope == Some(LimitScope::Global),
        };
        self.spec.limits.iter().map(limit).collect()
    }
}

/// The source of a policy: its document, from the document's metadata.
pub(crate) fn source(metadata: &crate::Metadata) -> PolicySource {
    let created = metadata.creation_timestamp.as_ref();
    let created = created.and_then(|time| u64::try_from(time.0.as_second()).ok());
    PolicySource {
        created: created.unwrap_or(0),
        namespace: metadata.namespace.as_str().into(),
        name: metadata.name.as_str().into(),
    }
}

fn retries(spec: &RetriesSpec) -> Retries {
    let mut retries = Retries {
        attempts: spec.attempts.unwrap_or(1),
        statuses: Vec::new(),
        grpc_statuses: Vec::new(),
        on: RetryConditions::default(),
        non_idempotent: spec.non_idempotent,
        per_try_timeout: spec.per_try_timeout.map(|timeout| timeout.0),
        backoff: RetryBackoff::default(),
        budget: RetryBudget::default(),
        max_retry_after: spec.max_retry_after.map_or(MAX_RETRY_AFTER, |longest| longest.0),
    };
    for on in spec.on.iter().filter_map(|trigger| RetryOn::parse(&trigger.0)) {
        match on {
            RetryOn::ConnectFailure => retries.on.connect_failure = true,
            RetryOn::Reset => retries.on.reset = true,
            RetryOn::RefusedStream => retries.on.refused_stream = true,
            RetryOn::Timeout => retries.on.timeout = true,
            RetryOn::Status(range) => retries.statuses.push(range),
            RetryOn::Grpc(status) => retries.grpc_statuses.push(status),
        }
    }
    if let Some(base) = spec.backoff {
        retries.backoff.base = base.0;
        retries.backoff.max = retries.backoff.max.max(base.0);
    }
    if let Some(max) = spec.max_backoff {
        retries.backoff.max = max.0;
    }
    if let Some(budget) = &spec.budget {
        retries.budget.percent = budget.percent.unwrap_or(retries.budget.percent);
        retries.budget.min_per_second =
            budget.min_per_second.unwrap_or(retries.budget.min_per_second);
    }
    retries
}

fn hedging(spec: &HedgingSpec) -> Hedging {
    Hedging {
        delay: spec.delay.map_or(Duration::ZERO, |delay| delay.0),
        percentile: spec.percentile.map(|percentile| (percentile * 10.0).round() as u16),
        copies: spec.copies.unwrap_or(1),
        non_idempotent: spec.non_idempotent,
    }
}

fn timeouts(spec: &TimeoutsSpec) -> TrafficTimeouts {
    TrafficTimeouts {
        request: spec.request.map(|timeout| timeout.0),
        response: spec.response.map(|timeout| timeout.0),
        idle: spec.idle.map(|timeout| timeout.0),
        stream: spec.stream.map(|timeout| timeout.0),
    }
}

fn ejection(spec: &EjectionSpec) -> Ejection {
    let or = Ejection::default();
    Ejection {
        consecutive_failures: spec.consecutive_failures,
        success_rate: spec.success_rate.as_ref().map(success_rate),
        base: spec.base.map_or(or.base, |base| base.0),
        max: spec.max.map_or(or.max, |max| max.0),
        max_percent: spec.max_percent.unwrap_or(or.max_percent),
        panic_percent: spec.panic_percent.unwrap_or(or.panic_percent),
    }
}

fn success_rate(spec: &SuccessRateSpec) -> SuccessRate {
    let or = SuccessRate::default();
    let hundredths = |deviations: f64| (deviations * 100.0).round() as u32;
    SuccessRate {
        interval: spec.interval.map_or(or.interval, |interval| interval.0),
        minimum_requests: spec.minimum_requests.unwrap_or(or.minimum_requests),
        deviations_percent: spec.deviations.map_or(or.deviations_percent, hundredths),
    }
}

fn balancing(spec: &BalancingSpec) -> Balancing {
    let hash = || spec.hash.as_ref().map_or(HashOn::Source, hash_on);
    Balancing {
        algorithm: spec.algorithm.map(|name| match name {
            AlgorithmName::PeakEwma => Algorithm::PeakEwma,
            AlgorithmName::LeastRequest => Algorithm::LeastRequest,
            AlgorithmName::RoundRobin => Algorithm::RoundRobin,
            AlgorithmName::Random => Algorithm::Random,
            AlgorithmName::RingHash => Algorithm::RingHash(hash()),
            AlgorithmName::Maglev => Algorithm::Maglev(hash()),
        }),
        slow_start: spec.slow_start.map(|slow_start| slow_start.0),
        session_cookie: spec.session_cookie.as_deref().map(Arc::from),
        overflow: spec.overflow,
    }
}

fn hash_on(spec: &HashSpec) -> HashOn {
    match (&spec.header, &spec.cookie) {
        (Some(header), _) => HashOn::Header(header.to_ascii_lowercase().into()),
        (None, Some(cookie)) => HashOn::Cookie(cookie.as_str().into()),
        (None, None) => HashOn::Source,
    }
}

fn faults(spec: &FaultsSpec) -> Faults {
    let share = |percent: f64| RequestShare((percent * 10_000.0).round() as u32);
    Faults {
        delay: spec.delay.as_ref().map(|d| Delay { by: d.by.0, share: share(d.percent) }),
        abort: spec.abort.as_ref().map(|a| Abort { status: a.status, share: share(a.percent) }),
    }
}
