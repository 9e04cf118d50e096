//! References between objects, and the grants that allow them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use serde::{Deserialize, Serialize};

/// The Gateway API's group.
pub const GATEWAY_GROUP: &str = "gateway.networking.k8s.io";

/// What a route attaches to. In a mesh: `kind: Service`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ParentRef {
    /// The API group; `""` for a Service. Default: the Gateway API's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The kind; default `Gateway`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The namespace; default: the route's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The name.
    pub name: String,
    /// A part of the object; for a Service, the name of a port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub section_name: Option<String>,
    /// A port of the object; default: all ports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<i32>,
}

/// An object that receives requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BackendObject {
    /// The API group; default: core.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The kind; default `Service`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The namespace; default: the route's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The name.
    pub name: String,
    /// The port of a Service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<i32>,
}

/// An object that a rule sends requests to, with its weight.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BackendRef {
    /// The API group; default: core.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The kind; default `Service`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The namespace; default: the route's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The name.
    pub name: String,
    /// The port of a Service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<i32>,
    /// Its share, relative to the sum of all weights; default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<i32>,
    /// Filters for requests to this backend, applied after the filters of the rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filters: Option<Vec<super::RouteFilter>>,
}

/// Permits objects of other namespaces to refer to objects of this one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReferenceGrant {
    /// `apiVersion` as written.
    pub api_version: String,
    /// `kind` as written.
    pub kind: String,
    /// Name and namespace. The grant gives access to that namespace.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// What is permitted.
    pub spec: ReferenceGrantSpec,
}

/// Which objects may refer to which.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReferenceGrantSpec {
    /// The objects that may refer: any of these.
    pub from: Vec<GrantFrom>,
    /// The objects that they may refer to: any of these.
    pub to: Vec<GrantTo>,
}

/// Objects that may refer to others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GrantFrom {
    /// The referring object's API group.
    pub group: String,
    /// Its kind.
    pub kind: String,
    /// Its namespace.
    pub namespace: String,
}

/// Objects that others may refer to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GrantTo {
    /// The API group; `""` is core.
    pub group: String,
    /// The kind.
    pub kind: String,
    /// The name; default: all objects of the kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// What controllers report about a route. It is parsed so that an object copied from a cluster is
/// valid.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RouteStatus {
    /// One entry per parent and controller.
    #[serde(default)]
    pub parents: Vec<RouteParentStatus>,
}

/// What one controller reports about a route for one parent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RouteParentStatus {
    /// The parent.
    pub parent_ref: ParentRef,
    /// The controller.
    pub controller_name: String,
    /// `Accepted`, `ResolvedRefs` and others.
    #[serde(default)]
    pub conditions: Vec<Condition>,
}

impl BackendRef {
    /// The reference without weight and filters.
    #[must_use]
    pub fn object(&self) -> BackendObject {
        BackendObject {
            group: self.group.clone(),
            kind: self.kind.clone(),
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            port: self.port,
        }
    }
}

impl BackendObject {
    /// Whether it is a Service of Kubernetes' core group.
    #[must_use]
    pub fn is_service(&self) -> bool {
        self.group.as_deref().unwrap_or_default().is_empty()
            && self.kind.as_deref().unwrap_or("Service") == "Service"
    }
}

impl ParentRef {
    /// Whether it is a Service of Kubernetes' core group, so that the route belongs to the mesh.
    #[must_use]
    pub fn is_service(&self) -> bool {
        let group = self.group.as_deref().unwrap_or(GATEWAY_GROUP);
        matches!(group, "" | "core") && self.kind.as_deref() == Some("Service")
    }
}
