//! `RateLimitPolicy`: how many requests a workload accepts.

use serde::{Deserialize, Serialize};

use crate::duration::Duration;
use crate::gateway::PolicyStatus;
use crate::metadata::Metadata;
use crate::traffic::PolicyTarget;

/// The largest number of limits of one policy. Every request is counted by each of them.
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
    /// What the policy applies to: Workloads, and the workloads behind Services, of its namespace.
    pub target_refs: Vec<PolicyTarget>,
    /// The limits. A request must be within all of them.
    pub limits: Vec<RateLimitSpec>,
}

/// One limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RateLimitSpec {
    /// The number of requests in each period; 0 rejects all requests.
    pub requests: u32,
    /// The period. The default is 1s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per: Option<Duration>,
    /// The number of requests that are accepted at once after a pause. The default is `requests`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<u32>,
    /// The key of requests: those with the same key are counted together. By default all requests are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<LimitBy>,
    /// Which instances share the limit. By default each instance has its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<LimitScope>,
}

/// The key of requests: exactly one of these.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct LimitBy {
    /// Whether the client's identity is the key, or its address if it has no identity.
    pub client: bool,
    /// The name of the header whose value is the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub header: Option<String>,
}

/// Which instances share a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum LimitScope {
    /// Each instance of the workload has its own limit.
    Instance,
    /// All instances of the workload share one limit; proxies lease tokens from the control plane.
    Global,
}
