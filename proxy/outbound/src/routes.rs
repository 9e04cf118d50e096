//! The routes of one destination, which decide about each request.
//!
//! ```text
//! request ─► rule ─┬─ none, or nowhere to go ─► Decision::Answer (404, 500)
//!                  ├─ preflight, redirect ────► Decision::Answer
//!                  └─ backend, by weight ─────► Decision::Forward (endpoints, Applied)
//! ```
//!
//! When routes change, a new [`Routes`] is made. Requests in progress keep the one with which they began. A target
//! keeps its pools if the new [`Routes`] has it, too.
#![expect(
    clippy::indexing_slicing,
    reason = "rules and backends that the routes themselves have chosen"
)]

mod answer;
mod applied;
mod prepared;
mod session;

use std::rc::Rc;
use std::sync::Arc;

use leno_http::RequestView;
use leno_policy::{
    MatchedRule, RouteTable, RuleName, TableRule, cors, effective, rewrite, with_rule,
};
use leno_telemetry::{CountedRule, RouteCounter};
use leno_types::mesh::Service;
use leno_types::routes::Redirect;
use leno_types::traffic::{PolicyScope, Traffic};

use crate::Worker;
use crate::destination::Destination;
use crate::policy::RequestPolicy;

pub(crate) use answer::MeshAnswer;
pub(crate) use applied::Applied;
use prepared::{Prepared, labels};

/// The routes that requests to one port of a service follow.
#[derive(Debug)]
pub(crate) struct Routes {
    /// The port that clients dial.
    port: u16,
    table: RouteTable,
    /// The rules, by their index in the table.
    rules: Vec<Prepared>,
    /// The policies of routes and rules.
    policies: Vec<RoutePolicy>,
    /// Counts requests that match no rule.
    unmatched: CountedRule,
}

/// A policy for the requests of a route or rule, with its scope.
type RoutePolicy = (PolicyScope, Rc<RequestPolicy>);

/// Makes the policies of rules. Rules with the same scope share one policy.
struct Policies<'a> {
    shared: &'a Worker,
    before: Option<&'a Routes>,
    made: Vec<RoutePolicy>,
}

/// The decision about a request.
pub(crate) enum Decision {
    /// The mesh answers the request, and the counter counts it.
    Answer(MeshAnswer, Rc<RouteCounter>),
    /// The request is sent to an endpoint of this destination.
    Forward(Rc<Destination>, Rc<Applied>),
}

impl Routes {
    /// The routes of a port. `None` if it has no routes, so that requests go to the service's own endpoints.
    pub(crate) fn new(
        shared: &Rc<Worker>,
        (service, port): (&Service, u16),
        before: Option<&Self>,
    ) -> Option<Rc<Self>> {
        let table = RouteTable::compile(&service.routes, port)?;
        for ignored in table.ignored() {
            tracing::debug!(service = %service.name, ?ignored, "a route counts for nothing");
        }
        let mut policies = Policies { shared, before, made: Vec::new() };
        let rule = |(place, rule): (usize, &TableRule)| {
            let route = rule.route();
            let of = RuleName {
                kind: route.kind,
                namespace: &route.namespace,
                name: &route.name,
                rule: rule.rule().name.as_deref(),
            };
            let mut traffic = effective(&service.traffic, port, Some(of));
            if rule.rule().retry.is_some() {
                traffic = with_rule(traffic, rule.rule());
                // The scope is this rule alone. If the rule has no name, its index identifies it.
                let name = of.rule.map_or_else(|| format!("#{place}").into(), Into::into);
                traffic.scope = PolicyScope::Route {
                    kind: route.kind,
                    namespace: Arc::clone(&route.namespace),
                    name: Arc::clone(&route.name),
                    rule: Some(name),
                };
            }
            let policy = policies.of(traffic);
            Prepared { policy, ..Prepared::new(shared, &service.name, rule) }
        };
        let rules = table.rules().iter().enumerate().map(rule).collect();
        let policies = policies.made;
        let unmatched = CountedRule::new(labels(&service.name, Default::default()));
        Some(Rc::new(Self { port, table, rules, policies, unmatched }))
    }

    /// Closes connections to its targets that have been idle for too long.
    pub(crate) fn sweep(&self) {
        for target in self.rules.iter().flat_map(Prepared::targets) {
            target.sweep();
        }
    }

    /// Finds the rule that a request follows, and decides whether the request is forwarded or answered.
    pub(crate) fn decide(self: &Rc<Self>, shared: &Worker, view: RequestView<'_>) -> Decision {
        let request = Head(view);
        let counter = |rule: &CountedRule| Rc::clone(rule.counter(&shared.registry));
        let by = |found: &MatchedRule<'_>| counter(&self.rules[found.place].counted);
        match self.table.decide(&request, || shared.random()) {
            leno_policy::RouteDecision::NoRule => {
                let answer = match view.is_connect() {
                    true => MeshAnswer::no_tunnel(),
                    false => MeshAnswer::refused(&self.table.no_rule()),
                };
                Decision::Answer(answer, counter(&self.unmatched))
            }
            leno_policy::RouteDecision::Preflight(found, cors) => {
                let answer = MeshAnswer::with(204, cors::preflight(cors, &request));
                Decision::Answer(answer, by(&found))
            }
            leno_policy::RouteDecision::Redirect(found, redirect) => {
                Decision::Answer(self.redirected(redirect, view, &found), by(&found))
            }
            leno_policy::RouteDecision::Backend(found, place) => {
                let prepared = &self.rules[found.place];
                let kept = prepared.kept(view);
                let place = kept.and_then(|kept| prepared.place_of(kept)).unwrap_or(place);
                let target = prepared.backends[place].target.as_ref();
                let target = target.expect("a backend that is chosen has a service");
                let applied = Applied::new(self, (found.place, place), (view, found.prefix), kept);
                Decision::Forward(Rc::clone(target), Rc::new(applied))
            }
            leno_policy::RouteDecision::Nowhere(found, why) => {
                let answer = MeshAnswer::refused(&self.table.nowhere(found.rule, why));
                Decision::Answer(answer, by(&found))
            }
        }
    }

    fn redirected(
        &self,
        redirect: &Redirect,
        view: RequestView<'_>,
        found: &MatchedRule<'_>,
    ) -> MeshAnswer {
        let place = rewrite::RequestUrl {
            scheme: "http",
            authority: view.authority(),
            port: self.port,
            path: view.path(),
            query: view.query(),
        };
        let location = rewrite::location(redirect, &place, found.prefix);
        MeshAnswer::with(redirect.status, vec![("Location", location)])
    }
}

impl Policies<'_> {
    /// The policy of a rule. `None` if neither the rule nor its route has a policy, so that the service's policy
    /// applies.
    fn of(&mut self, traffic: Traffic) -> Option<Rc<RequestPolicy>> {
        if !matches!(traffic.scope, PolicyScope::Route { .. }) {
            return None;
        }
        let find = |known: &[RoutePolicy]| {
            let same = |(scope, _): &&RoutePolicy| *scope == traffic.scope;
            known.iter().find(same).map(|(_, policy)| Rc::clone(policy))
        };
        if let Some(known) = find(&self.made) {
            return Some(known);
        }
        let before = self.before.and_then(|before| find(&before.policies));
        let policy = match before {
            Some(before) if before.is_of(&traffic) => before,
            before => {
                let limits = &self.shared.limits;
                Rc::new(RequestPolicy::new(&traffic, before.as_deref(), limits))
            }
        };
        self.made.push((traffic.scope, Rc::clone(&policy)));
        Some(policy)
    }
}

/// A request's head, as routes match it.
pub(crate) struct Head<'a>(pub(crate) RequestView<'a>);

impl leno_policy::Request for Head<'_> {
    fn method(&self) -> &str {
        self.0.method()
    }

    fn path(&self) -> &[u8] {
        // A CONNECT has no path. It matches `/`, which is also the prefix of a match without a path.
        if self.0.is_connect() { b"/" } else { self.0.path() }
    }

    fn query(&self) -> Option<&[u8]> {
        self.0.query()
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        if name.eq_ignore_ascii_case("host") {
            let authority = self.0.authority();
            return (!authority.is_empty()).then_some(authority.as_bytes());
        }
        self.0.header(name)
    }
}
