//! Determines how TCPRoutes and TLSRoutes handle a connection.

use leno_policy::{StreamDecision, StreamTable, TableRule};
use leno_types::routes::{RouteKind, RouteTarget};

use super::answer::{BackendAnswer, ConsideredMatch, Explanation, OutcomeAnswer};
use super::question::ExplainQuestion;
use super::routed;
use crate::mesh::MeshModel;
use crate::sender::Sender;

impl MeshModel {
    pub(super) fn by_streams(
        &self,
        answer: &mut Explanation,
        sender: &Sender,
        table: &StreamTable,
        question: &ExplainQuestion,
    ) {
        let name = question.server_name();
        let decision = table.decide(name, 0);
        let rule = match decision {
            StreamDecision::NoRule => None,
            StreamDecision::Backend(place, _) => Some(&table.rules()[place]),
            StreamDecision::Nowhere(rule, _) => Some(rule),
        };
        answer.considered = table.rules().iter().map(|one| considered(one, rule, name)).collect();
        let Some(rule) = rule else {
            answer.outcome =
                OutcomeAnswer::closed("no route matches the connection, which is refused");
            return;
        };
        answer.rule = Some(routed::rule(rule));
        let total = rule.weights().total();
        let backends = rule.rule().backends.iter().map(|backend| {
            let share = routed::share(backend.weight, total);
            match &backend.target {
                RouteTarget::Service { name, port } => self.of_target(sender, name, *port, share),
                RouteTarget::Invalid(reason) => BackendAnswer {
                    invalid: Some(reason.as_str()),
                    ..BackendAnswer::empty(String::new(), 0, share)
                },
            }
        });
        answer.backends = backends.collect();
        let good = |one: &BackendAnswer| one.share > 0.0 && !one.endpoints.is_empty();
        answer.outcome = match answer.backends.iter().any(good) {
            true => OutcomeAnswer::relayed(true),
            false => OutcomeAnswer::closed(
                "the connection is refused, because no endpoint of the rule \
                 is ready",
            ),
        };
    }
}

fn considered(
    one: &TableRule,
    chosen: Option<&TableRule>,
    server_name: Option<&str>,
) -> ConsideredMatch {
    let holds = chosen.is_some_and(|chosen| std::ptr::eq(chosen, one));
    let route = one.route();
    let reason = match (holds, route.kind, server_name) {
        (true, ..) => "holds".to_owned(),
        (false, RouteKind::Tls, None) => "the client sends no server name (SNI)".to_owned(),
        (false, RouteKind::Tls, Some(name)) => {
            format!("{name} is not the most specific match for {}", route.hostnames.join(", "))
        }
        (false, ..) => "another route takes precedence".to_owned(),
    };
    ConsideredMatch { rule: one.to_string(), index: 0, holds, reached: true, reason }
}
