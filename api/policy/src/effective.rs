//! Which parts of several policies hold for a request.

use std::sync::Arc;

use leno_types::routes::RouteKind;
use leno_types::traffic::{Scope, Timeouts, Traffic};

/// The rule of a route that a request follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleOf<'a> {
    /// The kind of the route.
    pub kind: RouteKind,
    /// Its namespace.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
    /// The name of the rule, where it has one.
    pub rule: Option<&'a str>,
}

/// What holds for a request to `port` that follows `route`: of each part, what the policy with the
/// narrowest scope says that speaks of it (a rule before a route, a route before a port, a port before a
/// service); of two with the same scope the older one, then the first by namespace and name, as
/// Gateway API resolves conflicts.
#[must_use]
pub fn effective(policies: &[Arc<Traffic>], port: u16, route: Option<RuleOf<'_>>) -> Traffic {
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

/// How narrow a scope is; none where it does not hold for the request.
fn narrowness(scope: &Scope, port: u16, route: Option<RuleOf<'_>>) -> Option<u8> {
    match scope {
        Scope::Service => Some(0),
        Scope::Port(of) => (*of == port).then_some(1),
        Scope::Route { kind, namespace, name, rule } => {
            let of = route?;
            let same = of.kind == *kind && of.namespace == &**namespace && of.name == &**name;
            match rule {
                None => same.then_some(2),
                Some(rule) => (same && of.rule == Some(&**rule)).then_some(3),
            }
        }
    }
}

/// Puts what `policy` speaks of over what holds without it.
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
    let Timeouts { request, response, idle, stream } = policy.timeouts;
    part(&mut merged.timeouts.request, &request);
    part(&mut merged.timeouts.response, &response);
    part(&mut merged.timeouts.idle, &idle);
    part(&mut merged.timeouts.stream, &stream);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use leno_types::traffic::{Faults, Hedging, Limits, Source};

    use super::*;

    fn policy(name: &str, created: u64, scope: Scope) -> Traffic {
        let source = Source { created, namespace: "shop".into(), name: name.into() };
        Traffic { source, scope, ..Traffic::default() }
    }

    fn with_requests(requests: u32, policy: Traffic) -> Arc<Traffic> {
        let limits = Limits { requests: Some(requests), ..Limits::default() };
        Arc::new(Traffic { limits: Some(limits), ..policy })
    }

    fn requests(policies: &[Arc<Traffic>], port: u16, route: Option<RuleOf<'_>>) -> Option<u32> {
        effective(policies, port, route).limits?.requests
    }

    #[test]
    fn the_narrowest_scope_holds_then_the_oldest_then_the_first_by_name() {
        let scope = |rule: Option<&str>| Scope::Route {
            kind: RouteKind::Http,
            namespace: "shop".into(),
            name: "r".into(),
            rule: rule.map(Into::into),
        };
        let of = |kind, name, rule| Some(RuleOf { kind, namespace: "shop", name, rule });
        let mut policies = vec![
            with_requests(1, policy("young", 20, Scope::Service)),
            with_requests(2, policy("b", 10, Scope::Service)),
            with_requests(3, policy("a", 10, Scope::Service)),
            with_requests(4, policy("port", 30, Scope::Port(80))),
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
            hedging: Some(Hedging { delay: second, copies: 1 }),
            timeouts: Timeouts { request: Some(second), idle: Some(second), ..Timeouts::default() },
            ..policy("wide", 1, Scope::Service)
        };
        let narrow = Traffic {
            faults: Some(Faults::default()),
            timeouts: Timeouts { request: Some(second * 2), ..Timeouts::default() },
            ..policy("narrow", 2, Scope::Port(80))
        };
        let merged = effective(&[Arc::new(narrow), Arc::new(wide)], 80, None);
        assert!(merged.hedging.is_some() && merged.faults.is_some());
        assert_eq!(merged.timeouts.request, Some(second * 2));
        assert_eq!(merged.timeouts.idle, Some(second));
        assert_eq!(&*merged.source.name, "narrow");
    }
}
