//! Decodes traffic policies and rate limits. Bounds that validation of the documents has checked
//! are not checked again: a control plane that sends values out of bounds harms only its own mesh.

use std::sync::Arc;
use std::time::Duration;

use leno_types::routes::RouteKind;
use leno_types::traffic::{
    Abort, Algorithm, Balancing, Delay, Ejection, Faults, HashOn, Hedging, LimitKey, PolicyScope,
    PolicySource, RateLimit, RequestShare, Retries, RetryBackoff, RetryBudget, RetryConditions,
    StatusRange, SuccessRate, Traffic, TrafficTimeouts, WorkerLimits,
};

use super::{DecodeError, bounded, port};
use crate::proto;

/// The largest number of policies of one service, and of limits of one workload. All policies are evaluated when one
/// changes, and all limits for every request.
const MAX_POLICIES: usize = 1_000;
/// The largest number of entries of a list in a policy.
const MAX_ENTRIES: usize = 100;

pub(super) fn traffic(messages: Vec<proto::Traffic>) -> Result<Arc<[Arc<Traffic>]>, DecodeError> {
    bounded("traffic policies", messages.len(), MAX_POLICIES)?;
    messages.into_iter().map(|message| one(message).map(Arc::new)).collect()
}

pub(super) fn rate_limits(
    messages: Vec<proto::RateLimit>,
) -> Result<Arc<[RateLimit]>, DecodeError> {
    bounded("rate limits", messages.len(), MAX_POLICIES)?;
    messages.into_iter().map(rate_limit).collect()
}

fn one(message: proto::Traffic) -> Result<Traffic, DecodeError> {
    let hedging = |hedging: proto::Hedging| Hedging {
        delay: Duration::from_millis(hedging.delay_ms),
        percentile: u16::try_from(hedging.percentile).ok().filter(|percentile| *percentile > 0),
        copies: hedging.copies,
        non_idempotent: hedging.non_idempotent,
    };
    let limits = |limits: proto::TrafficLimits| WorkerLimits {
        connections: limits.connections,
        requests: limits.requests,
        pending: limits.pending,
        requests_per_endpoint: limits.requests_per_endpoint,
        adaptive: limits.adaptive,
    };
    Ok(Traffic {
        source: source(message.source),
        scope: scope(message.scope)?,
        retries: message.retries.map(retries).transpose()?,
        timeouts: timeouts(message.timeouts.unwrap_or_default()),
        hedging: message.hedging.map(hedging),
        limits: message.limits.map(limits),
        ejection: message.ejection.map(ejection).transpose()?,
        balancing: message.balancing.map(balancing).transpose()?,
        faults: message.faults.map(faults).transpose()?,
    })
}

fn rate_limit(message: proto::RateLimit) -> Result<RateLimit, DecodeError> {
    use proto::rate_limit::Key;
    Ok(RateLimit {
        source: source(message.source),
        port: match message.port {
            0 => None,
            number => Some(port(number)?),
        },
        key: match message.key {
            None | Some(Key::Client(false)) => LimitKey::Workload,
            Some(Key::Client(true)) => LimitKey::Client,
            Some(Key::Header(name)) => LimitKey::Header(name.into()),
        },
        requests: message.requests,
        per: span(message.per_ms),
        burst: message.burst,
        is_global: message.global,
    })
}

pub(super) fn source(message: Option<proto::PolicySource>) -> PolicySource {
    let proto::PolicySource { created, namespace, name } = message.unwrap_or_default();
    PolicySource { created, namespace: namespace.into(), name: name.into() }
}

fn scope(message: Option<proto::traffic::Scope>) -> Result<PolicyScope, DecodeError> {
    use proto::traffic::Scope as Message;
    Ok(match message {
        None => PolicyScope::Service,
        Some(Message::Port(number)) => PolicyScope::Port(port(number)?),
        Some(Message::Route(route)) => PolicyScope::Route {
            kind: match proto::RouteKind::try_from(route.kind) {
                Ok(proto::RouteKind::Http) => RouteKind::Http,
                Ok(proto::RouteKind::Grpc) => RouteKind::Grpc,
                Ok(proto::RouteKind::Tls) => RouteKind::Tls,
                Ok(proto::RouteKind::Tcp) => RouteKind::Tcp,
                Err(_) => return Err(unknown("kind of route", route.kind)),
            },
            namespace: route.namespace.into(),
            name: route.name.into(),
            rule: (!route.rule.is_empty()).then(|| route.rule.into()),
        },
    })
}

fn unknown(field: &'static str, number: impl Into<i64>) -> DecodeError {
    DecodeError::Number { field, number: number.into() }
}

/// A time that must not be zero, because zero as a limit or an interval would cause a division by zero.
fn span(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds.max(1))
}

fn time(milliseconds: u64) -> Option<Duration> {
    (milliseconds > 0).then(|| Duration::from_millis(milliseconds))
}

fn retries(message: proto::Retries) -> Result<Retries, DecodeError> {
    bounded("statuses", message.statuses.len(), MAX_ENTRIES)?;
    bounded("gRPC statuses", message.grpc_statuses.len(), MAX_ENTRIES)?;
    let grpc = |status: u32| u8::try_from(status).map_err(|_| unknown("gRPC status", status));
    Ok(Retries {
        attempts: message.attempts,
        statuses: message.statuses.into_iter().map(range).collect::<Result<_, _>>()?,
        grpc_statuses: message.grpc_statuses.into_iter().map(grpc).collect::<Result<_, _>>()?,
        on: RetryConditions {
            connect_failure: message.connect_failure,
            reset: message.reset,
            refused_stream: message.refused_stream,
            timeout: message.timeout,
        },
        non_idempotent: message.non_idempotent,
        per_try_timeout: time(message.per_try_timeout_ms),
        backoff: RetryBackoff {
            base: Duration::from_millis(message.backoff_ms),
            max: Duration::from_millis(message.max_backoff_ms),
        },
        budget: RetryBudget {
            percent: message.budget_percent,
            min_per_second: message.budget_min_per_second,
        },
        max_retry_after: Duration::from_millis(message.max_retry_after_ms),
    })
}

fn range(message: proto::StatusRange) -> Result<StatusRange, DecodeError> {
    Ok(StatusRange { from: status(message.from)?, to: status(message.to)? })
}

fn status(number: u32) -> Result<u16, DecodeError> {
    u16::try_from(number).map_err(|_| unknown("status", number))
}

fn percent(number: u32) -> Result<u8, DecodeError> {
    u8::try_from(number).map_err(|_| unknown("percentage", number))
}

fn timeouts(message: proto::Timeouts) -> TrafficTimeouts {
    TrafficTimeouts {
        request: time(message.request_ms),
        response: time(message.response_ms),
        idle: time(message.idle_ms),
        stream: time(message.stream_ms),
    }
}

fn ejection(message: proto::Ejection) -> Result<Ejection, DecodeError> {
    let rate = |rate: proto::SuccessRate| SuccessRate {
        interval: span(rate.interval_ms),
        minimum_requests: rate.minimum_requests,
        deviations_percent: rate.deviations_percent,
    };
    Ok(Ejection {
        consecutive_failures: (message.consecutive_failures > 0)
            .then_some(message.consecutive_failures),
        success_rate: message.success_rate.map(rate),
        base: span(message.base_ms),
        max: span(message.max_ms),
        max_percent: percent(message.max_percent)?,
        panic_percent: percent(message.panic_percent)?,
    })
}

fn balancing(message: proto::Balancing) -> Result<Balancing, DecodeError> {
    use proto::BalancingAlgorithm as Name;
    use proto::balancing::Hash;
    let on = match message.hash {
        Some(Hash::Header(name)) => HashOn::Header(name.into()),
        Some(Hash::Cookie(name)) => HashOn::Cookie(name.into()),
        None => HashOn::Source,
    };
    let algorithm = match Name::try_from(message.algorithm) {
        Ok(Name::PeakEwma) => Algorithm::PeakEwma,
        Ok(Name::LeastRequest) => Algorithm::LeastRequest,
        Ok(Name::RoundRobin) => Algorithm::RoundRobin,
        Ok(Name::Random) => Algorithm::Random,
        Ok(Name::RingHash) => Algorithm::RingHash(on),
        Ok(Name::Maglev) => Algorithm::Maglev(on),
        // Reject an algorithm that only later versions know, instead of guessing: sessions may depend on it.
        Err(_) => return Err(unknown("balancing algorithm", message.algorithm)),
    };
    Ok(Balancing {
        algorithm: Some(algorithm),
        slow_start: time(message.slow_start_ms),
        session_cookie: (!message.session_cookie.is_empty()).then(|| message.session_cookie.into()),
        overflow: message.overflow,
    })
}

fn faults(message: proto::Faults) -> Result<Faults, DecodeError> {
    let delay =
        time(message.delay_ms).map(|by| Delay { by, share: RequestShare(message.delay_share) });
    let abort = match message.abort_status {
        0 => None,
        number => Some(Abort { status: status(number)?, share: RequestShare(message.abort_share) }),
    };
    Ok(Faults { delay, abort })
}
