//! `GRPCRoute`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

use super::{
    BackendRef, HeaderMatch, MatchType, ParentRef, RouteFilter, RouteStatus, SessionPersistence,
};

/// A route of gRPC calls: matches, and the backends that calls go to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GrpcRoute {
    /// `apiVersion` as written.
    pub api_version: String,
    /// `kind` as written.
    pub kind: String,
    /// Name, namespace, creation time.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// What the user declares.
    pub spec: GrpcRouteSpec,
    /// What controllers report about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<RouteStatus>,
}

/// The declaration in a `GRPCRoute`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GrpcRouteSpec {
    /// What it attaches to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_refs: Option<Vec<ParentRef>>,
    /// Host names, for gateways; ignored in a route of a Service (GEP-1294).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostnames: Option<Vec<String>>,
    /// The rules; default: one that matches every call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rules: Option<Vec<GrpcRouteRule>>,
}

/// One rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GrpcRouteRule {
    /// Its name, for references from policies and for messages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// It applies to calls that match any of these; default: all calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub matches: Option<Vec<GrpcRouteMatch>>,
    /// Changes of these calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filters: Option<Vec<RouteFilter>>,
    /// The backends that they go to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend_refs: Option<Vec<BackendRef>>,
    /// Keeps a client's calls on one endpoint (GEP-1619, experimental in the Gateway API).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_persistence: Option<SessionPersistence>,
}

/// Conditions that must all hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrpcRouteMatch {
    /// Service and method; default: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<GrpcMethodMatch>,
    /// Metadata. Of several entries for one name, the first counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub headers: Option<Vec<HeaderMatch>>,
}

/// Service and method, at least one of them set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrpcMethodMatch {
    /// How they are compared; default: byte by byte.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<MatchType>,
    /// The service with its package, such as `shop.v1.Cart`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// The method, such as `Add`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
}
