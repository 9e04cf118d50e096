//! Reports whether a replica follows all kinds of objects.
//!
//! If a kind cannot be listed, only objects of this kind are missing. The replica still serves and is ready.

use std::time::Duration;

use leno_resources::KINDS_CONDITION;

use crate::replica::ReplicaPodCondition;

/// How long a kind must have failed before it is reported. A restart of the API server takes less time.
const SETTLE: Duration = Duration::from_secs(5);

/// A kind whose objects cannot be listed or watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailingKind {
    /// The kind, as Kubernetes writes it.
    pub kind: &'static str,
    /// How long it has failed.
    pub time: Duration,
    /// The API server's answer.
    pub reason: String,
}

/// Whether all kinds are followed, as the condition [`KINDS_CONDITION`] of the replica's pod.
#[must_use]
pub fn kinds_followed(failing: &[FailingKind]) -> ReplicaPodCondition {
    let lines = failing.iter().filter(|one| one.time >= SETTLE).map(
        |FailingKind { kind, reason, .. }| {
            format!("cannot watch {kind}: {reason}; {}", remedy(reason))
        },
    );
    let message = lines.collect::<Vec<_>>().join(". ");
    let reasons = ("AllFollowed", "KindsNotFollowed");
    ReplicaPodCondition::new(KINDS_CONDITION, reasons, &message)
}

/// What an operator can do about the failure. The API server's answers have no codes, so they are recognised by
/// their words.
fn remedy(reason: &str) -> &'static str {
    if reason.contains("forbidden") {
        "restore the rights of the controller: leno upgrade | kubectl apply --server-side -f -"
    } else if reason.contains("conversion webhook") {
        "repair the conversion webhook that the kind's CustomResourceDefinition names"
    } else if reason.contains("storage is (re)initializing") {
        // This answer exists since Kubernetes 1.37. An API server that starts also gives it, but not for so long
        // that a kind counts as failing.
        "the API server cannot read objects of the kind: repair the conversion webhook that its \
         CustomResourceDefinition names, or delete the corrupt object"
    } else {
        "the controller retries; its log has each attempt"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replica::MAX_MESSAGE;

    fn failing(kind: &'static str, seconds: u64, reason: &str) -> FailingKind {
        FailingKind { kind, time: Duration::from_secs(seconds), reason: reason.to_owned() }
    }

    #[test]
    fn each_kind_is_named_with_its_reason_and_a_remedy_once_it_has_failed_for_a_while() {
        assert_eq!(kinds_followed(&[]).status, "True");
        assert_eq!(kinds_followed(&[failing("Pod", 1, "connection refused")]).status, "True");
        let two = [
            failing("HTTPRoute", 5, "httproutes is forbidden: User x cannot list"),
            failing("GRPCRoute", 60, "conversion webhook for grpcroutes failed"),
            failing(
                "TCPRoute",
                9,
                "storage is (re)initializing: StorageError: corrupt object, Code: 7",
            ),
            failing("Pod", 1, "connection refused"),
        ];
        let said = kinds_followed(&two);
        assert_eq!((said.status, said.reason), ("False", "KindsNotFollowed"));
        for part in [
            "cannot watch HTTPRoute: httproutes is forbidden",
            "leno upgrade",
            "cannot watch GRPCRoute: conversion webhook",
            "repair the conversion webhook that the kind's",
            "repair the conversion webhook that its",
        ] {
            assert!(said.message.contains(part), "{part}: {}", said.message);
        }
        assert!(!said.message.contains("Pod"), "{}", said.message);
        let long = failing("HTTPRoute", 5, &"x".repeat(10_000));
        assert_eq!(kinds_followed(&[long]).message.chars().count(), MAX_MESSAGE);
    }
}
