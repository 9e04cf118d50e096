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

/// A target of a policy: an object of the policy's own namespace (GEP-713).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PolicyTarget {
    /// The API group of the target: `""` for a Service or a Namespace, `gateway.networking.k8s.io` for a route,
    /// `leno.dev` for a Workload or the Mesh.
    pub group: String,
    /// The kind of the target. `targetRefs` names the kinds that this policy may have as targets.
    pub kind: String,
    /// The name of the target.
    pub name: String,
    /// The part of the target to which the policy applies: a port of a Service, by its name or number, or a rule of a
    /// route, by its name. By default the policy applies to the whole target. A target of another kind must not have
    /// it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub section_name: Option<String>,
}

/// The targets of the policy, and its settings for them. At least one setting is required. A setting that is left out
/// comes from a policy with a wider scope (rule of a route, route, port of a Service, Service), or else has its
/// default.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct TrafficPolicySpec {
    /// The objects to which the policy applies: Services, HTTPRoutes and GRPCRoutes of the policy's namespace, from 1
    /// to 16. A policy with a route among its targets must not have `limits`, `ejection` or `balancing`, because
    /// these concern endpoints.
    pub target_refs: Vec<PolicyTarget>,
    /// Which failed requests are retried, how often and when. By default a request is only sent again if no
    /// application has received it, or, if it is idempotent, when a reused connection ended before its response.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retries: Option<RetriesSpec>,
    /// How long requests and connections may take. Each timeout comes from the narrowest policy that sets it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeouts: Option<TimeoutsSpec>,
    /// When a request whose response is late is sent to another endpoint as well. The client gets the first good
    /// response. By default no copy is sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hedging: Option<HedgingSpec>,
    /// How many connections and requests there may be at the same time. Every limit is of one worker of one proxy. A
    /// limit that is left out is not enforced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<LimitsSpec>,
    /// When an endpoint whose requests fail gets no requests for a while. By default no endpoint is ejected. Requires
    /// `consecutiveFailures`, `successRate` or both.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ejection: Option<EjectionSpec>,
    /// How the proxy of a client chooses an endpoint for each request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub balancing: Option<BalancingSpec>,
    /// Failures that the proxies of clients inject into requests on purpose, to test how clients handle them. By
    /// default there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub faults: Option<FaultsSpec>,
}

/// Which failed requests are retried, how often and when.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct RetriesSpec {
    /// How many times a request is retried after its first attempt. The default is 1; from 1 to 10. After the last
    /// attempt, the client gets its response or error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempts: Option<u32>,
    /// The failures that are retried, from 1 to 64: `connect-failure` (no connection), `reset` (the connection or
    /// stream broke before a response), `refused-stream` (the server refused the stream unread), `timeout` (the
    /// attempt exceeded `perTryTimeout`), a status from 400 to 599 (`503`), a class of statuses (`4xx`, `5xx`), or a
    /// gRPC status by its name (`UNAVAILABLE`).
    pub on: Vec<RetryTrigger>,
    /// Whether requests are also retried if their method is not idempotent, such as POST. The default is false: such
    /// a request is only retried if no application has received it.
    pub non_idempotent: bool,
    /// How long each attempt may take until its response begins. A longer attempt is the failure `timeout`. By
    /// default only `timeouts` limit an attempt. Must be more than 0, and not longer than `timeouts.request`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_try_timeout: Option<Duration>,
    /// The wait before the first retry. It doubles with each further retry, up to `maxBackoff`, and every wait is
    /// shortened by a random part of up to a half. The default is 25ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backoff: Option<Duration>,
    /// The longest wait before a retry, except for a `Retry-After`. The default is 250ms, or `backoff` if that is
    /// longer. Must not be shorter than `backoff`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_backoff: Option<Duration>,
    /// The longest `Retry-After` of a response that the proxy waits for before a retry. The default is 5s. A response
    /// that names a longer wait is not retried, and goes to the client.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_retry_after: Option<Duration>,
    /// The retry budget, which bounds how much load retries and hedging add. Each retry and each additional copy
    /// takes 1 from it, and is not sent if less is left.
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

/// The retry budget of each worker of a proxy. Each retry takes 1 from it. Up to 100 unused retries are saved, or
/// `minPerSecond` if that is more.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct BudgetSpec {
    /// How many retries 100 requests add to the budget. The default is 20; from 0 to 1000, which is ten retries for
    /// each request. Up to 100 unused retries are saved, or `minPerSecond` if that is more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub percent: Option<u32>,
    /// How many retries each second adds to the budget, in addition to `percent`. The default is 10.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_per_second: Option<u32>,
}

/// How long requests and connections may take. Each timeout must be more than 0.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct TimeoutsSpec {
    /// How long a request may take with all its attempts, until its response ends. If it takes longer, the client
    /// gets 504, or the response is cut off if it has begun. By default there is no such limit. Must be more than 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<Duration>,
    /// How long a request may take with all its attempts until its response begins; interim responses (1xx) do not
    /// count. If it takes longer, the client gets 504. By default a request gets 504 if no byte of it or of a
    /// response was sent for 5 to 10 minutes; gRPC is exempt. Must be more than 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response: Option<Duration>,
    /// How long a request or connection may be open without a byte in either direction. It ends between one and two
    /// times this time. The default is 1h for opaque connections. Must be more than 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle: Option<Duration>,
    /// How long an opaque connection or an upgraded request, such as a WebSocket, may be open in total. By default
    /// there is no such limit. Must be more than 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<Duration>,
}

/// When a request whose response is late is sent to another endpoint as well. The client gets the first good
/// response. Requires `delay`, `percentile` or both.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct HedgingSpec {
    /// How long the proxy waits for a response before it sends another copy. With `percentile`, this is the shortest
    /// wait. Required if there is no `percentile`. Must be more than 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay: Option<Duration>,
    /// The percentile of recent response times after which another copy is sent: 95 sends one when a response takes
    /// longer than 95 of 100 did. From 50 to 99.9. Each worker measures on its own, and sends no copy before it has
    /// seen 100 responses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percentile: Option<f64>,
    /// How many copies may be sent in addition to the first request. The default is 1; from 1 to 3. Each takes 1 from
    /// `retries.budget`, and is not sent if less is left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copies: Option<u32>,
    /// Whether requests are also copied if their method is not idempotent, such as POST. The default is false.
    #[serde(default)]
    pub non_idempotent: bool,
}

/// How many connections and requests there may be at the same time. Every limit is of one worker of one proxy. A
/// limit that is left out is not enforced.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct LimitsSpec {
    /// How many connections may be open to all endpoints together, including idle ones. At the limit, a request that
    /// needs another connection gets 503 (`connections-in-use`), and an opaque connection is reset. Must be more than
    /// 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections: Option<u32>,
    /// How many requests may be in progress at all endpoints together. At the limit, further requests wait (see
    /// `pending`). Must be more than 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<u32>,
    /// How many requests may wait for one of `requests` to end. The default is 1024. Further requests get 503
    /// (`overloaded`) at once. Requires `requests` or `adaptive`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pending: Option<u32>,
    /// How many requests may be in progress at each endpoint. At the limit, requests go to other endpoints; if all
    /// endpoints have as many, a request gets 503 (`endpoints-full`). Must be more than 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_per_endpoint: Option<u32>,
    /// Whether the limit on requests follows the latency of the endpoints: it rises while latency is low, and falls
    /// when requests take longer than 1.5 times the best recent latency. The default is false. It begins at 100, or
    /// at `requests` if that is less, and stays from 4 to 10000; `requests` does not bound it further.
    pub adaptive: bool,
}

/// When an endpoint whose requests fail gets no requests for a while. Requires `consecutiveFailures`, `successRate`
/// or both.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct EjectionSpec {
    /// How many requests must fail in a row to eject an endpoint. A failure is a status from 500 to 599, a gRPC
    /// status of UNKNOWN, DEADLINE_EXCEEDED, INTERNAL, UNAVAILABLE or DATA_LOSS, or a missing, late or broken
    /// response. By default failures in a row do not eject. Must be more than 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consecutive_failures: Option<u32>,
    /// Ejects endpoints that succeed less often than the other endpoints. By default endpoints are not compared. `{}`
    /// compares them with the default settings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub success_rate: Option<SuccessRateSpec>,
    /// How long the first ejection of an endpoint lasts. Each further one lasts twice as long as the one before, up
    /// to `max`. Afterwards one request tests the endpoint. The default is 1s. Must be more than 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base: Option<Duration>,
    /// The longest time for which an endpoint is ejected. The default is 1m. Must be more than 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<Duration>,
    /// The largest percentage of endpoints that may be ejected at the same time. The default is 50; from 0 to 100.
    /// One endpoint may always be ejected, the last one never.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "percent")]
    pub max_percent: Option<u8>,
    /// The percentage of endpoints that must be left. If fewer are left, ejected endpoints get requests, too, because
    /// then the cause is probably not the endpoints. The default is 30; from 0 to 100.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "percent")]
    pub panic_percent: Option<u8>,
}

/// Ejects endpoints that succeed less often than the other endpoints. At least three endpoints must have
/// `minimumRequests`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct SuccessRateSpec {
    /// How often endpoints are compared, by their requests since the last time. The default is 10s. Must be more than
    /// 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<Duration>,
    /// How many requests an endpoint must have had in an interval to be compared. The default is 50. Endpoints are
    /// only compared if at least three have as many.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub minimum_requests: Option<u32>,
    /// How far below the mean success rate of the others an endpoint is ejected, in standard deviations of the
    /// others. The default is 1.9; from 0 to 100. It must also be lower by 5 percentage points, and by more than
    /// chance explains.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deviations: Option<f64>,
}

/// How the proxy of a client chooses an endpoint for each request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct BalancingSpec {
    /// How an endpoint is chosen. `PeakEwma`, the default: of two random endpoints, the one with the lower product of
    /// latency and requests in progress. `LeastRequest`: of two random endpoints, the one with fewer requests in
    /// progress. `RoundRobin`: one after the other. `Random`: a random one. `RingHash`, `Maglev`: by the hash of a
    /// key, which `hash` must name; `Maglev` spreads keys more evenly, `RingHash` moves fewer keys when endpoints
    /// change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub algorithm: Option<AlgorithmName>,
    /// The key of a request, for `RingHash` and `Maglev`: requests with the same key go to the same endpoint while it
    /// can take them. Requests without the key go to a random endpoint. Exactly one of `header`, `cookie` and
    /// `source`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hash: Option<HashSpec>,
    /// The name of the cookie that keeps the requests of a session on one endpoint, at most 256 characters. The proxy
    /// sets it in responses. If that endpoint is gone or gets no requests at the moment, the session moves to
    /// another. By default there are no sessions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_cookie: Option<String>,
    /// The time over which the share of a new endpoint grows linearly to its full size. By default it gets its full
    /// share at once. `RingHash` and `Maglev` ignore it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slow_start: Option<Duration>,
    /// How many requests near endpoints must have on average before endpoints farther away get requests, too. The
    /// default is 16. It only has an effect if the Service has a `trafficDistribution`, and none with `RingHash` and
    /// `Maglev`. Must be more than 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overflow: Option<u32>,
}

/// An algorithm that chooses an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum AlgorithmName {
    /// Of two random endpoints, the one with the lower product of latency and requests in progress.
    PeakEwma,
    /// Of two random endpoints, the one with fewer requests in progress.
    LeastRequest,
    /// One endpoint after the other.
    RoundRobin,
    /// A random endpoint.
    Random,
    /// By a hash of the key, on a ring of the endpoints' hashes.
    RingHash,
    /// By a hash of the key, in a Maglev table.
    Maglev,
}

/// The key of requests: exactly one of these.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct HashSpec {
    /// The name of the header whose value is the key, at most 256 characters. Without it, `cookie` or `source` is
    /// required.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub header: Option<String>,
    /// The name of the cookie whose value is the key, at most 256 characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cookie: Option<String>,
    /// Whether the name of the client's workload is the key, so that all its requests go to one endpoint. The default
    /// is false.
    pub source: bool,
}

/// Failures that the proxies of clients inject into requests on purpose, to test how clients handle them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct FaultsSpec {
    /// Delays a random part of the requests before they are sent. By default it delays none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay: Option<DelaySpec>,
    /// Answers a random part of the requests instead of sending them. By default it answers none. Delay and abort are
    /// chosen independently of each other.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub abort: Option<AbortSpec>,
}

/// Delays a random part of the requests before they are sent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DelaySpec {
    /// How long each of these requests is delayed.
    pub by: Duration,
    /// The percentage of requests that are delayed: from 0 to 100, in steps of 0.0001.
    pub percent: f64,
}

/// Answers a random part of the requests instead of sending them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct AbortSpec {
    /// The HTTP status of the answer, from 200 to 599. A gRPC call gets the corresponding gRPC status.
    pub status: u16,
    /// The percentage of requests that are answered in this way: from 0 to 100, in steps of 0.0001.
    pub percent: f64,
}

fn percent<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u8>, D::Error> {
    let Some(number) = Option::<i64>::deserialize(deserializer)? else { return Ok(None) };
    match u8::try_from(number) {
        Ok(percent) if percent <= 100 => Ok(Some(percent)),
        _ => Err(de::Error::custom(format_args!("{number} is not from 0 to 100"))),
    }
}
