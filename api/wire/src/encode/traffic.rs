//! Encodes traffic policies and rate limits.

use std::time::Duration;

use leno_types::routes::RouteKind;
use leno_types::traffic::{
    Algorithm, Balancing, Ejection, Faults, HashOn, LimitKey, PolicyScope, PolicySource, RateLimit,
    Retries, StatusRange, SuccessRate, Traffic, TrafficTimeouts, WorkerLimits,
};

use crate::proto;

pub(super) fn traffic(traffic: &Traffic) -> proto::Traffic {
    proto::Traffic {
        source: Some(source(&traffic.source)),
        scope: scope(&traffic.scope),
        retries: traffic.retries.as_ref().map(retries),
        timeouts: Some(timeouts(&traffic.timeouts)),
        hedging: traffic.hedging.map(|hedging| proto::Hedging {
            delay_ms: u64::try_from(hedging.delay.as_millis()).unwrap_or(u64::MAX),
            copies: hedging.copies,
            percentile: hedging.percentile.map_or(0, u32::from),
            non_idempotent: hedging.non_idempotent,
        }),
        limits: traffic.limits.as_ref().map(limits),
        ejection: traffic.ejection.as_ref().map(ejection),
        balancing: traffic.balancing.as_ref().map(balancing),
        faults: traffic.faults.as_ref().map(faults),
    }
}

pub(super) fn rate_limit(limit: &RateLimit) -> proto::RateLimit {
    use proto::rate_limit::Key;
    proto::RateLimit {
        source: Some(source(&limit.source)),
        port: limit.port.map_or(0, u32::from),
        key: match &limit.key {
            LimitKey::Workload => None,
            LimitKey::Client => Some(Key::Client(true)),
            LimitKey::Header(name) => Some(Key::Header(name.to_string())),
        },
        requests: limit.requests,
        per_ms: milliseconds(limit.per),
        burst: limit.burst,
        global: limit.is_global,
    }
}

pub(super) fn source(source: &PolicySource) -> proto::PolicySource {
    proto::PolicySource {
        created: source.created,
        namespace: source.namespace.to_string(),
        name: source.name.to_string(),
    }
}

fn scope(scope: &PolicyScope) -> Option<proto::traffic::Scope> {
    use proto::traffic::Scope as Message;
    match scope {
        PolicyScope::Service => None,
        PolicyScope::Port(port) => Some(Message::Port((*port).into())),
        PolicyScope::Route { kind, namespace, name, rule } => {
            let kind = match kind {
                RouteKind::Http => proto::RouteKind::Http,
                RouteKind::Grpc => proto::RouteKind::Grpc,
                RouteKind::Tls => proto::RouteKind::Tls,
                RouteKind::Tcp => proto::RouteKind::Tcp,
            };
            Some(Message::Route(proto::RouteScope {
                kind: kind.into(),
                namespace: namespace.to_string(),
                name: name.to_string(),
                rule: rule.as_deref().unwrap_or_default().to_owned(),
            }))
        }
    }
}

/// In milliseconds; a time below a millisecond becomes one millisecond, because 0 means that the time is not set.
fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1)
}

fn some_milliseconds(time: Option<Duration>) -> u64 {
    time.map_or(0, milliseconds)
}

fn retries(retries: &Retries) -> proto::Retries {
    let range =
        |range: &StatusRange| proto::StatusRange { from: range.from.into(), to: range.to.into() };
    proto::Retries {
        attempts: retries.attempts,
        statuses: retries.statuses.iter().map(range).collect(),
        grpc_statuses: retries.grpc_statuses.iter().map(|status| u32::from(*status)).collect(),
        connect_failure: retries.on.connect_failure,
        reset: retries.on.reset,
        refused_stream: retries.on.refused_stream,
        timeout: retries.on.timeout,
        non_idempotent: retries.non_idempotent,
        per_try_timeout_ms: some_milliseconds(retries.per_try_timeout),
        // A wait may be zero.
        backoff_ms: u64::try_from(retries.backoff.base.as_millis()).unwrap_or(u64::MAX),
        max_backoff_ms: u64::try_from(retries.backoff.max.as_millis()).unwrap_or(u64::MAX),
        budget_percent: retries.budget.percent,
        budget_min_per_second: retries.budget.min_per_second,
        max_retry_after_ms: u64::try_from(retries.max_retry_after.as_millis()).unwrap_or(u64::MAX),
    }
}

fn timeouts(timeouts: &TrafficTimeouts) -> proto::Timeouts {
    proto::Timeouts {
        request_ms: some_milliseconds(timeouts.request),
        response_ms: some_milliseconds(timeouts.response),
        idle_ms: some_milliseconds(timeouts.idle),
        stream_ms: some_milliseconds(timeouts.stream),
    }
}

fn limits(limits: &WorkerLimits) -> proto::TrafficLimits {
    proto::TrafficLimits {
        connections: limits.connections,
        requests: limits.requests,
        pending: limits.pending,
        requests_per_endpoint: limits.requests_per_endpoint,
        adaptive: limits.adaptive,
    }
}

fn ejection(ejection: &Ejection) -> proto::Ejection {
    let rate = |rate: &SuccessRate| proto::SuccessRate {
        interval_ms: milliseconds(rate.interval),
        minimum_requests: rate.minimum_requests,
        deviations_percent: rate.deviations_percent,
    };
    proto::Ejection {
        consecutive_failures: ejection.consecutive_failures.unwrap_or(0),
        success_rate: ejection.success_rate.as_ref().map(rate),
        base_ms: milliseconds(ejection.base),
        max_ms: milliseconds(ejection.max),
        max_percent: ejection.max_percent.into(),
        panic_percent: ejection.panic_percent.into(),
    }
}

fn balancing(balancing: &Balancing) -> proto::Balancing {
    use proto::BalancingAlgorithm as Name;
    use proto::balancing::Hash;
    let (algorithm, on) = match balancing.algorithm() {
        Algorithm::PeakEwma => (Name::PeakEwma, None),
        Algorithm::LeastRequest => (Name::LeastRequest, None),
        Algorithm::RoundRobin => (Name::RoundRobin, None),
        Algorithm::Random => (Name::Random, None),
        Algorithm::RingHash(on) => (Name::RingHash, Some(on)),
        Algorithm::Maglev(on) => (Name::Maglev, Some(on)),
    };
    proto::Balancing {
        algorithm: algorithm.into(),
        hash: match on {
            Some(HashOn::Header(name)) => Some(Hash::Header(name.to_string())),
            Some(HashOn::Cookie(name)) => Some(Hash::Cookie(name.to_string())),
            Some(HashOn::Source) | None => None,
        },
        slow_start_ms: some_milliseconds(balancing.slow_start),
        session_cookie: balancing.session_cookie.as_deref().unwrap_or_default().to_owned(),
        overflow: balancing.overflow,
    }
}

fn faults(faults: &Faults) -> proto::Faults {
    proto::Faults {
        delay_ms: faults.delay.map_or(0, |delay| milliseconds(delay.by)),
        delay_share: faults.delay.map_or(0, |delay| delay.share.0),
        abort_status: faults.abort.map_or(0, |abort| abort.status.into()),
        abort_share: faults.abort.map_or(0, |abort| abort.share.0),
    }
}
