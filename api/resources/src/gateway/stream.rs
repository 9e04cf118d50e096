//! `TLSRoute` and `TCPRoute`: routes of connections whose requests the mesh does not see.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

use super::{BackendRef, ParentRef, RouteStatus};

/// A route of TLS connections, matched by server name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TlsRoute {
    /// `apiVersion` as written.
    pub api_version: String,
    /// `kind` as written.
    pub kind: String,
    /// Name, namespace, creation time.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// What the user declares.
    pub spec: TlsRouteSpec,
    /// What controllers report about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<RouteStatus>,
}

/// The declaration in a `TLSRoute`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TlsRouteSpec {
    /// What it attaches to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_refs: Option<Vec<ParentRef>>,
    /// Server names in the client's TLS hello (RFC 6066 section 3); a name may begin with `*.`.
    pub hostnames: Vec<String>,
    /// The only rule.
    pub rules: Vec<StreamRule>,
}

/// A route of connections.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TcpRoute {
    /// `apiVersion` as written.
    pub api_version: String,
    /// `kind` as written.
    pub kind: String,
    /// Name, namespace, creation time.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// What the user declares.
    pub spec: TcpRouteSpec,
    /// What controllers report about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<RouteStatus>,
}

/// The declaration in a `TCPRoute`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TcpRouteSpec {
    /// What it attaches to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_refs: Option<Vec<ParentRef>>,
    /// The only rule.
    pub rules: Vec<StreamRule>,
}

/// The rule of a connection route.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StreamRule {
    /// Its name, for references from policies and for messages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The backends that connections go to, by weight.
    pub backend_refs: Vec<BackendRef>,
}
