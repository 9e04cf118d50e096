//! `ServiceLevelObjective`: how well a workload should serve its clients.

use serde::{Deserialize, Serialize};

use crate::duration::Duration;
use crate::metadata::Metadata;
use crate::traffic::PolicyTarget;

/// The window of an objective that has none.
pub const DEFAULT_OBJECTIVE_WINDOW: std::time::Duration = std::time::Duration::from_secs(3600);

/// The share of requests to a target that should succeed, and the share that should be answered in time,
/// `leno.dev/v1alpha1`.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceLevelObjective {
    /// The object's name, labels and annotations.
    pub metadata: Metadata,
    /// The objective.
    pub spec: ServiceLevelObjectiveSpec,
}

/// The parts of a [`ServiceLevelObjective`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceLevelObjectiveSpec {
    /// The target: a Workload, or a Service for the workloads behind it, in the same namespace.
    pub target_ref: PolicyTarget,
    /// The time up to now in which requests are counted. The default is 1h; from 5m to 24h.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<Duration>,
    /// The percentage of requests that should succeed, such as 99.9: above 0, and at most 99.9999.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub success_percent: Option<f64>,
    /// The share of requests that should be answered in time. Required if there is no `successPercent`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<LatencyObjective>,
}

/// A share of requests that are answered in time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LatencyObjective {
    /// The longest time from a request's head to the end of its response; at least 1ms.
    pub below: Duration,
    /// The percentage of requests that should take no longer, such as 99: above 0, and at most 99.9999.
    pub percent: f64,
}
