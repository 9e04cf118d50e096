//! Merges the policies that apply to a request.
#![expect(clippy::arithmetic_side_effects, reason = "the divisor is two")]

use std::sync::Arc;
use std::time::Duration;

use leno_types::routes::{RouteKind, RouteRule};
use leno_types::traffic::{
    PolicyScope, Retries, RetryBackoff, RetryBudget, RetryConditions, StatusRange, Traffic,
    TrafficTimeouts,
};

/// The longest `Retry-After` for which to wait if no policy sets a limit. A policy has the same default.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(5);

/// How much earlier than the rule's own timeout an attempt is ended.
const MOMENT: Duration = Duration::from_millis(1);

/// The rule of a route that a request follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleName<'a> {
    /// The kind of the route.
    pub kind: RouteKind,
    /// The namespace of the route.
    pub namespace: &'a str,
    /// The name of the route.
    pub name: &'a str,
    /// The name of the rule, if it has one.
    pub rule: Option<&'a str>,
}

/// The effective policy of a request to `port` that follows `route`. Each part comes from the
/// policy with the narrowest scope that sets it: a rule before a route, a route before a port, a
/// port before a service. Of two policies with the same scope the older one wins, then the first by
/// namespace and name, as in the Gateway API.
#[must_use]
pub fn effective(policies: &[Arc<Traffic>], port: u16, route: Option<RuleName<'_>>) -> Traffic {
    let mut holding: Vec<&Traffic> = policies.iter().map(|policy| &**policy).collect();
    holding.retain(|policy| narrowness(&policy.scope, port, route).is_some());
    holding.sort_by_key(|policy| {
        (std::cmp::Reverse(narrowness(&policy.scope, port, route)), &policy.source)
    });
    let mut merged = Traffic::default();
    for policy in holding.iter().rev() {
        overlay(&mut merged, policy);
    }
    merged
}

/// Adds the retries that the rule itself sets (GEP-1731), which take precedence over those of any policy. A rule has no
/// fields for the budget, non-idempotent methods, the timeout per attempt and the longest `Retry-After`, so the
/// policy's values are kept. Without a policy, the number of attempts is the only bound, as the Gateway API specifies.
#[must_use]
pub fn with_rule(mut traffic: Traffic, rule: &RouteRule) -> Traffic {
    let Some(retry) = &rule.retry else { return traffic };
    let before = traffic.retries.take();
    let attempts = retry.attempts.unwrap_or(1);
    let free = RetryBudget { percent: attempts.saturating_mul(100), ..RetryBudget::default() };
    // The attempt ends a little before the rule's timeout, so that an attempt that is late can be distinguished from a
    // request that has timed out.
    let of_try =
        rule.timeouts.backend_request.map(|time| time.saturating_sub(MOMENT).max(time / 2));
    let per_try = before.as_ref().and_then(|retries| retries.per_try_timeout);
    // A wait is shortened at random by up to half of it. With twice the rule's backoff, no wait is shorter than the
    // backoff.
    let backoff = retry
        .backoff
        .map(|least| RetryBackoff { base: least.saturating_mul(2), max: least.saturating_mul(2) });
    traffic.retries = Some(Retries {
        attempts,
        statuses: retry.codes.iter().map(|code| StatusRange::one(*code)).collect(),
        grpc_statuses: Vec::new(),
        on: RetryConditions {
            connect_failure: true,
            reset: true,
            refused_stream: true,
            timeout: true,
        },
        non_idempotent: before.as_ref().is_some_and(|retries| retries.non_idempotent),
        per_try_timeout: [of_try, per_try].into_iter().flatten().min(),
        backoff: backoff.unwrap_or_default(),
        budget: before.as_ref().map_or(free, |retries| retries.budget),
        max_retry_after: before.map_or(MAX_RETRY_AFTER, |retries| retries.max_retry_after),
    });
    traffic
}

/// How narrow a scope is; `None` if the request is outside of it.
pub(crate) fn narrowness(
    scope: &PolicyScope,
    port: u16,
    route: Option<RuleName<'_>>,
) -> Option<u8> {
    match scope {
        PolicyScope::Service => Some(0),
        PolicyScope::Port(of) => (*of == port).then_some(1),
        PolicyScope::Route { kind, namespace, name, rule } => {
            let of = route?;
            let same = of.kind == *kind && of.namespace == &**namespace && of.name == &**name;
            match rule {
                None => same.then_some(2),
                Some(rule) => (same && of.rule == Some(&**rule)).then_some(3),
            }
        }
    }
}

/// Replaces those parts of `merged` that `policy` sets, and always the source and the scope.
fn overlay(merged: &mut Traffic, policy: &Traffic) {
    fn part<T: Clone>(merged: &mut Option<T>, of: &Option<T>) {
        if of.is_some() {
            merged.clone_from(of);
        }
    }
    merged.source = policy.source.clone();
    merged.scope = policy.scope.clone();
    part(&mut merged.retries, &policy.retries);
    part(&mut merged.hedging, &policy.hedging);
    part(&mut merged.limits, &policy.limits);
    part(&mut merged.ejection, &policy.ejection);
    part(&mut merged.balancing, &policy.balancing);
    part(&mut merged.faults, &policy.faults);
    let TrafficTimeouts { request, response, idle, stream } = policy.timeouts;
    part(&mut merged.timeouts.request, &request);
    part(&mut merged.timeouts.response, &response);
    part(&mut merged.timeouts.idle, &idle);
    part(&mut merged.timeouts.stream, &stream);
}

#[cfg(test)]
mod tests {
    use leno_types::routes::RouteRetry;
    use leno_types::traffic::{Faults, Hedging, PolicySource, WorkerLimits};

    use super::*;

    fn policy(name: &str, created: u64, scope: PolicyScope) -> Traffic {
        let source = PolicySource { created, namespace: "shop".into(), name: name.into() };
        Traffic { source, scope, ..Traffic::default() }
    }

    fn with_requests(requests: u32, policy: Traffic) -> Arc<Traffic> {
        let limits = WorkerLimits { requests: Some(requests), ..WorkerLimits::default() };
        Arc::new(Traffic { limits: Some(limits), ..policy })
    }

    fn requests(policies: &[Arc<Traffic>], port: u16, route: Option<RuleName<'_>>) -> Option<u32> {
        effective(policies, port, route).limits?.requests
    }

    #[test]
    fn the_narrowest_scope_holds_then_the_oldest_then_the_first_by_name() {
        let scope = |rule: Option<&str>| PolicyScope::Route {
            kind: RouteKind::Http,
            namespace: "shop".into(),
            name: "r".into(),
            rule: rule.map(Into::into),
        };
        let of = |kind, name, rule| Some(RuleName { kind, namespace: "shop", name, rule });
        let mut policies = vec![
            with_requests(1, policy("young", 20, PolicyScope::Service)),
            with_requests(2, policy("b", 10, PolicyScope::Service)),
            with_requests(3, policy("a", 10, PolicyScope::Service)),
            with_requests(4, policy("port", 30, PolicyScope::Port(80))),
            with_requests(5, policy("route", 40, scope(None))),
            with_requests(6, policy("rule", 50, scope(Some("slow")))),
        ];
        for _ in 0..policies.len() {
            policies.rotate_left(1);
            assert_eq!(requests(&policies, 81, None), Some(3));
            assert_eq!(requests(&policies, 80, None), Some(4));
            assert_eq!(requests(&policies, 80, of(RouteKind::Http, "r", None)), Some(5));
            assert_eq!(requests(&policies, 80, of(RouteKind::Http, "r", Some("fast"))), Some(5));
            assert_eq!(requests(&policies, 80, of(RouteKind::Http, "r", Some("slow"))), Some(6));
            assert_eq!(requests(&policies, 80, of(RouteKind::Grpc, "r", None)), Some(4));
            assert_eq!(requests(&policies, 80, of(RouteKind::Http, "other", None)), Some(4));
        }
        assert_eq!(requests(&[], 80, None), None);
    }

    #[test]
    fn what_a_narrow_policy_does_not_speak_of_is_left_to_a_wider_one() {
        let second = Duration::from_secs(1);
        let wide = Traffic {
            hedging: Some(Hedging {
                delay: second,
                percentile: None,
                copies: 1,
                non_idempotent: false,
            }),
            timeouts: TrafficTimeouts {
                request: Some(second),
                idle: Some(second),
                ..TrafficTimeouts::default()
            },
            ..policy("wide", 1, PolicyScope::Service)
        };
        let narrow = Traffic {
            faults: Some(Faults::default()),
            timeouts: TrafficTimeouts { request: Some(second * 2), ..TrafficTimeouts::default() },
            ..policy("narrow", 2, PolicyScope::Port(80))
        };
        let merged = effective(&[Arc::new(narrow), Arc::new(wide)], 80, None);
        assert!(merged.hedging.is_some() && merged.faults.is_some());
        assert_eq!(merged.timeouts.request, Some(second * 2));
        assert_eq!(merged.timeouts.idle, Some(second));
        assert_eq!(&*merged.source.name, "narrow");
    }

    #[test]
    fn a_rule_says_more_of_retries_than_policy_and_policy_the_rest() {
        let retry = RouteRetry {
            codes: vec![503],
            attempts: Some(3),
            backoff: Some(Duration::from_millis(100)),
        };
        let rule = RouteRule { retry: Some(retry), ..RouteRule::default() };
        let alone = with_rule(Traffic::default(), &rule).retries.unwrap();
        assert_eq!((alone.attempts, alone.statuses), (3, vec![StatusRange::one(503)]));
        assert_eq!(alone.budget.percent, 300);
        assert_eq!(alone.backoff.base, Duration::from_millis(200));
        assert!(alone.on.timeout && alone.on.connect_failure && !alone.non_idempotent);
        let budget = RetryBudget { percent: 7, min_per_second: 1 };
        let policy =
            Retries { budget, non_idempotent: true, statuses: Vec::new(), ..alone_again(&rule) };
        let traffic = Traffic { retries: Some(policy), ..Traffic::default() };
        let both = with_rule(traffic.clone(), &rule).retries.unwrap();
        assert_eq!((both.budget, both.non_idempotent, both.attempts), (budget, true, 3));
        // A rule that sets no retries leaves the policy unchanged.
        assert_eq!(with_rule(traffic.clone(), &RouteRule::default()), traffic);
        let timeouts = leno_types::routes::RouteTimeouts {
            backend_request: Some(Duration::from_millis(200)),
            ..Default::default()
        };
        let timed = with_rule(Traffic::default(), &RouteRule { timeouts, ..rule });
        assert_eq!(timed.retries.unwrap().per_try_timeout, Some(Duration::from_millis(199)));
    }

    fn alone_again(rule: &RouteRule) -> Retries {
        with_rule(Traffic::default(), rule).retries.expect("it says something")
    }
}
