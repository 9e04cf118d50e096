//! Determines which policies apply to a request, part by part, and why the others do not.

use std::time::Duration;

use leno_policy::{
    PartOutcome, PartVerdict, PolicyPart, RuleName, TableRule, standings, with_rule,
};
use leno_resources::{Kind, ObjectKey};
use leno_types::ServiceName;
use leno_types::mesh::{Resolution, Service, Subject};
use leno_types::traffic::{Algorithm, LimitKey, PolicyScope, PolicySource, RateLimit, Traffic};
use serde::Serialize;

use crate::mesh::MeshModel;
use crate::sender::Sender;

/// One part of one policy, and whether it applies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PolicyAnswer {
    /// The part, in the notation of documents: `retries`, `timeouts.request`, `rate limit`.
    pub part: &'static str,
    /// The service to which the part applies: the one that was called, or a backend.
    pub service: String,
    /// `TrafficPolicy`, `RateLimitPolicy`, or `HTTPRoute` if the route's rule sets the part itself.
    pub kind: &'static str,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Where it is written, `file:line:column`; `None` if the caller has not provided positions.
    pub place: Option<String>,
    /// Whether the part applies.
    pub holds: bool,
    /// The value that the part sets, as text.
    pub says: String,
    /// Why the part applies, or why not.
    pub reason: String,
}

impl MeshModel {
    /// What applies to requests to a port of a service that follow `rule`: retries, timeouts,
    /// hedging, faults.
    pub(super) fn of_requests(
        &self,
        service: &Service,
        port: u16,
        rule: Option<&TableRule>,
    ) -> Vec<PolicyAnswer> {
        let of = rule.map(|rule| RuleName {
            kind: rule.route().kind,
            namespace: &rule.route().namespace,
            name: &rule.route().name,
            rule: rule.rule().name.as_deref(),
        });
        let own = rule.filter(|rule| rule.rule().retry.is_some());
        let all = standings(&service.traffic, port, of);
        let mut told: Vec<PolicyAnswer> = Vec::new();
        if let Some(rule) = own {
            told.push(self.of_rule(service, rule));
        }
        for one in all.iter().filter(|one| !one.part.is_of_endpoints()) {
            let mut answer = self.of_policy(service, one);
            if own.is_some() && one.part == PolicyPart::Retries && answer.holds {
                answer.holds = false;
                answer.reason =
                    "the rule has its own retries, within the budget of this policy".to_owned();
            }
            told.push(answer);
        }
        told
    }

    /// What applies to the endpoints of a port of a service, and the rate limits of their own
    /// proxies.
    pub(super) fn of_endpoints(
        &self,
        sender: &Sender,
        name: &ServiceName,
        port: u16,
    ) -> Vec<PolicyAnswer> {
        let subject = Subject::Service(name.clone());
        let Resolution::Service(service) = self.index.resolve(&subject, &sender.namespace) else {
            return Vec::new();
        };
        let all = standings(&service.traffic, port, None);
        let of_endpoints = all.iter().filter(|one| one.part.is_of_endpoints());
        let mut told: Vec<PolicyAnswer> =
            of_endpoints.map(|one| self.of_policy(&service, one)).collect();
        let endpoints = service.port(port).map(|port| &*port.endpoints).unwrap_or_default();
        for endpoint in endpoints {
            let Some(workload) = &endpoint.workload else { continue };
            for limit in self.index.rate_limits(workload).iter() {
                let answer = self.of_limit(&service, limit, endpoint.port);
                if !told.contains(&answer) {
                    told.push(answer);
                }
            }
        }
        told
    }

    fn of_policy(&self, service: &Service, one: &PartOutcome<'_>) -> PolicyAnswer {
        let PartOutcome { part, policy, verdict } = one;
        let reason = match verdict {
            PartVerdict::Holds => format!("it applies to {}", scope(&policy.scope)),
            PartVerdict::Outranked(by) if by.scope == policy.scope => {
                format!(
                    "TrafficPolicy {} applies to the same target and takes precedence",
                    named(&by.source)
                )
            }
            PartVerdict::Outranked(by) => {
                let (named, scope) = (named(&by.source), scope(&by.scope));
                format!("TrafficPolicy {named} is more specific: it applies to {scope}")
            }
            PartVerdict::Elsewhere => format!("it applies only to {}", scope(&policy.scope)),
        };
        PolicyAnswer {
            part: part.as_str(),
            holds: *verdict == PartVerdict::Holds,
            says: says(*part, policy),
            reason,
            ..self.named(service, (Kind::TrafficPolicy, &policy.source))
        }
    }

    fn of_rule(&self, service: &Service, rule: &TableRule) -> PolicyAnswer {
        let (kind, route) = (Kind::HttpRoute, rule.route());
        let source = PolicySource {
            created: 0,
            namespace: route.namespace.clone(),
            name: route.name.clone(),
        };
        PolicyAnswer {
            part: PolicyPart::Retries.as_str(),
            holds: true,
            says: says(PolicyPart::Retries, &with_rule(Traffic::default(), rule.rule())),
            reason: format!("rule {} sets it itself", rule.index()),
            ..self.named(service, (kind, &source))
        }
    }

    fn of_limit(&self, service: &Service, limit: &RateLimit, port: u16) -> PolicyAnswer {
        let of = match &limit.key {
            LimitKey::Workload => "in all".to_owned(),
            LimitKey::Client => "for each client".to_owned(),
            LimitKey::Header(name) => format!("for each {name}"),
        };
        let (requests, burst) = (limit.requests, limit.burst);
        let (per, whose) =
            (time(limit.per), if limit.is_global { "all instances" } else { "each instance" });
        let holds = limit.port.is_none_or(|of| of == port);
        let reason = match limit.port {
            None => "it applies to all ports of the workload".to_owned(),
            Some(of) if holds => format!("it applies to port {of} of the workload"),
            Some(of) => format!("it applies only to port {of} of the workload"),
        };
        PolicyAnswer {
            part: "rate limit",
            holds,
            says: format!("{requests} requests in {per} {of}, at most {burst} at once, of {whose}"),
            reason,
            ..self.named(service, (Kind::RateLimitPolicy, &limit.source))
        }
    }

    fn named(&self, service: &Service, (kind, source): (Kind, &PolicySource)) -> PolicyAnswer {
        let (namespace, name) = (source.namespace.to_string(), source.name.to_string());
        let key = ObjectKey { kind, namespace: namespace.clone(), name: name.clone() };
        PolicyAnswer {
            part: "",
            service: service.name.to_string(),
            kind: kind.as_str(),
            namespace,
            name,
            place: self.places.get(&key).cloned(),
            holds: false,
            says: String::new(),
            reason: String::new(),
        }
    }
}

fn named(source: &PolicySource) -> String {
    format!("{}/{}", source.namespace, source.name)
}

fn scope(scope: &PolicyScope) -> String {
    match scope {
        PolicyScope::Service => "the Service".to_owned(),
        PolicyScope::Port(port) => format!("port {port}"),
        PolicyScope::Route { kind, namespace, name, rule } => {
            let rule = rule.as_deref().map(|rule| format!(" rule {rule}")).unwrap_or_default();
            format!("{} {namespace}/{name}{rule}", kind.as_str())
        }
    }
}

/// The value that a part of a policy sets, as short text.
fn says(part: PolicyPart, policy: &Traffic) -> String {
    let of = |bound: Option<Duration>| bound.map(time).unwrap_or_default();
    match part {
        PolicyPart::Retries => retries(policy),
        PolicyPart::RequestTimeout => of(policy.timeouts.request),
        PolicyPart::ResponseTimeout => of(policy.timeouts.response),
        PolicyPart::IdleTimeout => of(policy.timeouts.idle),
        PolicyPart::StreamTimeout => of(policy.timeouts.stream),
        PolicyPart::Hedging => hedging(policy),
        PolicyPart::Faults => faults(policy),
        PolicyPart::Limits => limits(policy),
        PolicyPart::Ejection => ejection(policy),
        PolicyPart::Balancing => balancing(policy),
    }
}

fn retries(policy: &Traffic) -> String {
    let Some(retries) = &policy.retries else { return String::new() };
    let mut on: Vec<String> = retries
        .statuses
        .iter()
        .map(|range| match range.from == range.to {
            true => range.from.to_string(),
            false => format!("{}-{}", range.from, range.to),
        })
        .collect();
    on.extend(retries.grpc_statuses.iter().map(|status| format!("gRPC {status}")));
    for (name, is_named) in [
        ("connect-failure", retries.on.connect_failure),
        ("reset", retries.on.reset),
        ("refused-stream", retries.on.refused_stream),
        ("timeout", retries.on.timeout),
    ] {
        on.extend(is_named.then(|| name.to_owned()));
    }
    let (attempts, budget) = (retries.attempts, retries.budget);
    let writes = if retries.non_idempotent { ", of any method" } else { "" };
    format!(
        "{attempts} more tries on {}{writes}; at most {} % of the requests and {} per second",
        on.join(", "),
        budget.percent,
        budget.min_per_second
    )
}

fn hedging(policy: &Traffic) -> String {
    let Some(hedging) = &policy.hedging else { return String::new() };
    let late = match hedging.percentile {
        None => time(hedging.delay),
        Some(tenths) => {
            let percentile = f64::from(tenths) / 10.0;
            format!("the {percentile}th percentile, at least {}", time(hedging.delay))
        }
    };
    format!("{} more copies, each after {late}", hedging.copies)
}

fn faults(policy: &Traffic) -> String {
    let Some(faults) = &policy.faults else { return String::new() };
    let percent = |share: leno_types::traffic::RequestShare| f64::from(share.0) / 10_000.0;
    let delay =
        faults.delay.map(|delay| format!("{} % wait for {}", percent(delay.share), time(delay.by)));
    let abort =
        faults.abort.map(|abort| format!("{} % get {}", percent(abort.share), abort.status));
    delay.into_iter().chain(abort).collect::<Vec<_>>().join(", ")
}

fn limits(policy: &Traffic) -> String {
    let Some(limits) = &policy.limits else { return String::new() };
    let mut said: Vec<String> = [
        ("connections", limits.connections),
        ("requests", limits.requests),
        ("pending", limits.pending),
        ("requests an endpoint", limits.requests_per_endpoint),
    ]
    .into_iter()
    .filter_map(|(what, bound)| bound.map(|bound| format!("{bound} {what}")))
    .collect();
    said.extend(limits.adaptive.then(|| "as many requests as the endpoints can handle".to_owned()));
    said.join(", ")
}

fn ejection(policy: &Traffic) -> String {
    let Some(ejection) = &policy.ejection else { return String::new() };
    let failures = ejection.consecutive_failures;
    let failures = failures.map(|failures| format!("after {failures} failures in a row"));
    let rate = ejection.success_rate.map(|_| "for a success rate below the others'".to_owned());
    let said: Vec<String> = failures.into_iter().chain(rate).collect();
    format!("{}, for {} at first", said.join(" or "), time(ejection.base))
}

fn balancing(policy: &Traffic) -> String {
    let Some(balancing) = &policy.balancing else { return String::new() };
    let mut said = vec![match balancing.algorithm() {
        Algorithm::PeakEwma => "PeakEwma".to_owned(),
        Algorithm::LeastRequest => "LeastRequest".to_owned(),
        Algorithm::RoundRobin => "RoundRobin".to_owned(),
        Algorithm::Random => "Random".to_owned(),
        Algorithm::RingHash(_) => "RingHash".to_owned(),
        Algorithm::Maglev(_) => "Maglev".to_owned(),
    }];
    said.extend(balancing.session_cookie.as_ref().map(|name| format!("sessions by cookie {name}")));
    said.extend(balancing.slow_start.map(|start| format!("slow start of {}", time(start))));
    said.extend(balancing.overflow.map(|most| {
        format!(
            "endpoints of other zones share the load \
             from {most} requests on"
        )
    }));
    said.join(", ")
}

/// Formats a duration as documents write it.
pub(crate) fn time(time: Duration) -> String {
    leno_resources::Duration(time).to_string()
}
