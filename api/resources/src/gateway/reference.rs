//! References between objects, and the grants that allow them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use serde::{Deserialize, Serialize};

/// The name of the Gateway API's group.
pub const GATEWAY_GROUP: &str = "gateway.networking.k8s.io";

/// The object to which a route is attached. In a mesh, its kind is `Service`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ParentRef {
    /// The API group; `""` for a Service. Default: the group of the Gateway API.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The kind of the object. Default: `Gateway`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The namespace of the object. Default: the namespace of the route.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The name of the object.
    pub name: String,
    /// A part of the object; for a Service, the name of a port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub section_name: Option<String>,
    /// A port of the object. Default: all ports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<i32>,
}

/// An object that receives requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BackendObject {
    /// The API group of the object. Default: the core group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The kind of the object. Default: `Service`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The namespace of the object. Default: the namespace of the route.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The name of the object.
    pub name: String,
    /// The port, if the object is a Service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<i32>,
}

/// An object to which a rule sends requests, with its weight.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BackendRef {
    /// The API group of the object. Default: the core group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The kind of the object. Default: `Service`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The namespace of the object. Default: the namespace of the route.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The name of the object.
    pub name: String,
    /// The port, if the object is a Service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<i32>,
    /// The share of the requests that the object receives, relative to the sum of all weights. Default: 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<i32>,
    /// Filters for requests to this backend, applied after the filters of the rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filters: Option<Vec<super::RouteFilter>>,
}

/// Permits objects of other namespaces to refer to objects of the grant's namespace.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReferenceGrant {
    /// `apiVersion` as written in the document.
    pub api_version: String,
    /// `kind` as written in the document.
    pub kind: String,
    /// The name and the namespace. The grant permits references to objects of this namespace.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// Which references are permitted.
    pub spec: ReferenceGrantSpec,
}

/// Which objects may refer to which other objects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReferenceGrantSpec {
    /// Which objects may refer to those in `to`.
    pub from: Vec<GrantFrom>,
    /// To which objects they may refer.
    pub to: Vec<GrantTo>,
}

/// Objects of one kind and namespace, which may refer to others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GrantFrom {
    /// The API group of the objects.
    pub group: String,
    /// The kind of the objects.
    pub kind: String,
    /// The namespace of the objects.
    pub namespace: String,
}

/// Objects of one kind, to which others may refer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GrantTo {
    /// The API group of the objects; `""` is the core group.
    pub group: String,
    /// The kind of the objects.
    pub kind: String,
    /// The name of the only object that is meant. Default: all objects of the kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// What controllers report about a route. It is decoded so that an object copied from a cluster is valid.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RouteStatus {
    /// One entry per parent and controller. A parent is an object to which the route is attached.
    #[serde(default)]
    pub parents: Vec<RouteParentStatus>,
}

/// What one controller reports about a route for one parent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RouteParentStatus {
    /// The parent.
    pub parent_ref: ParentRef,
    /// The name of the controller.
    pub controller_name: String,
    /// The conditions `Accepted`, `ResolvedRefs` and others.
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
    /// Whether the object is a Service of Kubernetes' core group.
    #[must_use]
    pub fn is_service(&self) -> bool {
        self.group.as_deref().unwrap_or_default().is_empty()
            && self.kind.as_deref().unwrap_or("Service") == "Service"
    }
}

impl ParentRef {
    /// Whether the object is a Service of Kubernetes' core group. If so, the route belongs to the mesh.
    #[must_use]
    pub fn is_service(&self) -> bool {
        let group = self.group.as_deref().unwrap_or(GATEWAY_GROUP);
        matches!(group, "" | "core") && self.kind.as_deref() == Some("Service")
    }
}
