//! The conditions, and what each may say.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// Whether the route attaches to the parent.
pub const ACCEPTED: &str = "Accepted";
/// Whether its references lead to ports of services that it may refer to.
pub const RESOLVED: &str = "ResolvedRefs";

/// Whether proxies are sent what a policy says.
pub const PROGRAMMED: &str = "Programmed";

/// The route asks for something that is not done.
pub(crate) const UNSUPPORTED: &str = "UnsupportedValue";

/// What is wrong, in one word for programs and in a sentence for people. The words are the Gateway
/// API's own (`RouteConditionReason`) wherever it has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConditionProblem {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

/// What is found of a condition: it holds, perhaps with something to add, or it does not.
pub(crate) type ConditionResult = Result<String, ConditionProblem>;

/// A condition that begins to hold now, unless its predecessor said the same already.
pub(crate) fn condition(
    kind: &'static str,
    found: ConditionResult,
    generation: Option<i64>,
    (before, now): (Option<&Condition>, &Time),
) -> Condition {
    let (status, reason, message) = match found {
        // A condition that holds has its own name as its reason.
        Ok(message) => ("True", kind, message),
        Err(ConditionProblem { reason, message }) => ("False", reason, message),
    };
    let since = before.filter(|before| before.status == status);
    Condition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message,
        observed_generation: generation,
        last_transition_time: since.map_or(now, |before| &before.last_transition_time).clone(),
    }
}
