//! `RateLimitPolicy`: how many requests a workload accepts.

use serde::{Deserialize, Serialize};

use crate::duration::Duration;
use crate::gateway::PolicyStatus;
use crate::metadata::Metadata;
use crate::traffic::PolicyTarget;

/// Most limits of one policy: every request is counted by each of them.
pub const MAX_LIMITS: usize = 16;

/// Rate limits of the workloads that it is attached to, `leno.dev/v1alpha1`.
#[derive(Clone, Debug, PartialEq)]
pub struct RateLimitPolicy {
    /// Its name, labels and annotations.
    pub metadata: Metadata,
    /// The limits.
    pub spec: RateLimitPolicySpec,
    /// What controllers report about it.
    pub status: Option<PolicyStatus>,
}

/// The parts of a [`RateLimitPolicy`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct RateLimitPolicySpec {
    /// What it is for: Services (the workloads behind them), Workloads.
    pub target_refs: Vec<PolicyTarget>,
    /// All of them hold.
    pub limits: Vec<RateLimitSpec>,
}

/// One limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RateLimitSpec {
    /// Requests in each period; 0 lets none through.
    pub requests: u32,
    /// The period; 1s where not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per: Option<Duration>,
    /// Requests that may come at once; as many as in a period where not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<u32>,
    /// What is counted together; everything where not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<LimitBy>,
    /// Who shares it; each instance has its own where not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<LimitScope>,
}

/// What requests are counted together by: one of these.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct LimitBy {
    /// The client's identity, or its address where it has none.
    pub client: bool,
    /// The value of a header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub header: Option<String>,
}

/// Who shares a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum LimitScope {
    /// Each instance of the workload has its own.
    Instance,
    /// All instances share one, by tokens leased from the control plane.
    Global,
}
