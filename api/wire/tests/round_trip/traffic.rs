//! Generates traffic policies and rate limits of every shape. Times are in whole milliseconds, and
//! not zero in fields where zero means that the time is not set.

use std::sync::Arc;
use std::time::Duration;

use leno_types::routes::RouteKind;
use leno_types::traffic::{
    Abort, Algorithm, Balancing, Delay, Ejection, Faults, HashOn, Hedging, LimitKey, PolicyScope,
    PolicySource, RateLimit, RequestShare, Retries, RetryBackoff, RetryBudget, RetryConditions,
    StatusRange, SuccessRate, Traffic, TrafficTimeouts, WorkerLimits,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

fn text() -> impl Strategy<Value = Arc<str>> {
    "[a-z-]{1,6}".prop_map(Into::into)
}

fn time() -> impl Strategy<Value = Duration> {
    (1_u64..100_000).prop_map(Duration::from_millis)
}

fn wait() -> impl Strategy<Value = Duration> {
    (0_u64..100_000).prop_map(Duration::from_millis)
}

prop_compose! {
    fn source()(created in any::<u64>(), namespace in text(), name in text()) -> PolicySource {
        PolicySource { created, namespace, name }
    }
}

fn scope() -> impl Strategy<Value = PolicyScope> {
    let kinds = select(vec![RouteKind::Http, RouteKind::Grpc]);
    prop_oneof![
        Just(PolicyScope::Service),
        (1_u16..).prop_map(PolicyScope::Port),
        (kinds, text(), text(), option::of(text())).prop_map(|(kind, namespace, name, rule)| {
            PolicyScope::Route { kind, namespace, name, rule }
        }),
    ]
}

prop_compose! {
    fn retries()(
        attempts in any::<u32>(),
        statuses in vec((400_u16..500, 500_u16..600), 0..3),
        grpc_statuses in vec(1_u8..17, 0..3),
        (connect_failure, reset, refused_stream, timeout) in any::<(bool, bool, bool, bool)>(),
        non_idempotent in any::<bool>(),
        per_try_timeout in option::of(time()),
        (base, max, max_retry_after) in (wait(), wait(), wait()),
        (percent, min_per_second) in any::<(u32, u32)>(),
    ) -> Retries {
        let range = |(from, to)| StatusRange { from, to };
        Retries {
            attempts,
            statuses: statuses.into_iter().map(range).collect(),
            grpc_statuses,
            on: RetryConditions { connect_failure, reset, refused_stream, timeout },
            non_idempotent,
            per_try_timeout,
            backoff: RetryBackoff { base, max },
            budget: RetryBudget { percent, min_per_second },
            max_retry_after,
        }
    }
}

prop_compose! {
    fn timeouts()(
        request in option::of(time()), response in option::of(time()),
        idle in option::of(time()), stream in option::of(time()),
    ) -> TrafficTimeouts {
        TrafficTimeouts { request, response, idle, stream }
    }
}

prop_compose! {
    fn limits()(
        (connections, requests, pending, requests_per_endpoint) in
            any::<(Option<u32>, Option<u32>, Option<u32>, Option<u32>)>(),
        adaptive in any::<bool>(),
    ) -> WorkerLimits {
        WorkerLimits { connections, requests, pending, requests_per_endpoint, adaptive }
    }
}

prop_compose! {
    fn ejection()(
        consecutive_failures in option::of(1_u32..),
        rate in option::of((time(), any::<u32>(), any::<u32>())),
        (base, max) in (time(), time()),
        (max_percent, panic_percent) in any::<(u8, u8)>(),
    ) -> Ejection {
        let success_rate = rate.map(|(interval, minimum_requests, deviations_percent)| {
            SuccessRate { interval, minimum_requests, deviations_percent }
        });
        Ejection { consecutive_failures, success_rate, base, max, max_percent, panic_percent }
    }
}

fn hash_on() -> impl Strategy<Value = HashOn> {
    prop_oneof![
        text().prop_map(HashOn::Header),
        text().prop_map(HashOn::Cookie),
        Just(HashOn::Source),
    ]
}

prop_compose! {
    fn balancing()(
        algorithm in prop_oneof![
            select(vec![Algorithm::PeakEwma, Algorithm::LeastRequest, Algorithm::RoundRobin,
                Algorithm::Random]),
            hash_on().prop_map(Algorithm::RingHash),
            hash_on().prop_map(Algorithm::Maglev),
        ],
        slow_start in option::of(time()),
        session_cookie in option::of(text()),
        overflow in any::<Option<u32>>(),
    ) -> Balancing {
        Balancing { algorithm: Some(algorithm), slow_start, session_cookie, overflow }
    }
}

prop_compose! {
    fn faults()(
        delay in option::of((time(), any::<u32>())),
        abort in option::of((200_u16..600, any::<u32>())),
    ) -> Faults {
        Faults {
            delay: delay.map(|(by, share)| Delay { by, share: RequestShare(share) }),
            abort: abort.map(|(status, share)| Abort { status, share: RequestShare(share) }),
        }
    }
}

prop_compose! {
    fn policy()(
        (source, scope) in (source(), scope()),
        retries in option::of(retries()),
        timeouts in timeouts(),
        hedging in option::of((time(), option::of(1_u16..), any::<(u32, bool)>())),
        limits in option::of(limits()),
        ejection in option::of(ejection()),
        balancing in option::of(balancing()),
        faults in option::of(faults()),
    ) -> Traffic {
        let hedging = hedging.map(|(delay, percentile, (copies, non_idempotent))| Hedging {
            delay, percentile, copies, non_idempotent,
        });
        Traffic {
            source, scope, retries, timeouts, hedging, limits, ejection, balancing, faults,
        }
    }
}

pub(crate) fn traffic() -> impl Strategy<Value = Arc<[Arc<Traffic>]>> {
    vec(policy().prop_map(Arc::new), 0..3).prop_map(Into::into)
}

prop_compose! {
    fn rate_limit()(
        source in source(),
        port in option::of(1_u16..),
        key in prop_oneof![
            Just(LimitKey::Workload), Just(LimitKey::Client), text().prop_map(LimitKey::Header)],
        (requests, burst) in any::<(u32, u32)>(),
        per in time(),
        is_global in any::<bool>(),
    ) -> RateLimit {
        RateLimit { source, port, key, requests, per, burst, is_global }
    }
}

pub(crate) fn rate_limits() -> impl Strategy<Value = Arc<[RateLimit]>> {
    vec(rate_limit(), 0..3).prop_map(Into::into)
}
