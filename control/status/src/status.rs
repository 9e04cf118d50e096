//! Computes the whole status of a route: this controller's entries, and those of other controllers.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use leno_index::Index;
use leno_resources::Object;
use leno_resources::gateway::{ParentRef, RouteParentStatus, RouteStatus};

use crate::conditions::{
    ACCEPTED, ConditionProblem, ConditionResult, RESOLVED, UNSUPPORTED, condition,
};
use crate::parent::accepted;
use crate::references::resolved;
use crate::route::Route;

#[cfg(test)]
mod tests;

/// The controller name with which the mesh marks its entries in a status.
pub const CONTROLLER: &str = "leno.dev/controller";

/// Most entries of a status, a limit of the Gateway API's definitions.
const MAX_PARENTS: usize = 32;
/// Longest message, in characters. A condition may have 32 KiB, but people only read the beginning.
pub(crate) const MESSAGE: usize = 1_024;

/// The status of an invalid route, by the same rules as [`status`]: it is not accepted, and `reason` is the
/// message.
#[must_use]
pub fn refused(object: &Object, reason: &str, now: &Time) -> Option<RouteStatus> {
    let route = Route::new(object)?;
    merged(&route, |parent, before| {
        let message = format!(
            "not understood: {reason}; the last valid version of the route stays \
             in effect"
        );
        let wrong = ConditionProblem {
            reason: UNSUPPORTED,
            message: message.chars().take(MESSAGE).collect(),
        };
        judged(&route, parent, vec![(ACCEPTED, Err(wrong))], (before, now))
    })
}

/// The status that a route should have. `None` if it already has this status, if none of its parents concerns
/// Leno, or if the object is not a route.
///
/// Every parent that is a Service has one entry of this controller; entries for parents that the route
/// no longer names are removed, and those of other controllers stay in their places.
#[must_use]
pub fn status(index: &Index, object: &Object, now: &Time) -> Option<RouteStatus> {
    let route = Route::new(object)?;
    merged(&route, |parent, before| {
        let found = vec![
            (ACCEPTED, accepted(index, &route, parent).map(|()| String::new())),
            (RESOLVED, resolved(index, &route, parent).map(|()| String::new())),
        ];
        judged(&route, parent, found, (before, now))
    })
}

/// The entries of other controllers, and this controller's entry for each parent of the route.
fn merged(
    route: &Route<'_>,
    judge: impl Fn(&ParentRef, &[Condition]) -> RouteParentStatus,
) -> Option<RouteStatus> {
    let said = route.said.map(|status| status.parents.as_slice()).unwrap_or_default();
    let mut wanted: Vec<&ParentRef> = Vec::new();
    for parent in route.parents.iter().filter(|parent| parent.is_service()) {
        if !wanted.contains(&parent) {
            wanted.push(parent);
        }
    }
    let mut parents = Vec::with_capacity(said.len());
    for entry in said {
        if entry.controller_name != CONTROLLER {
            parents.push(entry.clone());
        } else if let Some(place) = wanted.iter().position(|parent| **parent == entry.parent_ref) {
            parents.push(judge(wanted.remove(place), &entry.conditions));
        }
    }
    parents.extend(wanted.into_iter().map(|parent| judge(parent, &[])));
    parents.truncate(MAX_PARENTS);
    (parents != said).then_some(RouteStatus { parents })
}

/// This controller's entry for one parent of a route.
fn judged(
    route: &Route<'_>,
    parent: &ParentRef,
    found: Vec<(&'static str, ConditionResult)>,
    (before, now): (&[Condition], &Time),
) -> RouteParentStatus {
    let of = |(kind, found): (&'static str, _)| {
        let before = before.iter().find(|condition| condition.type_ == kind);
        condition(kind, found, route.metadata.generation, (before, now))
    };
    RouteParentStatus {
        parent_ref: parent.clone(),
        controller_name: CONTROLLER.to_owned(),
        conditions: found.into_iter().map(of).collect(),
    }
}
