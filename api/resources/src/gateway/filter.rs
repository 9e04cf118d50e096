//! Filters of routes: what is done to a request, its response, or both.

use serde::{Deserialize, Serialize};

use super::BackendObject;

/// One filter: `type` says which of the fields is set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RouteFilter {
    /// Which filter.
    #[serde(rename = "type")]
    pub kind: FilterType,
    /// Of `RequestHeaderModifier`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_header_modifier: Option<HeaderFilter>,
    /// Of `ResponseHeaderModifier`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_header_modifier: Option<HeaderFilter>,
    /// Of `RequestMirror`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_mirror: Option<MirrorFilter>,
    /// Of `RequestRedirect`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_redirect: Option<RedirectFilter>,
    /// Of `URLRewrite`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url_rewrite: Option<RewriteFilter>,
    /// Of `CORS`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cors: Option<CorsFilter>,
}

/// Which filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FilterType {
    /// Changes the request's headers.
    RequestHeaderModifier,
    /// Changes the response's headers.
    ResponseHeaderModifier,
    /// Sends a copy elsewhere.
    RequestMirror,
    /// Answers with another place.
    RequestRedirect,
    /// Changes host and path on the way.
    #[serde(rename = "URLRewrite")]
    UrlRewrite,
    /// Answers and marks requests of other origins (the Fetch standard's CORS protocol).
    #[serde(rename = "CORS")]
    Cors,
}

/// Changes of headers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HeaderFilter {
    /// In place of all of the same name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub set: Option<Vec<Header>>,
    /// To those of the same name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub add: Option<Vec<Header>>,
    /// Left out.
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

/// Sends copies of requests to a backend, whose answers nobody waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MirrorFilter {
    /// Where to.
    pub backend_ref: BackendObject,
    /// Of how many in a hundred; of all where neither this nor `fraction` is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub percent: Option<i32>,
    /// Of how many.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fraction: Option<Fraction>,
}

/// A part of a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fraction {
    /// So many,
    pub numerator: i32,
    /// of so many; of 100 where none is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub denominator: Option<i32>,
}

/// Answers with a redirection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RedirectFilter {
    /// `http` or `https`; the request's where none is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheme: Option<String>,
    /// The host; the request's where none is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// The path; the request's where none is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<PathModifier>,
    /// The port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<i32>,
    /// 301, 302, 303, 307 or 308; 302 where none is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status_code: Option<i32>,
}

/// Changes host and path of the request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RewriteFilter {
    /// The host that the backend sees.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// The path that it sees.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<PathModifier>,
}

/// Another path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PathModifier {
    /// Which part is replaced.
    #[serde(rename = "type")]
    pub kind: PathModifierType,
    /// In place of the whole path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replace_full_path: Option<String>,
    /// In place of the prefix that the rule matched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replace_prefix_match: Option<String>,
}

/// Which part of a path is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PathModifierType {
    /// All of it.
    ReplaceFullPath,
    /// The prefix that the rule matched.
    ReplacePrefixMatch,
}

/// What pages of other origins may do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CorsFilter {
    /// Origins that may: `https://shop.example`, `https://*.example`, `*`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_origins: Option<Vec<String>>,
    /// With cookies and other credentials.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_credentials: Option<bool>,
    /// By these methods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_methods: Option<Vec<String>>,
    /// With these request headers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_headers: Option<Vec<String>>,
    /// Reading these response headers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expose_headers: Option<Vec<String>>,
    /// For how many seconds a browser may remember that; 5 where none is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_age: Option<i32>,
}
