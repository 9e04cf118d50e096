//! Filters of routes: changes of a request, its response, or both.

use serde::{Deserialize, Serialize};

use super::BackendObject;

/// One filter: `type` names the field that is set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RouteFilter {
    /// The type of the filter.
    #[serde(rename = "type")]
    pub kind: FilterType,
    /// For `RequestHeaderModifier`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_header_modifier: Option<HeaderFilter>,
    /// For `ResponseHeaderModifier`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_header_modifier: Option<HeaderFilter>,
    /// For `RequestMirror`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_mirror: Option<MirrorFilter>,
    /// For `RequestRedirect`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_redirect: Option<RedirectFilter>,
    /// For `URLRewrite`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url_rewrite: Option<RewriteFilter>,
    /// For `CORS`.
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
    /// Sends a copy to another backend.
    RequestMirror,
    /// Answers with a redirection.
    RequestRedirect,
    /// Changes host and path before the request is forwarded.
    #[serde(rename = "URLRewrite")]
    UrlRewrite,
    /// Answers preflights, and sets CORS headers on responses (Fetch standard).
    #[serde(rename = "CORS")]
    Cors,
}

/// Changes of headers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HeaderFilter {
    /// Replaces all headers of the same name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub set: Option<Vec<Header>>,
    /// Is added to headers of the same name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub add: Option<Vec<Header>>,
    /// Names of headers to remove.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remove: Option<Vec<String>>,
}

/// A header.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// Its name, in any case.
    pub name: String,
    /// Its value.
    pub value: String,
}

/// Sends copies of requests to a backend. The proxy does not wait for the responses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MirrorFilter {
    /// The backend.
    pub backend_ref: BackendObject,
    /// How many requests in a hundred; all if neither this nor `fraction` is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub percent: Option<i32>,
    /// How many requests, as a fraction.
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
    /// `http` or `https`; default: the request's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheme: Option<String>,
    /// The host; default: the request's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// The path; default: the request's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<PathModifier>,
    /// The port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<i32>,
    /// 301, 302, 303, 307 or 308; default 302.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status_code: Option<i32>,
}

/// Changes host and path of the request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RewriteFilter {
    /// The host that the backend receives.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// The path that the backend receives.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<PathModifier>,
}

/// A replacement of a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PathModifier {
    /// Which part is replaced.
    #[serde(rename = "type")]
    pub kind: PathModifierType,
    /// Replaces the whole path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replace_full_path: Option<String>,
    /// Replaces the prefix that the rule has matched.
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

/// What browsers may do with requests from pages of other origins.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CorsFilter {
    /// The allowed origins: `https://shop.example`, `https://*.example`, `*`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_origins: Option<Vec<String>>,
    /// Whether requests may have cookies and other credentials.
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
    /// For how many seconds a browser may cache a preflight's response; default 5.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_age: Option<i32>,
}
