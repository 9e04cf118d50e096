//! Checks of `TrafficPolicy` and `RateLimitPolicy`, and of the targets of all policies.

use std::time::Duration as Time;

use super::{Check, Cursor, Name};
use crate::duration::Duration;
use crate::metadata::Metadata;
use crate::ratelimit::{LimitScope, MAX_LIMITS, RateLimitPolicy, RateLimitSpec};
use crate::traffic::{
    AlgorithmName, BalancingSpec, EjectionSpec, FaultsSpec, HashSpec, HedgingSpec, LimitsSpec,
    PolicyTarget, RetriesSpec, RetryOn, TimeoutsSpec, TrafficPolicy, TrafficPolicySpec,
};

/// The largest number of targets of one policy, as in the Gateway API (GEP-713).
const MAX_TARGETS: usize = 16;
/// The largest number of retries of a request. With more, the retries themselves would overload a service.
const MAX_ATTEMPTS: u32 = 10;
/// The largest number of entries in `retries.on`. There are fewer distinct values.
const MAX_ON: usize = 64;
/// The largest number of copies of a hedged request.
const MAX_COPIES: u32 = 3;
/// The longest name of a cookie or header.
const MAX_TOKEN: usize = 256;
/// The longest period of a rate limit. Proxies keep the counts in memory.
const MAX_PERIOD: Time = Time::from_secs(24 * 3600);

const GATEWAY: &str = "gateway.networking.k8s.io";
const OWN: &str = "leno.dev";

pub(super) fn traffic_policy(check: &mut Check<'_>, at: &Cursor<'_>, policy: &TrafficPolicy) {
    metadata(check, at, &policy.metadata);
    let at = at.key("spec");
    let spec = &policy.spec;
    let kinds = [("", "Service"), (GATEWAY, "HTTPRoute"), (GATEWAY, "GRPCRoute")];
    targets(check, &at.key("targetRefs"), &spec.target_refs, &kinds);
    not_of_routes(check, &at, spec);
    if let Some(part) = &spec.retries {
        retries(check, &at.key("retries"), part);
    }
    if let Some(part) = &spec.timeouts {
        timeouts(check, &at.key("timeouts"), part, spec.retries.as_ref());
    }
    if let Some(part) = &spec.hedging {
        hedging(check, &at.key("hedging"), part);
    }
    if let Some(part) = &spec.limits {
        limits(check, &at.key("limits"), part);
    }
    if let Some(part) = &spec.ejection {
        ejection(check, &at.key("ejection"), part);
    }
    if let Some(part) = &spec.balancing {
        balancing(check, &at.key("balancing"), part);
    }
    if let Some(part) = &spec.faults {
        faults(check, &at.key("faults"), part);
    }
    if is_empty(policy) {
        check.fail(
            &at,
            "sets nothing: set retries, timeouts, hedging, limits, ejection, balancing or faults",
        );
    }
}

/// Rejects parts that concern a service's endpoints in a policy of a route.
fn not_of_routes(check: &mut Check<'_>, at: &Cursor<'_>, spec: &TrafficPolicySpec) {
    if spec.target_refs.iter().all(|target| target.kind == "Service") {
        return;
    }
    for (key, is_there) in [
        ("limits", spec.limits.is_some()),
        ("ejection", spec.ejection.is_some()),
        ("balancing", spec.balancing.is_some()),
    ] {
        if is_there {
            let reason = "applies to endpoints, and a route has none: set it in another policy, attached \
                          to their Service";
            check.fail(&at.key(key), reason);
        }
    }
}

/// Whether a policy sets no part.
fn is_empty(policy: &TrafficPolicy) -> bool {
    let TrafficPolicySpec { target_refs, .. } = &policy.spec;
    let empty = TrafficPolicySpec { target_refs: target_refs.clone(), ..Default::default() };
    policy.spec == empty
}

pub(super) fn rate_limit_policy(check: &mut Check<'_>, at: &Cursor<'_>, policy: &RateLimitPolicy) {
    metadata(check, at, &policy.metadata);
    let at = at.key("spec");
    let spec = &policy.spec;
    let kinds = [("", "Service"), (OWN, "Workload")];
    targets(check, &at.key("targetRefs"), &spec.target_refs, &kinds);
    let at = at.key("limits");
    if spec.limits.is_empty() {
        check.fail(&at, "is empty: name at least one limit");
    }
    if spec.limits.len() > MAX_LIMITS {
        check.fail(&at, format!("{} are more than {MAX_LIMITS}", spec.limits.len()));
    }
    for (index, limit) in spec.limits.iter().enumerate() {
        rate_limit(check, &at.index(index), limit);
    }
}

fn rate_limit(check: &mut Check<'_>, at: &Cursor<'_>, limit: &RateLimitSpec) {
    positive(check, &at.key("per"), limit.per);
    if limit.per.is_some_and(|per| per.0 > MAX_PERIOD) {
        check.fail(
            &at.key("per"),
            "is longer than 24h: proxies keep counts in memory only, so use 24h or less",
        );
    }
    if limit.burst == Some(0) && limit.requests > 0 {
        check.fail(&at.key("burst"), "0 rejects every request: use 1 or more, or requests: 0");
    }
    if limit.scope == Some(LimitScope::Global) && limit.by.is_some() {
        let reason = "has no effect with scope: Global, which counts all requests together: remove one \
                      of the two";
        check.fail(&at.key("by"), reason);
    }
    if let Some(by) = &limit.by {
        let at = at.key("by");
        if by.client == by.header.is_some() {
            check.fail(&at, "must have exactly one key: use either client: true or header: NAME");
        }
        token(check, &at.key("header"), by.header.as_deref());
    }
}

pub(super) fn metadata(check: &mut Check<'_>, at: &Cursor<'_>, metadata: &Metadata) {
    let at = at.key("metadata");
    check.name(&at.key("name"), &metadata.name, Name::Subdomain);
    check.label(&at.key("namespace"), "namespace", &metadata.namespace);
    check.own_settings(&at.key("annotations"), &metadata.annotations);
    check.own_settings(&at.key("labels"), &metadata.labels);
}

pub(super) fn targets(
    check: &mut Check<'_>,
    at: &Cursor<'_>,
    targets: &[PolicyTarget],
    kinds: &[(&str, &str)],
) {
    if targets.is_empty() {
        check.fail(at, "is empty, so the policy has no effect: name at least one target");
    }
    if targets.len() > MAX_TARGETS {
        check.fail(at, format!("{} are more than {MAX_TARGETS}", targets.len()));
    }
    for (index, target) in targets.iter().enumerate() {
        let at = at.index(index);
        target_kind(check, &at, target, kinds);
        if target.section_name.is_some() && target.kind == "Workload" {
            let reason = "names a port of a Service or a rule of a route; remove it for a Workload";
            check.fail(&at.key("sectionName"), reason);
        }
        if targets[..index].contains(target) {
            check.fail(&at, "is the same as an earlier one");
        }
    }
}

/// Checks the name of a target, and that its group and kind are among these.
pub(super) fn target_kind(
    check: &mut Check<'_>,
    at: &Cursor<'_>,
    target: &PolicyTarget,
    kinds: &[(&str, &str)],
) {
    check.name(&at.key("name"), &target.name, Name::Subdomain);
    let (group, kind) = (target.group.as_str(), target.kind.as_str());
    if !kinds.contains(&(group, kind)) {
        let list: Vec<_> = kinds.iter().map(|(g, k)| format!("{k} of group {g:?}")).collect();
        let reason =
            format!("{kind} of group {group:?} cannot be a target: use {}", list.join(", "));
        check.fail(&at.key("kind"), reason);
    }
}

fn retries(check: &mut Check<'_>, at: &Cursor<'_>, retries: &RetriesSpec) {
    if retries.attempts.is_some_and(|attempts| !(1..=MAX_ATTEMPTS).contains(&attempts)) {
        check.fail(&at.key("attempts"), format!("is not from 1 to {MAX_ATTEMPTS}"));
    }
    let on = at.key("on");
    if retries.on.is_empty() {
        check.fail(&on, "is empty: name the failures to retry, such as [connect-failure, 503]");
    }
    if retries.on.len() > MAX_ON {
        check.fail(&on, format!("{} are more than {MAX_ON}", retries.on.len()));
    }
    for (index, trigger) in retries.on.iter().enumerate() {
        let text = &trigger.0;
        if RetryOn::parse(text).is_none() {
            let reason = format!(
                "{text:?} is not a failure that can be retried: use connect-failure, reset, refused-stream, timeout, a status of 400 to 599, 4xx, 5xx, or a gRPC status such as UNAVAILABLE"
            );
            check.fail(&on.index(index), reason);
        }
    }
    positive(check, &at.key("perTryTimeout"), retries.per_try_timeout);
    let bounds = (retries.backoff, retries.max_backoff);
    if let (Some(base), Some(max)) = bounds
        && max.0 < base.0
    {
        check.fail(&at.key("maxBackoff"), "is shorter than backoff");
    }
    let budget = retries.budget.as_ref();
    if budget.is_some_and(|budget| budget.percent.is_some_and(|percent| percent > 1000)) {
        check.fail(
            &at.key("budget").key("percent"),
            "is more than 1000, which is ten retries per request",
        );
    }
}

fn hedging(check: &mut Check<'_>, at: &Cursor<'_>, hedging: &HedgingSpec) {
    positive(check, &at.key("delay"), hedging.delay);
    match hedging.percentile {
        None if hedging.delay.is_none() => {
            check.fail(at, "has no condition for a copy: set delay, percentile or both");
        }
        Some(percentile) if !(50.0..=99.9).contains(&percentile) => {
            check.fail(&at.key("percentile"), format!("{percentile} is not from 50 to 99.9"));
        }
        _ => {}
    }
    if hedging.copies.is_some_and(|copies| !(1..=MAX_COPIES).contains(&copies)) {
        check.fail(&at.key("copies"), format!("is not from 1 to {MAX_COPIES}"));
    }
}

fn timeouts(
    check: &mut Check<'_>,
    at: &Cursor<'_>,
    timeouts: &TimeoutsSpec,
    retries: Option<&RetriesSpec>,
) {
    for (key, timeout) in [
        ("request", timeouts.request),
        ("response", timeouts.response),
        ("idle", timeouts.idle),
        ("stream", timeouts.stream),
    ] {
        positive(check, &at.key(key), timeout);
    }
    let per_try = retries.and_then(|retries| retries.per_try_timeout);
    if let (Some(request), Some(per_try)) = (timeouts.request, per_try)
        && request.0 < per_try.0
    {
        check.fail(
            &at.key("request"),
            "is shorter than retries.perTryTimeout, which then has no effect",
        );
    }
}

fn limits(check: &mut Check<'_>, at: &Cursor<'_>, limits: &LimitsSpec) {
    for (key, limit) in [
        ("connections", limits.connections),
        ("requests", limits.requests),
        ("requestsPerEndpoint", limits.requests_per_endpoint),
    ] {
        if limit == Some(0) {
            check.fail(&at.key(key), "0 rejects everything: use 1 or more, or leave it out");
        }
    }
    if limits.pending.is_some() && limits.requests.is_none() && !limits.adaptive {
        check.fail(
            &at.key("pending"),
            "has no effect without a limit on requests: set requests, too",
        );
    }
}

fn ejection(check: &mut Check<'_>, at: &Cursor<'_>, ejection: &EjectionSpec) {
    if ejection.consecutive_failures.is_none() && ejection.success_rate.is_none() {
        check.fail(at, "ejects no endpoint: set consecutiveFailures or successRate");
    }
    if ejection.consecutive_failures == Some(0) {
        check.fail(&at.key("consecutiveFailures"), "0 would eject every endpoint: use 1 or more");
    }
    positive(check, &at.key("base"), ejection.base);
    positive(check, &at.key("max"), ejection.max);
    if let Some(rate) = &ejection.success_rate {
        let at = at.key("successRate");
        positive(check, &at.key("interval"), rate.interval);
        let sensible = |deviations: f64| (0.0..=100.0).contains(&deviations);
        if rate.deviations.is_some_and(|deviations| !sensible(deviations)) {
            check.fail(&at.key("deviations"), "is not from 0 to 100");
        }
    }
}

fn balancing(check: &mut Check<'_>, at: &Cursor<'_>, balancing: &BalancingSpec) {
    let by_hash =
        matches!(balancing.algorithm, Some(AlgorithmName::RingHash | AlgorithmName::Maglev));
    match &balancing.hash {
        Some(hash) => {
            let at = at.key("hash");
            if !by_hash {
                check.fail(&at, "has no effect: set algorithm to RingHash or Maglev");
            }
            hash_on(check, &at, hash);
        }
        None if by_hash => {
            let reason =
                "needs a key to hash: set hash to {header: NAME}, {cookie: NAME} or {source: true}";
            check.fail(&at.key("algorithm"), reason);
        }
        None => {}
    }
    token(check, &at.key("sessionCookie"), balancing.session_cookie.as_deref());
    if balancing.overflow == Some(0) {
        check.fail(
            &at.key("overflow"),
            "0 would prefer no endpoint: use 1 or more, or leave it out",
        );
    }
}

fn hash_on(check: &mut Check<'_>, at: &Cursor<'_>, hash: &HashSpec) {
    let given = [hash.header.is_some(), hash.cookie.is_some(), hash.source];
    if given.into_iter().filter(|given| *given).count() != 1 {
        check.fail(at, "must have exactly one key: use one of header, cookie and source");
    }
    token(check, &at.key("header"), hash.header.as_deref());
    token(check, &at.key("cookie"), hash.cookie.as_deref());
}

fn faults(check: &mut Check<'_>, at: &Cursor<'_>, faults: &FaultsSpec) {
    let mut percent = |at: &Cursor<'_>, percent: f64| {
        if !(0.0..=100.0).contains(&percent) {
            check.fail(&at.key("percent"), format!("{percent} is not from 0 to 100"));
        }
    };
    if let Some(delay) = &faults.delay {
        percent(&at.key("delay"), delay.percent);
    }
    if let Some(abort) = &faults.abort {
        let at = at.key("abort");
        percent(&at, abort.percent);
        if !(200..=599).contains(&abort.status) {
            check.fail(&at.key("status"), format!("{} is not from 200 to 599", abort.status));
        }
    }
}

fn positive(check: &mut Check<'_>, at: &Cursor<'_>, duration: Option<Duration>) {
    if duration.is_some_and(|duration| duration.0.is_zero()) {
        check.fail(at, "is 0: use 1ms or more, or leave it out");
    }
}

/// Checks the name of a header or cookie (RFC 9110 section 5.6.2).
fn token(check: &mut Check<'_>, at: &Cursor<'_>, name: Option<&str>) {
    let Some(name) = name else { return };
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if name.is_empty() || name.len() > MAX_TOKEN || !name.bytes().all(fits) {
        check.fail(at, format!("{name:?} is not the name of a header or cookie"));
    }
}
