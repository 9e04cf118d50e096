//! The types of an `HTTPRoute` object.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

use super::{BackendRef, ParentRef, RouteFilter, RouteStatus};
use crate::duration::Duration;

/// A route for HTTP requests: which requests match, and the backends to which they go.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpRoute {
    /// `apiVersion` as written in the document.
    pub api_version: String,
    /// `kind` as written in the document.
    pub kind: String,
    /// The name, the namespace and the creation time.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// What the user declares.
    pub spec: HttpRouteSpec,
    /// What controllers report about the route.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<RouteStatus>,
}

/// The declaration in an `HTTPRoute`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpRouteSpec {
    /// The objects to which the route is attached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_refs: Option<Vec<ParentRef>>,
    /// Host names. Only gateways use them; in a route of a Service they are ignored (GEP-1294).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostnames: Option<Vec<String>>,
    /// The rules. Default: one rule that matches every request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rules: Option<Vec<HttpRouteRule>>,
}

/// One rule of the route.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpRouteRule {
    /// The name of the rule, for messages and for policies that refer to the rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The rule applies to requests that match at least one of these. Default: to all requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub matches: Option<Vec<HttpRouteMatch>>,
    /// How matching requests are changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filters: Option<Vec<RouteFilter>>,
    /// The backends to which matching requests go.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend_refs: Option<Vec<BackendRef>>,
    /// How long matching requests may take.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeouts: Option<HttpTimeouts>,
    /// When matching requests are retried (GEP-1731, experimental in the Gateway API).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<HttpRetry>,
    /// Keeps the requests of one client on one endpoint (GEP-1619, experimental in the Gateway API).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_persistence: Option<SessionPersistence>,
}

/// When a request is retried.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HttpRetry {
    /// The statuses, from 400 to 599, that cause a retry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub codes: Option<Vec<u16>>,
    /// The largest number of retries.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempts: Option<u32>,
    /// The shortest wait before a retry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backoff: Option<Duration>,
}

/// Keeps the requests of one client on one endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionPersistence {
    /// The name of the cookie or header. Default: the mesh chooses it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_name: Option<String>,
    /// How long a session may last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub absolute_timeout: Option<Duration>,
    /// How long a session may last without a request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_timeout: Option<Duration>,
    /// What identifies the session. Default: a cookie.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<SessionPersistenceType>,
    /// Settings of the cookie.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cookie_config: Option<CookieConfig>,
}

/// What identifies a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SessionPersistenceType {
    /// A cookie that the mesh sets.
    Cookie,
    /// A response header that clients send back with their requests.
    Header,
}

/// Settings of a session's cookie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CookieConfig {
    /// How long clients keep the cookie. Default: until the client ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lifetime_type: Option<CookieLifetime>,
}

/// How long clients keep a cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CookieLifetime {
    /// Until the cookie expires.
    Permanent,
    /// Until the client ends.
    Session,
}

/// Conditions that a request must all meet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpRouteMatch {
    /// The condition on the path. Default: every path matches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<PathMatch>,
    /// Conditions on headers. If several entries have the same name, only the first is used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub headers: Option<Vec<HeaderMatch>>,
    /// Conditions on query parameters. If several entries have the same name, only the first is used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub query_params: Option<Vec<HeaderMatch>>,
    /// The method. Default: every method matches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
}

/// A condition on the path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathMatch {
    /// How the path is compared. Default: by prefix.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<PathMatchType>,
    /// The value to compare with. Default: `/`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}

/// How paths are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PathMatchType {
    /// The path equals the value, byte by byte.
    Exact,
    /// The path begins with the elements of the value: `/a` matches `/a` and `/a/b`, but not `/ab`.
    PathPrefix,
    /// A regular expression matches the whole path.
    RegularExpression,
}

/// A condition on a header or a query parameter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeaderMatch {
    /// How the value is compared. Default: byte by byte.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<MatchType>,
    /// The name. In names of headers, upper and lower case are equal.
    pub name: String,
    /// The expected value, or a regular expression for it.
    pub value: String,
}

/// How values are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MatchType {
    /// The values are equal, byte by byte.
    Exact,
    /// A regular expression matches the whole value.
    RegularExpression,
}

/// How long a request may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpTimeouts {
    /// The limit for the whole request, until the end of the response. `0s` means no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<Duration>,
    /// The limit for each attempt with a backend. `0s` means no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend_request: Option<Duration>,
}
