//! The status of policies that are attached to objects (GEP-713).

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde::{Deserialize, Serialize};

use super::ParentRef;

/// What controllers report about a policy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyStatus {
    /// One entry per target and controller.
    pub ancestors: Vec<PolicyAncestorStatus>,
}

/// What one controller reports about a policy for one target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyAncestorStatus {
    /// The target of the policy.
    pub ancestor_ref: ParentRef,
    /// The name of the controller.
    pub controller_name: String,
    /// Whether the policy is accepted, and if not, why.
    #[serde(default)]
    pub conditions: Vec<Condition>,
}
