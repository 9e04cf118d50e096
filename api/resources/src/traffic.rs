//! `TrafficPolicy`: how clients treat a service, or what one route sends.

mod meaning;

use std::fmt;

use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize};

use crate::duration::Duration;
use crate::gateway::PolicyStatus;
use crate::metadata::Metadata;

pub(crate) use meaning::RetryOn;

/// How clients treat its targets, `leno.dev/v1alpha1`. A part that is not set comes from a policy
/// with a wider scope, or else from the mesh's defaults.
#[derive(Clone, Debug, PartialEq)]
pub struct TrafficPolicy {
    /// Its name, labels and annotations.
    pub metadata: Metadata,
    /// The settings.
    pub spec: TrafficPolicySpec,
    /// What controllers report about it.
    pub status: Option<PolicyStatus>,
}

/// What a policy is attached to: an object of the policy's own namespace (GEP-713).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PolicyTarget {
    /// The API group: `""` of a Service, `gateway.networking.k8s.io` of a route, `leno.dev` of a
    /// Workload.
    pub group: String,
    /// The kind.
    pub kind: String,
    /// The name.
    pub name: String,
    /// A port of a Service by its name or number, or a rule of a route by its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub section_name: Option<String>,
}

/// The parts of a [`TrafficPolicy`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct TrafficPolicySpec {
    /// What it is for: Services, HTTPRoutes, GRPCRoutes.
    pub target_refs: Vec<PolicyTarget>,
    /// When a request is sent again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retries: Option<RetriesSpec>,
    /// How long things may take.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeouts: Option<TimeoutsSpec>,
    /// When a second copy of a request is sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hedging: Option<HedgingSpec>,
    /// How much may be under way at once, of each proxy's worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<LimitsSpec>,
    /// When an endpoint that fails is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ejection: Option<EjectionSpec>,
    /// How endpoints are chosen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub balancing: Option<BalancingSpec>,
    /// What is made to fail on purpose.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub faults: Option<FaultsSpec>,
}

/// When a request is sent again.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct RetriesSpec {
    /// Most tries after the first; 1 where not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempts: Option<u32>,
    /// What is taken for a failure: `connect-failure`, `reset`, `refused-stream`, `timeout`, a status
    /// (`503`), a class of them (`5xx`), or a gRPC status by its name (`UNAVAILABLE`).
    pub on: Vec<RetryTrigger>,
    /// Whether requests that may change something are sent again, too.
    pub non_idempotent: bool,
    /// How long one try may take until its response begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_try_timeout: Option<Duration>,
    /// The wait before the first retry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backoff: Option<Duration>,
    /// The longest wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_backoff: Option<Duration>,
    /// The longest `Retry-After` that is waited for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_retry_after: Option<Duration>,
    /// How many requests may be retries.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget: Option<BudgetSpec>,
}

/// One thing that is taken for a failure. A status may be written as a number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(test, schemars(extend("x-kubernetes-int-or-string" = true)))]
#[serde(transparent)]
pub struct RetryTrigger(pub String);

impl<'de> Deserialize<'de> for RetryTrigger {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextOrNumber;

        impl Visitor<'_> for TextOrNumber {
            type Value = RetryTrigger;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text or a status")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<RetryTrigger, E> {
                Ok(RetryTrigger(text.to_owned()))
            }

            fn visit_u64<E: de::Error>(self, status: u64) -> Result<RetryTrigger, E> {
                Ok(RetryTrigger(status.to_string()))
            }
        }

        deserializer.deserialize_any(TextOrNumber)
    }
}

/// How many requests may be retries, of each proxy's worker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct BudgetSpec {
    /// For each 100 requests; 20 where not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub percent: Option<u32>,
    /// A second, in any case; 10 where not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_per_second: Option<u32>,
}

/// How long things may take; without a bound where not given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct TimeoutsSpec {
    /// A request with all its tries, until the response is over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<Duration>,
    /// Until the response begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response: Option<Duration>,
    /// Without a byte in either direction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle: Option<Duration>,
    /// An opaque connection or an upgraded stream, in all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<Duration>,
}

/// A second copy of a request that is late.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct HedgingSpec {
    /// How late; at least so late where there is a percentile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay: Option<Duration>,
    /// Later than so many of a hundred responses were, as this worker has seen them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percentile: Option<f64>,
    /// Most copies after the first; 1 where not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copies: Option<u32>,
    /// Whether requests that may change something are copied, too.
    #[serde(default)]
    pub non_idempotent: bool,
}

/// How much may be under way at once; without a bound where not given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct LimitsSpec {
    /// Connections to all endpoints.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections: Option<u32>,
    /// Requests to all endpoints.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<u32>,
    /// Requests that wait for one of these to end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pending: Option<u32>,
    /// Requests to one endpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_per_endpoint: Option<u32>,
    /// Whether the bound on requests follows what the endpoints stand.
    pub adaptive: bool,
}

/// When an endpoint that fails is left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct EjectionSpec {
    /// Failures in a row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consecutive_failures: Option<u32>,
    /// Comparing endpoints by how often they succeed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub success_rate: Option<SuccessRateSpec>,
    /// How long the first ejection lasts; 1s where not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base: Option<Duration>,
    /// The longest; 1m where not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<Duration>,
    /// Most endpoints left out at once; 50 where not given.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "percent")]
    pub max_percent: Option<u8>,
    /// With fewer left, all are used again; 30 where not given.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "percent")]
    pub panic_percent: Option<u8>,
}

/// Comparing endpoints by how often they succeed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct SuccessRateSpec {
    /// How often; 10s where not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<Duration>,
    /// One with fewer requests is not judged; 50 where not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub minimum_requests: Option<u32>,
    /// How many standard deviations below the mean; 1.9 where not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deviations: Option<f64>,
}

/// How endpoints are chosen.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct BalancingSpec {
    /// The way; [`AlgorithmName::PeakEwma`] where not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub algorithm: Option<AlgorithmName>,
    /// What requests are kept together by, for a ring of hashes and for Maglev.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hash: Option<HashSpec>,
    /// The cookie that keeps a session on its endpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_cookie: Option<String>,
    /// The time in which a new endpoint grows to its share.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slow_start: Option<Duration>,
    /// Requests on each near endpoint, on average, from which others help.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overflow: Option<u32>,
}

/// A way to choose an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum AlgorithmName {
    /// Latency times load, of two random ones.
    PeakEwma,
    /// Load, of two random ones.
    LeastRequest,
    /// In turns.
    RoundRobin,
    /// Random.
    Random,
    /// By a hash on a ring.
    RingHash,
    /// By a hash in a Maglev table.
    Maglev,
}

/// What requests are kept together by: one of these.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct HashSpec {
    /// The value of a header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub header: Option<String>,
    /// The value of a cookie.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cookie: Option<String>,
    /// The client's address.
    pub source: bool,
}

/// What is made to fail on purpose.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct FaultsSpec {
    /// Requests that are held up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay: Option<DelaySpec>,
    /// Requests that are answered instead of sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub abort: Option<AbortSpec>,
}

/// Requests that are held up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DelaySpec {
    /// How long.
    pub by: Duration,
    /// How many of each hundred, in steps of a ten-thousandth.
    pub percent: f64,
}

/// Requests that are answered instead of sent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct AbortSpec {
    /// With this status.
    pub status: u16,
    /// How many of each hundred, in steps of a ten-thousandth.
    pub percent: f64,
}

fn percent<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u8>, D::Error> {
    let Some(number) = Option::<i64>::deserialize(deserializer)? else { return Ok(None) };
    match u8::try_from(number) {
        Ok(percent) if percent <= 100 => Ok(Some(percent)),
        _ => Err(de::Error::custom(format_args!("{number} is not from 0 to 100"))),
    }
}
