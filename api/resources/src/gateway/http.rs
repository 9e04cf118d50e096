//! `HTTPRoute`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

use super::{BackendRef, ParentRef, RouteFilter, RouteStatus};
use crate::duration::Duration;

/// How HTTP requests are matched and where they go.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpRoute {
    /// `apiVersion` as written.
    pub api_version: String,
    /// `kind` as written.
    pub kind: String,
    /// Name, namespace, age.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// What the user wants.
    pub spec: HttpRouteSpec,
    /// What controllers have made of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<RouteStatus>,
}

/// What an `HTTPRoute` wants.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpRouteSpec {
    /// What it attaches to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_refs: Option<Vec<ParentRef>>,
    /// Hosts, for gateways; of no meaning to a route of a Service (GEP-1294).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostnames: Option<Vec<String>>,
    /// The rules; one that matches everything where none is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rules: Option<Vec<HttpRouteRule>>,
}

/// One rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpRouteRule {
    /// Its name, for policies and people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// It applies to requests that match any of these; to all where none is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub matches: Option<Vec<HttpRouteMatch>>,
    /// What is done to them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filters: Option<Vec<RouteFilter>>,
    /// Where they go.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend_refs: Option<Vec<BackendRef>>,
    /// How long they may take.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeouts: Option<HttpTimeouts>,
    /// When they are sent again (GEP-1731, experimental upstream).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<HttpRetry>,
    /// What keeps a client's requests together (GEP-1619, experimental upstream).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_persistence: Option<SessionPersistence>,
}

/// When a request is sent again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HttpRetry {
    /// Statuses from 400 to 599.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub codes: Option<Vec<u16>>,
    /// Most tries after the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempts: Option<u32>,
    /// The least wait before a try.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backoff: Option<Duration>,
}

/// What keeps the requests of one client with one endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionPersistence {
    /// The name of the cookie or header; the mesh's own where not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_name: Option<String>,
    /// How long a session lasts in all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub absolute_timeout: Option<Duration>,
    /// How long it lasts without a request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_timeout: Option<Duration>,
    /// What carries it; a cookie where not given.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<SessionPersistenceType>,
    /// More about the cookie.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cookie_config: Option<CookieConfig>,
}

/// What carries a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SessionPersistenceType {
    /// A cookie that the mesh sets.
    Cookie,
    /// A header of responses, which clients send back.
    Header,
}

/// More about a session's cookie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CookieConfig {
    /// How long clients keep it; as long as they run where not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lifetime_type: Option<CookieLifetime>,
}

/// How long clients keep a cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CookieLifetime {
    /// Until it is out of date.
    Permanent,
    /// As long as they run.
    Session,
}

/// Conditions that must all hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpRouteMatch {
    /// The path; every one where none is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<PathMatch>,
    /// Headers, of each name the first entry counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub headers: Option<Vec<HeaderMatch>>,
    /// Query parameters, of each name the first entry counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub query_params: Option<Vec<HeaderMatch>>,
    /// The method; every one where none is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
}

/// A path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathMatch {
    /// How it is compared; by prefix where it is not said.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<PathMatchType>,
    /// With what; `/` where it is not said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}

/// How paths are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PathMatchType {
    /// Byte by byte.
    Exact,
    /// By elements from the left: `/a` matches `/a` and `/a/b`, not `/ab`.
    PathPrefix,
    /// By a regular expression that matches the whole path.
    RegularExpression,
}

/// A header or a query parameter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeaderMatch {
    /// How the value is compared; byte by byte where it is not said.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<MatchType>,
    /// The name; of headers in any case.
    pub name: String,
    /// The value, or the expression for it.
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
    /// In all, until the response is complete; `0s` is without end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<Duration>,
    /// Each time that it is sent to a backend; `0s` is without end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend_request: Option<Duration>,
}
