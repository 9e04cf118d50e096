//! `RateLimitPolicy`: how many requests a workload accepts.

use serde::{Deserialize, Serialize};

use crate::duration::Duration;
use crate::gateway::PolicyStatus;
use crate::metadata::Metadata;
use crate::traffic::PolicyTarget;

/// The largest number of limits of one policy. Every request is counted by each of them.
pub const MAX_LIMITS: usize = 16;

/// Rate limits of the workloads to which the policy is attached, `leno.dev/v1alpha1`.
#[derive(Clone, Debug, PartialEq)]
pub struct RateLimitPolicy {
    /// Its name, labels and annotations.
    pub metadata: Metadata,
    /// The limits.
    pub spec: RateLimitPolicySpec,
    /// What controllers report about it.
    pub status: Option<PolicyStatus>,
}

/// The targets of the policy, and the limits on requests to them. The proxies of the targets enforce them, so
/// workloads without a proxy are not limited.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct RateLimitPolicySpec {
    /// The objects to which the policy applies: Workloads of the policy's namespace, and the workloads behind
    /// Services of that namespace, on the ports of these Services. From 1 to 16.
    pub target_refs: Vec<PolicyTarget>,
    /// The limits, from 1 to 16. A request must be within all of them. Otherwise it gets 429 with `Retry-After`.
    pub limits: Vec<RateLimitSpec>,
}

/// One limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RateLimitSpec {
    /// How many requests are accepted in each period `per`. 0 rejects all requests.
    pub requests: u32,
    /// The period in which `requests` are counted. The default is 1s; from 1ms to 24h.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per: Option<Duration>,
    /// How many requests are accepted at once after a pause. The default is `requests`. Must be more than 0 unless
    /// `requests` is 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<u32>,
    /// The key by which requests are counted: those with the same key share the limit. By default all requests share
    /// it. Exactly one of `client` and `header`; not with the scope `Global`. The proxy keeps 32768 keys of a limit;
    /// it forgets others, which may then pass their burst once more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<LimitBy>,
    /// Which instances share the limit. `Instance`, the default: each instance has its own. `Global`: all instances
    /// of all targets share one, for which their proxies lease tokens from the control plane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<LimitScope>,
}

/// The key of requests: exactly one of these.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct LimitBy {
    /// Whether the client's identity is the key, or its address if it has no identity. The default is false.
    pub client: bool,
    /// The name of the header whose value is the key, at most 256 characters. All requests without the header share
    /// one key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub header: Option<String>,
}

/// Which instances share a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum LimitScope {
    /// Each instance of the workload has its own limit.
    Instance,
    /// All instances of all targets share one limit. Their proxies lease tokens from the control plane.
    Global,
}
