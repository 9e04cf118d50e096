//! `GRPCRoute`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

use super::{
    BackendRef, HeaderMatch, MatchType, ParentRef, RouteFilter, RouteStatus, SessionPersistence,
};

/// How gRPC calls are matched and where they go.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GrpcRoute {
    /// `apiVersion` as written.
    pub api_version: String,
    /// `kind` as written.
    pub kind: String,
    /// Name, namespace, age.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// What the user wants.
    pub spec: GrpcRouteSpec,
    /// What controllers have made of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<RouteStatus>,
}

/// What a `GRPCRoute` wants.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GrpcRouteSpec {
    /// What it attaches to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_refs: Option<Vec<ParentRef>>,
    /// Hosts, for gateways; of no meaning to a route of a Service (GEP-1294).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostnames: Option<Vec<String>>,
    /// The rules; one that matches everything where none is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rules: Option<Vec<GrpcRouteRule>>,
}

/// One rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GrpcRouteRule {
    /// Its name, for policies and people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// It applies to calls that match any of these; to all where none is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub matches: Option<Vec<GrpcRouteMatch>>,
    /// What is done to them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filters: Option<Vec<RouteFilter>>,
    /// Where they go.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend_refs: Option<Vec<BackendRef>>,
    /// What keeps a client's calls together (GEP-1619, experimental upstream).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_persistence: Option<SessionPersistence>,
}

/// Conditions that must all hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrpcRouteMatch {
    /// Service and method; every one where none is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<GrpcMethodMatch>,
    /// Metadata, of each name the first entry counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub headers: Option<Vec<HeaderMatch>>,
}

/// Service and method, at least one of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrpcMethodMatch {
    /// How they are compared; byte by byte where it is not said.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<MatchType>,
    /// The service with its package, as `shop.v1.Cart`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// The method, as `Add`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
}
