//! The types of conditions, and their reasons and messages.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// Whether a route attaches to its parent, or a policy applies to its target.
pub const ACCEPTED: &str = "Accepted";
/// Whether everything exists that a route or a policy refers to, and it may refer to it: for example ports of services,
/// certificates, keys, or an authorizer.
pub const RESOLVED: &str = "ResolvedRefs";

/// Whether proxies receive the policy.
pub const PROGRAMMED: &str = "Programmed";

/// The route uses something that Leno does not support.
pub(crate) const UNSUPPORTED: &str = "UnsupportedValue";

/// What is wrong: one word for programs and a sentence for people. The words are those of the Gateway API
/// (`RouteConditionReason`) if it has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConditionProblem {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

/// The result for a condition: true, possibly with a message, or false because of a problem.
pub(crate) type ConditionResult = Result<String, ConditionProblem>;

/// A condition with this result. Its transition time is now, unless the present condition already has the same
/// status.
pub(crate) fn condition(
    kind: &'static str,
    found: ConditionResult,
    generation: Option<i64>,
    (before, now): (Option<&Condition>, &Time),
) -> Condition {
    let (status, reason, message) = match found {
        // A condition that is true has its own name as its reason.
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
