//! `HTTPRoute`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

use super::{BackendRef, ParentRef, RouteFilter, RouteStatus};
use crate::duration::Duration;

/// A route of HTTP requests: matches, and the backends that requests go to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpRoute {
    /// `apiVersion` as written.
    pub api_version: String,
    /// `kind` as written.
    pub kind: String,
    /// Name, namespace, creation time.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// What the user declares.
    pub spec: HttpRouteSpec,
    /// What controllers report about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<RouteStatus>,
}

/// The declaration in an `HTTPRoute`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpRouteSpec {
    /// What it attaches to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_refs: Option<Vec<ParentRef>>,
    /// Host names, for gateways; ignored in a route of a Service (GEP-1294).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostnames: Option<Vec<String>>,
    /// The rules; default: one that matches every request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rules: Option<Vec<HttpRouteRule>>,
}

/// One rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpRouteRule {
    /// Its name, for references from policies and for messages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// It applies to requests that match any of these; default: all requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub matches: Option<Vec<HttpRouteMatch>>,
    /// Changes of these requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filters: Option<Vec<RouteFilter>>,
    /// The backends that they go to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend_refs: Option<Vec<BackendRef>>,
    /// How long they may take.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeouts: Option<HttpTimeouts>,
    /// When requests are retried (GEP-1731, experimental in the Gateway API).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<HttpRetry>,
    /// Keeps a client's requests on one endpoint (GEP-1619, experimental in the Gateway API).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_persistence: Option<SessionPersistence>,
}

/// When a request is retried.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HttpRetry {
    /// Statuses from 400 to 599 that cause a retry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub codes: Option<Vec<u16>>,
    /// Most retries.
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
    /// The name of the cookie or header; default: chosen by the mesh.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_name: Option<String>,
    /// The longest life of a session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub absolute_timeout: Option<Duration>,
    /// How long a session may be without a request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_timeout: Option<Duration>,
    /// What identifies the session; default: a cookie.
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
    /// A header of responses, which clients send back.
    Header,
}

/// Settings of a session's cookie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CookieConfig {
    /// How long clients keep it; default: until the client ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lifetime_type: Option<CookieLifetime>,
}

/// How long clients keep a cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CookieLifetime {
    /// Until it expires.
    Permanent,
    /// Until the client ends.
    Session,
}

/// Conditions that must all hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpRouteMatch {
    /// The path; default: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<PathMatch>,
    /// Headers. Of several entries for one name, the first counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub headers: Option<Vec<HeaderMatch>>,
    /// Query parameters. Of several entries for one name, the first counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub query_params: Option<Vec<HeaderMatch>>,
    /// The method; default: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
}

/// A condition on the path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathMatch {
    /// How it is compared; default: by prefix.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<PathMatchType>,
    /// The value to compare with; default: `/`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}

/// How paths are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PathMatchType {
    /// Byte by byte.
    Exact,
    /// By path elements from the left: `/a` matches `/a` and `/a/b`, not `/ab`.
    PathPrefix,
    /// By a regular expression that matches the whole path.
    RegularExpression,
}

/// A condition on a header or a query parameter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeaderMatch {
    /// How the value is compared; default: byte by byte.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<MatchType>,
    /// The name; header names in any case.
    pub name: String,
    /// The value, or a regular expression for it.
    pub value: String,
}

/// How values are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MatchType {
    /// Byte by byte.
    Exact,
    /// By a regular expression that matches the whole value.
    RegularExpression,
}

/// How long a request may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpTimeouts {
    /// From the request to the end of the response; `0s` means no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<Duration>,
    /// For each attempt with a backend; `0s` means no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend_request: Option<Duration>,
}
