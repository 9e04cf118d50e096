//! Determines how routes handle a request, with the same table that proxies use.

use leno_policy::{
    IgnoredRoute, MatchResult, MatchedRule, MergedFilters, Request as _, RouteDecision, RouteTable,
    TableRule, cors, rewrite,
};
use leno_types::ServiceName;
use leno_types::mesh::{Resolution, Service, Subject};
use leno_types::routes::{Mirror, Redirect, RouteTarget};

use super::answer::{
    BackendAnswer, ConsideredMatch, Explanation, MirrorAnswer, OutcomeAnswer, RuleAnswer,
    TimeoutsAnswer,
};
use super::question::ExplainQuestion;
use crate::mesh::MeshModel;
use crate::sender::Sender;

impl MeshModel {
    pub(super) fn by_routes(
        &self,
        answer: &mut Explanation,
        sender: &Sender,
        (table, service): (&RouteTable, &Service),
        question: &ExplainQuestion,
    ) {
        answer.considered = considered(table, question);
        answer.ignored.extend(table.ignored().iter().map(ignored));
        let decision = table.decide(question, || 0);
        let found = match decision {
            RouteDecision::NoRule => {
                let refusal = table.no_rule();
                let text = "no rule of the routes matches the request";
                answer.outcome = OutcomeAnswer::refused(refusal.status, refusal.to_string(), text);
                return;
            }
            RouteDecision::Preflight(found, _)
            | RouteDecision::Redirect(found, _)
            | RouteDecision::Backend(found, _)
            | RouteDecision::Nowhere(found, _) => found,
        };
        answer.rule = Some(rule(found.rule));
        let timeouts = &found.rule.rule().timeouts;
        let ms = |time: Option<std::time::Duration>| {
            time.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
        };
        answer.timeouts = TimeoutsAnswer {
            request_ms: ms(timeouts.request),
            backend_request_ms: ms(timeouts.backend_request),
        };
        answer.outcome = match decision {
            RouteDecision::Preflight(_, cors) => {
                let lines = lines(cors::preflight(cors, question));
                let text = match lines.is_empty() {
                    true => "the proxy answers the preflight, which permits the origin nothing",
                    false => "the proxy answers the preflight, which permits the origin",
                };
                OutcomeAnswer::answered(204, lines, text)
            }
            RouteDecision::Redirect(_, redirect) => redirected(redirect, question, &found),
            _ => {
                answer.backends = self.backends(sender, table, question, &found);
                answer.policies = self.of_requests(service, question.port, Some(found.rule));
                for backend in &found.rule.rule().backends {
                    if let RouteTarget::Service { name, port } = &backend.target {
                        // Backends of one rule may have the same service and port.
                        for policy in self.of_endpoints(sender, name, *port) {
                            if !answer.policies.contains(&policy) {
                                answer.policies.push(policy);
                            }
                        }
                    }
                }
                match answer.backends.iter().all(|one| one.share <= 0.0 || one.invalid.is_some()) {
                    true => nowhere(table, &found, &answer.backends),
                    false => OutcomeAnswer::forwarded(&answer.backends),
                }
            }
        };
    }

    fn backends(
        &self,
        sender: &Sender,
        table: &RouteTable,
        question: &ExplainQuestion,
        found: &MatchedRule<'_>,
    ) -> Vec<BackendAnswer> {
        let rule = found.rule.rule();
        let total = found.rule.weights().total();
        let all = rule.backends.iter().map(|backend| {
            let share = share(backend.weight, total);
            let mut shown = match &backend.target {
                RouteTarget::Service { name, port } => self.of_target(sender, name, *port, share),
                RouteTarget::Invalid(reason) => BackendAnswer {
                    invalid: Some(reason.as_str()),
                    leno_error: Some(table.nowhere(found.rule, Some(*reason)).to_string()),
                    ..BackendAnswer::empty(String::new(), 0, share)
                },
            };
            let mut changes = MergedFilters::new(rule, backend);
            if let Some(cors) = found.rule.cors() {
                // The headers that the proxy sets on the response to this request.
                let set = cors::actual(cors, question)
                    .into_iter()
                    .map(|(name, value)| (name.into(), String::from_utf8_lossy(&value).into()));
                changes.response.set.extend(set);
            }
            shown.host = changes.rewrite.hostname.as_deref().map(str::to_owned);
            shown.target = changes.rewrite.path.as_ref().map(|path| {
                let target = rewrite::target(path, question.path(), question.query(), found.prefix);
                String::from_utf8_lossy(&target).into_owned()
            });
            shown.request_headers = (&changes.request).into();
            shown.response_headers = (&changes.response).into();
            shown.mirrors = changes.mirrors.iter().map(mirror).collect();
            shown
        });
        all.collect()
    }

    /// The answer about a port of a service, with its endpoints.
    pub(super) fn of_target(
        &self,
        sender: &Sender,
        name: &ServiceName,
        port: u16,
        share: f64,
    ) -> BackendAnswer {
        let resolved = self.index.resolve(&Subject::Service(name.clone()), &sender.namespace);
        let known = match &resolved {
            Resolution::Service(service) => service.port(port).map(|port| (service, port)),
            _ => None,
        };
        match known {
            Some((service, port)) => BackendAnswer::of_port(service, port, share),
            None => BackendAnswer::empty(name.to_string(), port, share),
        }
    }
}

/// The share of a weight in the total, 0 to 1.
pub(super) fn share(weight: u32, total: u64) -> f64 {
    match total {
        0 => 0.0,
        total => f64::from(weight) / total as f64,
    }
}

pub(super) fn rule(rule: &TableRule) -> RuleAnswer {
    let route = rule.route();
    RuleAnswer {
        kind: route.kind.as_str(),
        namespace: route.namespace.to_string(),
        route: route.name.to_string(),
        index: rule.index(),
        name: rule.rule().name.as_deref().map(str::to_owned),
    }
}

fn considered(table: &RouteTable, question: &ExplainQuestion) -> Vec<ConsideredMatch> {
    let explanation = table.explain(question);
    let shown = |one: &MatchResult<'_>, reached: bool| {
        let holds = one.mismatch.is_none();
        let reason = match (holds, reached) {
            (true, false) => "matches, but another match takes precedence".to_owned(),
            _ => one.reason(),
        };
        ConsideredMatch { rule: one.rule.to_string(), index: one.place, holds, reached, reason }
    };
    let reached = explanation.considered.iter().map(|one| shown(one, true));
    let outranked = explanation.outranked.iter().map(|one| shown(one, false));
    reached.chain(outranked).collect()
}

fn ignored(ignored: &IgnoredRoute) -> String {
    match ignored {
        IgnoredRoute::Kind(route) => format!(
            "{} {}/{} is ignored on a port that has a GRPCRoute",
            route.kind.as_str(),
            route.namespace,
            route.name
        ),
        IgnoredRoute::Pattern(route, error) => {
            format!(
                "a match of {} {}/{}: {error}",
                route.kind.as_str(),
                route.namespace,
                route.name
            )
        }
    }
}

/// The outcome if every share of the requests fails.
fn nowhere(
    table: &RouteTable,
    found: &MatchedRule<'_>,
    backends: &[BackendAnswer],
) -> OutcomeAnswer {
    let targets = found.rule.rule().backends.iter().zip(backends);
    let mut chosen = targets.filter(|(_, shown)| shown.share > 0.0);
    let reason = chosen.find_map(|(backend, _)| match backend.target {
        RouteTarget::Invalid(reason) => Some(reason),
        RouteTarget::Service { .. } => None,
    });
    let refusal = table.nowhere(found.rule, reason);
    let text = match (reason, backends.is_empty()) {
        (Some(_), _) => "the rule's backend is invalid",
        (None, true) => "the rule names no backend",
        (None, false) => "the weights of all backends are zero",
    };
    OutcomeAnswer::refused(refusal.status, refusal.to_string(), text)
}

fn redirected(
    redirect: &Redirect,
    question: &ExplainQuestion,
    found: &MatchedRule<'_>,
) -> OutcomeAnswer {
    let place = rewrite::RequestUrl {
        scheme: "http",
        authority: question.authority(),
        port: question.port,
        path: question.path(),
        query: question.query(),
    };
    let location = rewrite::location(redirect, &place, found.prefix);
    let location = String::from_utf8_lossy(&location).into_owned();
    let headers = vec![("Location".to_owned(), location)];
    OutcomeAnswer::answered(redirect.status, headers, "the proxy answers with a redirect")
}

fn mirror(mirror: &Mirror) -> MirrorAnswer {
    let to = match &mirror.target {
        RouteTarget::Service { name, port } => format!("{name}:{port}"),
        RouteTarget::Invalid(reason) => reason.as_str().to_owned(),
    };
    MirrorAnswer { to, numerator: mirror.numerator, denominator: mirror.denominator }
}

fn lines(lines: Vec<cors::CorsHeader>) -> Vec<(String, String)> {
    let line = |(name, value): (&str, Vec<u8>)| {
        (name.to_owned(), String::from_utf8_lossy(&value).into_owned())
    };
    lines.into_iter().map(line).collect()
}
