//! `TLSRoute` and `TCPRoute`: routes of connections whose requests the mesh does not see.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

use super::{BackendRef, ParentRef, RouteStatus};

/// Where TLS connections of clients go, by the server that they ask for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TlsRoute {
    /// `apiVersion` as written.
    pub api_version: String,
    /// `kind` as written.
    pub kind: String,
    /// Name, namespace, age.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// What the user wants.
    pub spec: TlsRouteSpec,
    /// What controllers have made of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<RouteStatus>,
}

/// What a `TLSRoute` wants.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TlsRouteSpec {
    /// What it attaches to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_refs: Option<Vec<ParentRef>>,
    /// The servers: names of the server name indication (RFC 6066 section 3), which may begin with
    /// `*.`.
    pub hostnames: Vec<String>,
    /// The one rule.
    pub rules: Vec<StreamRule>,
}

/// Where connections go.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TcpRoute {
    /// `apiVersion` as written.
    pub api_version: String,
    /// `kind` as written.
    pub kind: String,
    /// Name, namespace, age.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// What the user wants.
    pub spec: TcpRouteSpec,
    /// What controllers have made of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<RouteStatus>,
}

/// What a `TCPRoute` wants.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TcpRouteSpec {
    /// What it attaches to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_refs: Option<Vec<ParentRef>>,
    /// The one rule.
    pub rules: Vec<StreamRule>,
}

/// The rule of a route of connections.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StreamRule {
    /// Its name, for policies and people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Where connections go, by weight.
    pub backend_refs: Vec<BackendRef>,
}
