//! `TrafficPolicy`: how clients treat a service, or what one route sends.

pub(crate) mod meaning;

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
    /// What the policy applies to: Services, HTTPRoutes and GRPCRoutes of its namespace.
    pub target_refs: Vec<PolicyTarget>,
    /// When a failed request is retried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retries: Option<RetriesSpec>,
    /// How long requests and connections may take.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeouts: Option<TimeoutsSpec>,
    /// When another copy of a late request is sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hedging: Option<HedgingSpec>,
    /// Limits on concurrent connections and requests, of each worker of a proxy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<LimitsSpec>,
    /// When a failing endpoint is ejected from load balancing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ejection: Option<EjectionSpec>,
    /// How an endpoint is chosen for each request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub balancing: Option<BalancingSpec>,
    /// Faults that are injected into requests, for tests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub faults: Option<FaultsSpec>,
}

/// When a failed request is retried.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct RetriesSpec {
    /// The maximum number of retries of a request. The default is 1, the maximum 10.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempts: Option<u32>,
    /// The failures that are retried: `connect-failure`, `reset`, `refused-stream`, `timeout`, a status
    /// (`503`), a class of statuses (`5xx`), or a gRPC status by its name (`UNAVAILABLE`).
    pub on: Vec<RetryTrigger>,
    /// Whether requests whose method is not idempotent, such as POST, are retried, too.
    pub non_idempotent: bool,
    /// How long each attempt may take until its response begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_try_timeout: Option<Duration>,
    /// The wait before the first retry. It doubles with each further retry, less a random part of up to a
    /// half. The default is 25ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backoff: Option<Duration>,
    /// The longest wait between retries. The default is 250ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_backoff: Option<Duration>,
    /// The longest `Retry-After` of a response that is waited for. The default is 5s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_retry_after: Option<Duration>,
    /// The retry budget: how many requests may be retries.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget: Option<BudgetSpec>,
}

/// A failure that is retried. A status may be written as a number.
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

/// The retry budget of each worker of a proxy: how many requests may be retries.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct BudgetSpec {
    /// Retries per 100 requests. The default is 20.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub percent: Option<u32>,
    /// Retries per second that are allowed in any case. The default is 10.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_per_second: Option<u32>,
}

/// How long requests and connections may take. A timeout that is not set is not enforced.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct TimeoutsSpec {
    /// Timeout of a request with all its retries, until the response ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<Duration>,
    /// Timeout until the response begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response: Option<Duration>,
    /// How long a request or connection may be open without a byte in either direction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle: Option<Duration>,
    /// How long an opaque connection or an upgraded request may be open.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<Duration>,
}

/// When another copy of a late request is sent, to another endpoint. The first good response wins.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct HedgingSpec {
    /// How late the response must be. With `percentile` too, both must be exceeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay: Option<Duration>,
    /// The percentile of the response times that the worker has measured, which the response must exceed:
    /// from 50 to 99.9.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percentile: Option<f64>,
    /// The maximum number of additional copies. The default is 1, the maximum 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copies: Option<u32>,
    /// Whether requests whose method is not idempotent, such as POST, are copied, too.
    #[serde(default)]
    pub non_idempotent: bool,
}

/// Limits on concurrent connections and requests, of each worker of a proxy. A limit that is not set is
/// not enforced.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct LimitsSpec {
    /// The maximum number of connections to all endpoints together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections: Option<u32>,
    /// The maximum number of concurrent requests to all endpoints together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<u32>,
    /// The maximum number of requests that wait for one of `requests` to end. The default is 1024.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pending: Option<u32>,
    /// The maximum number of concurrent requests to each endpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_per_endpoint: Option<u32>,
    /// Whether the limit on requests adapts to the latency of the endpoints.
    pub adaptive: bool,
}

/// When a failing endpoint is ejected from load balancing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct EjectionSpec {
    /// The number of consecutive failures that ejects an endpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consecutive_failures: Option<u32>,
    /// Ejects endpoints that succeed less often than the others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub success_rate: Option<SuccessRateSpec>,
    /// How long the first ejection lasts; each further one lasts longer. The default is 1s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base: Option<Duration>,
    /// The longest ejection. The default is 1m.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<Duration>,
    /// The maximum percentage of endpoints that are ejected at the same time. The default is 50.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "percent")]
    pub max_percent: Option<u8>,
    /// If less than this percentage of endpoints is available, all endpoints are used, also ejected ones.
    /// The default is 30.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "percent")]
    pub panic_percent: Option<u8>,
}

/// Ejects endpoints that succeed less often than the others.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct SuccessRateSpec {
    /// How often endpoints are compared. The default is 10s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<Duration>,
    /// How many requests an endpoint must have had in an interval to be compared. The default is 50.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub minimum_requests: Option<u32>,
    /// How many standard deviations below the mean success rate an endpoint is ejected. The default is 1.9.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deviations: Option<f64>,
}

/// How an endpoint is chosen for each request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct BalancingSpec {
    /// The algorithm. The default is `PeakEwma`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub algorithm: Option<AlgorithmName>,
    /// The key of requests, for `RingHash` and `Maglev`: requests with the same key go to the same endpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hash: Option<HashSpec>,
    /// The name of a cookie that keeps the requests of a session on one endpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_cookie: Option<String>,
    /// The time over which a new endpoint receives more and more requests, up to its full share.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slow_start: Option<Duration>,
    /// The average number of requests on each near endpoint above which endpoints farther away receive
    /// requests, too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overflow: Option<u32>,
}

/// An algorithm that chooses an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum AlgorithmName {
    /// Of two random endpoints, the one with less latency times load.
    PeakEwma,
    /// Of two random endpoints, the one with fewer requests.
    LeastRequest,
    /// Each endpoint in turn.
    RoundRobin,
    /// A random endpoint.
    Random,
    /// By a hash of the key, on a ring.
    RingHash,
    /// By a hash of the key, in a Maglev table.
    Maglev,
}

/// The key of requests: exactly one of these.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct HashSpec {
    /// The name of the header whose value is the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub header: Option<String>,
    /// The name of the cookie whose value is the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cookie: Option<String>,
    /// Whether the client's address is the key.
    pub source: bool,
}

/// Faults that are injected into requests, for tests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct FaultsSpec {
    /// Delays a share of the requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay: Option<DelaySpec>,
    /// Answers a share of the requests without sending them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub abort: Option<AbortSpec>,
}

/// Delays a share of the requests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DelaySpec {
    /// How long each of these requests is delayed.
    pub by: Duration,
    /// The percentage of requests, in steps of 0.0001.
    pub percent: f64,
}

/// Answers a share of the requests without sending them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct AbortSpec {
    /// The HTTP status of the answer.
    pub status: u16,
    /// The percentage of requests, in steps of 0.0001.
    pub percent: f64,
}

fn percent<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u8>, D::Error> {
    let Some(number) = Option::<i64>::deserialize(deserializer)? else { return Ok(None) };
    match u8::try_from(number) {
        Ok(percent) if percent <= 100 => Ok(Some(percent)),
        _ => Err(de::Error::custom(format_args!("{number} is not from 0 to 100"))),
    }
}
