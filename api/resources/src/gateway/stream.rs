//! `TLSRoute` and `TCPRoute`: routes of connections whose requests the mesh does not see.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

use super::{BackendRef, ParentRef, RouteStatus};

/// A route of TLS connections, matched by server name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TlsRoute {
    /// `apiVersion` as written in the document.
    pub api_version: String,
    /// `kind` as written in the document.
    pub kind: String,
    /// The name, the namespace and the creation time.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// What the user declares.
    pub spec: TlsRouteSpec,
    /// What controllers report about the route.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<RouteStatus>,
}

/// The declaration in a `TLSRoute`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TlsRouteSpec {
    /// The objects to which the route is attached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_refs: Option<Vec<ParentRef>>,
    /// Server names in the client's TLS hello (RFC 6066 section 3); a name may begin with `*.`.
    pub hostnames: Vec<String>,
    /// The rule of the route. There is exactly one.
    pub rules: Vec<StreamRule>,
}

/// A route of TCP connections.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TcpRoute {
    /// `apiVersion` as written in the document.
    pub api_version: String,
    /// `kind` as written in the document.
    pub kind: String,
    /// The name, the namespace and the creation time.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// What the user declares.
    pub spec: TcpRouteSpec,
    /// What controllers report about the route.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<RouteStatus>,
}

/// The declaration in a `TCPRoute`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TcpRouteSpec {
    /// The objects to which the route is attached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_refs: Option<Vec<ParentRef>>,
    /// The rule of the route. There is exactly one.
    pub rules: Vec<StreamRule>,
}

/// The rule of a `TLSRoute` or `TCPRoute`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StreamRule {
    /// The name of the rule, for messages and for policies that refer to the rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The backends to which connections go, and their weights.
    pub backend_refs: Vec<BackendRef>,
}
