//! References between objects, and the grants that allow them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use serde::{Deserialize, Serialize};

/// The Gateway API's group.
pub const GATEWAY_GROUP: &str = "gateway.networking.k8s.io";

/// What a route attaches to. In a mesh: `kind: Service`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ParentRef {
    /// The API group; the Gateway API's own where none is given, `""` for a Service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The kind; `Gateway` where none is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The namespace; the route's own where none is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The name.
    pub name: String,
    /// A part of it. Of a Service: the name of a port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub section_name: Option<String>,
    /// A port of it; all of them where none is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<i32>,
}

/// An object that takes requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BackendObject {
    /// The API group; core where none is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The kind; `Service` where none is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The namespace; the route's own where none is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The name.
    pub name: String,
    /// The port of a Service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<i32>,
}

/// Where a rule sends requests, and what part of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BackendRef {
    /// The API group; core where none is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The kind; `Service` where none is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The namespace; the route's own where none is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The name.
    pub name: String,
    /// The port of a Service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<i32>,
    /// Its part of the sum of all weights; 1 where none is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<i32>,
    /// What is done to requests that go there, after what the rule does to all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filters: Option<Vec<super::RouteFilter>>,
}

/// Lets objects of other namespaces refer to objects of this one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReferenceGrant {
    /// `apiVersion` as written.
    pub api_version: String,
    /// `kind` as written.
    pub kind: String,
    /// Name and namespace: the namespace that is opened.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// What is granted.
    pub spec: ReferenceGrantSpec,
}

/// What is granted to whom.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReferenceGrantSpec {
    /// Who may refer: any of these.
    pub from: Vec<GrantFrom>,
    /// To what: any of these.
    pub to: Vec<GrantTo>,
}

/// Who may refer.
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

/// What may be referred to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GrantTo {
    /// The API group; `""` is core.
    pub group: String,
    /// The kind.
    pub kind: String,
    /// The name; every object of the kind where none is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// What controllers have made of a route. Read, so that an object taken from a cluster is accepted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RouteStatus {
    /// One entry a parent and controller.
    #[serde(default)]
    pub parents: Vec<RouteParentStatus>,
}

/// What one controller has made of a route for one parent.
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
    /// The object without weight and filters.
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
    /// Whether it is a Service of Kubernetes' core group: a route of the mesh.
    #[must_use]
    pub fn is_service(&self) -> bool {
        let group = self.group.as_deref().unwrap_or(GATEWAY_GROUP);
        matches!(group, "" | "core") && self.kind.as_deref() == Some("Service")
    }
}
