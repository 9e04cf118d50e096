//! The types of a `GRPCRoute` object.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

use super::{
    BackendRef, HeaderMatch, MatchType, ParentRef, RouteFilter, RouteStatus, SessionPersistence,
};

/// A route for gRPC calls: which calls match, and the backends to which they go.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GrpcRoute {
    /// `apiVersion` as written in the document.
    pub api_version: String,
    /// `kind` as written in the document.
    pub kind: String,
    /// The name, the namespace and the creation time.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// What the user declares.
    pub spec: GrpcRouteSpec,
    /// What controllers report about the route.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<RouteStatus>,
}

/// The declaration in a `GRPCRoute`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GrpcRouteSpec {
    /// The objects to which the route is attached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_refs: Option<Vec<ParentRef>>,
    /// Host names. Only gateways use them; in a route of a Service they are ignored (GEP-1294).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostnames: Option<Vec<String>>,
    /// The rules. Default: one rule that matches every call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rules: Option<Vec<GrpcRouteRule>>,
}

/// One rule of the route.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GrpcRouteRule {
    /// The name of the rule, for messages and for policies that refer to the rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The rule applies to calls that match at least one of these. Default: to all calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub matches: Option<Vec<GrpcRouteMatch>>,
    /// How matching calls are changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filters: Option<Vec<RouteFilter>>,
    /// The backends to which matching calls go.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend_refs: Option<Vec<BackendRef>>,
    /// Keeps the calls of one client on one endpoint (GEP-1619, experimental in the Gateway API).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_persistence: Option<SessionPersistence>,
}

/// Conditions that a call must all meet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrpcRouteMatch {
    /// The service and the method. Default: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<GrpcMethodMatch>,
    /// Conditions on the call's metadata. If several entries have the same name, only the first is used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub headers: Option<Vec<HeaderMatch>>,
}

/// A service and a method. At least one of the two is set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrpcMethodMatch {
    /// How the names are compared. Default: byte by byte.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<MatchType>,
    /// The service with its package, such as `shop.v1.Cart`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// The method, such as `Add`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
}
