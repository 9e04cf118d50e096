//! `ServiceLevelObjective`: how well a workload is to serve its clients.

use serde::{Deserialize, Serialize};

use crate::duration::Duration;
use crate::metadata::Metadata;
use crate::traffic::PolicyTarget;

/// The window of an objective that has none.
pub const DEFAULT_OBJECTIVE_WINDOW: std::time::Duration = std::time::Duration::from_secs(3600);

/// How many of the requests to a target are to succeed, and how many in time, `leno.dev/v1alpha1`.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceLevelObjective {
    /// Its name, labels and annotations.
    pub metadata: Metadata,
    /// The objective.
    pub spec: ServiceLevelObjectiveSpec,
}

/// The parts of a [`ServiceLevelObjective`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceLevelObjectiveSpec {
    /// What serves: a Workload, or a Service for the workloads behind it, of its namespace.
    pub target_ref: PolicyTarget,
    /// The time in which requests are counted, up to now. The default is 1h.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<Duration>,
    /// The percentage of requests that are to succeed, such as 99.9.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub success_percent: Option<f64>,
    /// How many requests are to be answered in time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<LatencyObjective>,
}

/// A share of requests that are answered in time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LatencyObjective {
    /// The longest time from a request's head to the end of its response.
    pub below: Duration,
    /// The percentage of requests that are to take no longer, such as 99.
    pub percent: f64,
}
