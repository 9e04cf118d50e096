//! Filters of routes. A filter changes a request, its response, or both.

use serde::{Deserialize, Serialize};

use super::BackendObject;

/// One filter. `type` says which of the other fields is set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RouteFilter {
    /// The type of the filter.
    #[serde(rename = "type")]
    pub kind: FilterType,
    /// The settings of a `RequestHeaderModifier`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_header_modifier: Option<HeaderFilter>,
    /// The settings of a `ResponseHeaderModifier`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_header_modifier: Option<HeaderFilter>,
    /// The settings of a `RequestMirror`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_mirror: Option<MirrorFilter>,
    /// The settings of a `RequestRedirect`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_redirect: Option<RedirectFilter>,
    /// The settings of a `URLRewrite`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url_rewrite: Option<RewriteFilter>,
    /// The settings of a `CORS` filter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cors: Option<CorsFilter>,
}

/// The type of a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FilterType {
    /// Changes the request's headers.
    RequestHeaderModifier,
    /// Changes the response's headers.
    ResponseHeaderModifier,
    /// Sends a copy of the request to another backend.
    RequestMirror,
    /// Answers with a redirection.
    RequestRedirect,
    /// Changes the host and the path before the request is forwarded.
    #[serde(rename = "URLRewrite")]
    UrlRewrite,
    /// Answers preflight requests, and sets CORS headers on responses (Fetch standard).
    #[serde(rename = "CORS")]
    Cors,
}

/// Changes of headers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HeaderFilter {
    /// Headers to set. Each replaces all headers of the same name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub set: Option<Vec<Header>>,
    /// Headers to add. Headers of the same name that are already there remain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub add: Option<Vec<Header>>,
    /// Names of headers to remove.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remove: Option<Vec<String>>,
}

/// A header.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// The name of the header. Upper and lower case are equal.
    pub name: String,
    /// The value of the header.
    pub value: String,
}

/// Sends copies of requests to a backend. The proxy does not wait for the responses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MirrorFilter {
    /// The backend that receives the copies.
    pub backend_ref: BackendObject,
    /// How many of a hundred requests are copied. If neither this nor `fraction` is set, all are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub percent: Option<i32>,
    /// Which part of the requests is copied, as a fraction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fraction: Option<Fraction>,
}

/// A fraction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fraction {
    /// The numerator.
    pub numerator: i32,
    /// The denominator; 100 if not set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub denominator: Option<i32>,
}

/// Answers with a redirection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RedirectFilter {
    /// The scheme of the new URL, `http` or `https`. Default: that of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheme: Option<String>,
    /// The host of the new URL. Default: that of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// The path of the new URL. Default: that of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<PathModifier>,
    /// The port of the new URL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<i32>,
    /// The status of the response: 301, 302, 303, 307 or 308. Default: 302.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status_code: Option<i32>,
}

/// Changes the host and the path of the request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RewriteFilter {
    /// The host that the backend receives.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// The path that the backend receives.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<PathModifier>,
}

/// Replaces a path or a part of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PathModifier {
    /// Which part is replaced.
    #[serde(rename = "type")]
    pub kind: PathModifierType,
    /// The text that replaces the whole path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replace_full_path: Option<String>,
    /// The text that replaces the prefix that the rule has matched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replace_prefix_match: Option<String>,
}

/// Which part of a path is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PathModifierType {
    /// The whole path.
    ReplaceFullPath,
    /// The prefix that the rule has matched.
    ReplacePrefixMatch,
}

/// Which requests browsers may send from pages of other origins, and what those pages may read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CorsFilter {
    /// The allowed origins, such as `https://shop.example`, `https://*.example` or `*`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_origins: Option<Vec<String>>,
    /// Whether requests may carry cookies and other credentials.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_credentials: Option<bool>,
    /// The allowed methods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_methods: Option<Vec<String>>,
    /// The allowed request headers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_headers: Option<Vec<String>>,
    /// The response headers that pages may read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expose_headers: Option<Vec<String>>,
    /// How many seconds a browser may cache the response to a preflight request. Default: 5.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_age: Option<i32>,
}
