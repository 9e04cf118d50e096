//! Traffic and rate limit policies: which are accepted, what they mean, and the errors of the
//! others.

use std::time::Duration;

use leno_resources::{Object, RateLimitPolicy, TrafficPolicy, parse, to_yaml};
use leno_types::traffic::{
    Algorithm, HashOn, Hedging, LimitKey, PolicyScope, RequestShare, RetryBudget, StatusRange,
    TrafficTimeouts,
};

const FULL: &str = "\
apiVersion: leno.dev/v1alpha1
kind: TrafficPolicy
metadata: {name: cart, namespace: shop}
spec:
  targetRefs:
  - {group: '', kind: Service, name: cart, sectionName: http}
  retries:
    attempts: 3
    on: [connect-failure, reset, refused-stream, timeout, 5xx, 429, UNAVAILABLE]
    nonIdempotent: true
    perTryTimeout: 250ms
    backoff: 10ms
    maxBackoff: 1s
    maxRetryAfter: 2s
    budget: {percent: 25, minPerSecond: 5}
  timeouts: {request: 10s, response: 5s, idle: 1m, stream: 1h}
  hedging: {delay: 50ms, percentile: 99.5, copies: 2, nonIdempotent: true}
  limits: {connections: 9, requests: 200, pending: 50, requestsPerEndpoint: 20, adaptive: true}
  ejection:
    consecutiveFailures: 5
    successRate: {interval: 5s, minimumRequests: 20, deviations: 2.5}
    base: 2s
    max: 2m
    maxPercent: 40
    panicPercent: 20
  balancing:
    algorithm: Maglev
    hash: {header: X-User}
    sessionCookie: stick
    slowStart: 30s
    overflow: 8
  faults:
    delay: {by: 100ms, percent: 0.5}
    abort: {status: 503, percent: 10}
";

const LIMITS: &str = "\
apiVersion: leno.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: cart, namespace: shop}
spec:
  targetRefs: [{group: leno.dev, kind: Workload, name: cart}]
  limits:
  - {requests: 100}
  - {requests: 10, per: 1m, burst: 3, by: {header: X-User}}
  - {requests: 50, by: {client: true}, scope: Instance}
";

fn policy(text: &str) -> TrafficPolicy {
    let documents = parse("p.yaml", text).expect("it is taken");
    match &documents.objects[0].value {
        Object::TrafficPolicy(policy) => (**policy).clone(),
        other => panic!("{other:?}"),
    }
}

fn rate_limits(text: &str) -> RateLimitPolicy {
    let documents = parse("p.yaml", text).expect("it is taken");
    match &documents.objects[0].value {
        Object::RateLimitPolicy(policy) => (**policy).clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_part_is_read_and_told() {
    let traffic = policy(FULL).traffic(PolicyScope::Port(80));
    assert_eq!((&*traffic.source.namespace, &*traffic.source.name), ("shop", "cart"));
    assert_eq!(traffic.scope, PolicyScope::Port(80));
    let retries = traffic.retries.unwrap();
    assert_eq!(
        retries.statuses,
        [StatusRange { from: 500, to: 599 }, StatusRange { from: 429, to: 429 }]
    );
    assert_eq!((retries.attempts, retries.grpc_statuses), (3, vec![14]));
    let on = retries.on;
    assert!(on.connect_failure && on.reset && on.refused_stream && on.timeout);
    assert!(retries.non_idempotent);
    assert_eq!(retries.budget, RetryBudget { percent: 25, min_per_second: 5 });
    assert_eq!(retries.backoff.base, Duration::from_millis(10));
    assert_eq!(retries.backoff.max, Duration::from_secs(1));
    let seconds = |seconds| Some(Duration::from_secs(seconds));
    assert_eq!(
        traffic.timeouts,
        TrafficTimeouts {
            request: seconds(10),
            response: seconds(5),
            idle: seconds(60),
            stream: seconds(3600)
        }
    );
    assert_eq!(
        traffic.hedging,
        Some(Hedging {
            delay: Duration::from_millis(50),
            percentile: Some(995),
            copies: 2,
            non_idempotent: true
        })
    );
    let limits = traffic.limits.unwrap();
    assert_eq!(limits.connections, Some(9));
    assert_eq!((limits.requests, limits.pending, limits.adaptive), (Some(200), Some(50), true));
    let ejection = traffic.ejection.unwrap();
    assert_eq!((ejection.consecutive_failures, ejection.max_percent), (Some(5), 40));
    assert_eq!(ejection.success_rate.unwrap().deviations_percent, 250);
    let balancing = traffic.balancing.unwrap();
    assert_eq!(balancing.algorithm, Some(Algorithm::Maglev(HashOn::Header("x-user".into()))));
    assert_eq!(balancing.session_cookie.as_deref(), Some("stick"));
    assert_eq!(balancing.overflow, Some(8));
    let faults = traffic.faults.unwrap();
    assert_eq!(faults.delay.unwrap().share, RequestShare(5_000));
    assert_eq!(faults.abort.unwrap().share, RequestShare(100_000));
}

#[test]
fn what_is_left_out_is_left_to_others() {
    let text = "apiVersion: leno.dev/v1alpha1\nkind: TrafficPolicy\nmetadata: {name: p}\nspec:\n  \
        targetRefs: [{group: '', kind: Service, name: web}]\n  retries: {on: [503]}\n";
    let traffic = policy(text).traffic(PolicyScope::Service);
    assert!(traffic.limits.is_none() && traffic.ejection.is_none() && traffic.faults.is_none());
    let retries = traffic.retries.unwrap();
    assert_eq!((retries.attempts, retries.budget), (1, RetryBudget::default()));
    assert!(!retries.non_idempotent && retries.per_try_timeout.is_none());
}

#[test]
fn limits_are_told() {
    let limits = rate_limits(LIMITS).limits(Some(8080));
    let keys: Vec<_> = limits.iter().map(|limit| limit.key.clone()).collect();
    let header = LimitKey::Header("x-user".into());
    assert_eq!(keys, [LimitKey::Workload, header, LimitKey::Client]);
    assert_eq!((limits[0].requests, limits[0].burst), (100, 100));
    assert_eq!((limits[1].per, limits[1].burst), (Duration::from_secs(60), 3));
    assert!(limits.iter().all(|limit| !limit.is_global));
    assert!(limits.iter().all(|limit| limit.port == Some(8080)));
}

#[test]
fn policies_are_written_as_they_were_read() {
    for text in [FULL, LIMITS] {
        let object = parse("p.yaml", text).unwrap().objects[0].value.clone();
        let again = parse("again.yaml", &to_yaml(&object)).unwrap();
        assert_eq!(again.objects[0].value, object);
    }
}

/// A text in [`FULL`], its replacement, and the resulting error.
const OF_TRAFFIC: &[(&str, &str, &str)] = &[
    (
        "kind: Service, name: cart",
        "kind: Secret, name: cart",
        "p.yaml:6:23: spec.targetRefs[0].kind: Secret of group \"\" cannot be a target: use Service of group",
    ),
    ("attempts: 3", "attempts: 11", "p.yaml:8:15: spec.retries.attempts: is not from 1 to 10"),
    ("5xx", "2xx", "spec.retries.on[4]: \"2xx\" is not a failure that can be retried: use"),
    ("UNAVAILABLE", "OK", "spec.retries.on[6]: \"OK\" is not a failure"),
    (
        "perTryTimeout: 250ms",
        "perTryTimeout: 250",
        "spec.retries.perTryTimeout: 250 has no unit: write a duration, such as 10s",
    ),
    ("perTryTimeout: 250ms", "perTryTimeout: 0s", "spec.retries.perTryTimeout: is 0"),
    (
        "perTryTimeout: 250ms",
        "perTryTimeout: 11s",
        "spec.timeouts.request: is shorter than retries.perTryTimeout",
    ),
    ("maxBackoff: 1s", "maxBackoff: 1ms", "spec.retries.maxBackoff: is shorter than backoff"),
    ("percent: 25", "percent: 1001", "spec.retries.budget.percent: is more than 1000"),
    ("copies: 2", "copies: 9", "spec.hedging.copies: is not from 1 to 3"),
    ("percentile: 99.5", "percentile: 10", "spec.hedging.percentile: 10 is not from 50 to 99.9"),
    ("delay: 50ms, percentile: 99.5, ", "", "spec.hedging: has no condition for a copy"),
    ("connections: 9", "connections: 0", "spec.limits.connections: 0 rejects everything"),
    ("overflow: 8", "overflow: 0", "spec.balancing.overflow: 0 would prefer no endpoint"),
    (
        "group: '', kind: Service,",
        "group: gateway.networking.k8s.io, kind: HTTPRoute,",
        "spec.ejection: applies to endpoints, and a route has none",
    ),
    ("requests: 200", "requests: 0", "spec.limits.requests: 0 rejects everything"),
    (
        "requests: 200, pending: 50, requestsPerEndpoint: 20, adaptive: true",
        "pending: 50",
        "spec.limits.pending: has no effect without a limit",
    ),
    (
        "consecutiveFailures: 5",
        "consecutiveFailures: 0",
        "spec.ejection.consecutiveFailures: 0 would eject every endpoint",
    ),
    ("maxPercent: 40", "maxPercent: 101", "spec.ejection.maxPercent: 101 is not from 0 to 100"),
    ("algorithm: Maglev", "algorithm: Random", "spec.balancing.hash: has no effect"),
    ("    hash: {header: X-User}\n", "", "spec.balancing.algorithm: needs a key to hash"),
    (
        "{header: X-User}",
        "{header: X-User, source: true}",
        "spec.balancing.hash: must have exactly one key",
    ),
    (
        "{header: X-User}",
        "{header: 'X User'}",
        "spec.balancing.hash.header: \"X User\" is not the name",
    ),
    (
        "algorithm: Maglev",
        "algorithm: Best",
        "spec.balancing.algorithm: \"Best\" is not one of PeakEwma",
    ),
    ("percent: 0.5", "percent: 101", "spec.faults.delay.percent: 101 is not from 0 to 100"),
    ("status: 503", "status: 42", "spec.faults.abort.status: 42 is not from 200 to 599"),
    ("  faults:", "  foults:", "spec.foults: unknown field"),
];

/// The changes of [`LIMITS`], and the problem that each causes.
const OF_LIMITS: &[(&str, &str, &str)] = &[
    (
        "kind: Workload",
        "kind: Service",
        "spec.targetRefs[0].kind: Service of group \"leno.dev\" cannot be a target",
    ),
    ("burst: 3", "burst: 0", "spec.limits[1].burst: 0 rejects every request"),
    ("per: 1m", "per: 25h", "spec.limits[1].per: is longer than 24h"),
    ("{client: true}", "{client: true, header: X}", "spec.limits[2].by: must have exactly one key"),
    ("scope: Instance", "scope: Everywhere", "spec.limits[2].scope: \"Everywhere\" is not one of "),
    ("scope: Instance", "scope: Global", "spec.limits[2].by: has no effect with scope: Global"),
    (
        "name: cart}]",
        "name: cart, sectionName: x}]",
        "spec.targetRefs[0].sectionName: names a port of a Service or a rule",
    ),
];

#[test]
fn every_mistake_says_where_and_what_to_do() {
    for (from, to, expected) in OF_TRAFFIC {
        let text = FULL.replacen(from, to, 1);
        assert_ne!(text, FULL, "{from}");
        refused(&text, expected);
    }
    for (from, to, expected) in OF_LIMITS {
        let text = LIMITS.replacen(from, to, 1);
        assert_ne!(text, LIMITS, "{from}");
        refused(&text, expected);
    }
    let nothing = "apiVersion: leno.dev/v1alpha1\nkind: TrafficPolicy\nmetadata: {name: p}\nspec:\n  \
        targetRefs: [{group: '', kind: Service, name: web}]\n";
    refused(nothing, "spec: sets nothing: set retries");
    refused(
        &nothing.replace("[{group: '', kind: Service, name: web}]", "[]"),
        "spec.targetRefs: is empty",
    );
}

fn refused(text: &str, expected: &str) {
    let problems = parse("p.yaml", text).expect_err(expected);
    let found: Vec<String> = problems.iter().map(ToString::to_string).collect();
    assert!(found.iter().any(|problem| problem.contains(expected)), "{expected}: {found:#?}");
}
