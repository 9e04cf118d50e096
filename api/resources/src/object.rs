//! The kinds of object that Leno reads.

use std::fmt;

use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret, Service, ServiceAccount};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Deserializer, Serialize};

use crate::authorization::{AuthorizationPolicy, AuthorizationPolicySpec};
use crate::exemption::{PodExemption, PodExemptionSpec};
use crate::gateway::{
    BackendTlsPolicy, GrpcRoute, HttpRoute, PolicyStatus, ReferenceGrant, TcpRoute, TlsRoute,
};
use crate::metadata::Metadata;
use crate::objective::{ServiceLevelObjective, ServiceLevelObjectiveSpec};
use crate::proxy::{Proxy, ProxySpec};
use crate::ratelimit::{RateLimitPolicy, RateLimitPolicySpec};
use crate::traffic::{TrafficPolicy, TrafficPolicySpec};
use crate::workload::{Workload, WorkloadSpec, WorkloadStatus};

/// Any object that Leno reads.
#[derive(Clone, Debug, PartialEq)]
pub enum Object {
    /// A namespace. Leno reads its annotations.
    Namespace(Box<Namespace>),
    /// A service.
    Service(Box<Service>),
    /// A service account.
    ServiceAccount(Box<ServiceAccount>),
    /// Endpoints of a service.
    EndpointSlice(Box<EndpointSlice>),
    /// A `ConfigMap` with certificates of authorities or keys of tokens, to which policies refer.
    ConfigMap(Box<ConfigMap>),
    /// A `Secret` with keys of tokens. Leno does not read other Secrets.
    Secret(Box<Secret>),
    /// A route of HTTP requests.
    HttpRoute(Box<HttpRoute>),
    /// A route of gRPC calls.
    GrpcRoute(Box<GrpcRoute>),
    /// A route of TLS connections.
    TlsRoute(Box<TlsRoute>),
    /// A route of TCP connections.
    TcpRoute(Box<TcpRoute>),
    /// A permission to refer to objects of a namespace.
    ReferenceGrant(Box<ReferenceGrant>),
    /// How proxies originate TLS to a service outside of the mesh.
    BackendTlsPolicy(Box<BackendTlsPolicy>),
    /// How clients treat a service.
    TrafficPolicy(Box<TrafficPolicy>),
    /// Rate limits of a workload.
    RateLimitPolicy(Box<RateLimitPolicy>),
    /// Which clients may connect to a workload.
    AuthorizationPolicy(Box<AuthorizationPolicy>),
    /// Which pods may have less strict settings than their namespace requires.
    PodExemption(Box<PodExemption>),
    /// An objective for how well a workload serves requests.
    ServiceLevelObjective(Box<ServiceLevelObjective>),
    /// A local process.
    Workload(Box<Workload>),
    /// A static proxy.
    Proxy(Box<Proxy>),
}

/// The kind of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// `v1` `Namespace`.
    Namespace,
    /// `v1` `Service`.
    Service,
    /// `v1` `ServiceAccount`.
    ServiceAccount,
    /// `discovery.k8s.io/v1` `EndpointSlice`.
    EndpointSlice,
    /// `v1` `ConfigMap`.
    ConfigMap,
    /// `v1` `Secret`, only for keys of tokens.
    Secret,
    /// `gateway.networking.k8s.io/v1` `HTTPRoute`.
    HttpRoute,
    /// `gateway.networking.k8s.io/v1` `GRPCRoute`.
    GrpcRoute,
    /// `gateway.networking.k8s.io/v1` `TLSRoute`.
    TlsRoute,
    /// `gateway.networking.k8s.io/v1` `TCPRoute`.
    TcpRoute,
    /// `gateway.networking.k8s.io/v1` `ReferenceGrant`.
    ReferenceGrant,
    /// `gateway.networking.k8s.io/v1` `BackendTLSPolicy`.
    BackendTlsPolicy,
    /// `leno.dev/v1alpha1` `TrafficPolicy`.
    TrafficPolicy,
    /// `leno.dev/v1alpha1` `RateLimitPolicy`.
    RateLimitPolicy,
    /// `leno.dev/v1alpha1` `AuthorizationPolicy`.
    AuthorizationPolicy,
    /// `leno.dev/v1alpha1` `PodExemption`.
    PodExemption,
    /// `leno.dev/v1alpha1` `ServiceLevelObjective`.
    ServiceLevelObjective,
    /// `leno.dev/v1alpha1` `Workload`.
    Workload,
    /// `leno.dev/v1alpha1` `Proxy`.
    Proxy,
}

/// Identifies an object among all objects that are applied.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    /// The kind of the object.
    pub kind: Kind,
    /// The namespace of the object; empty for a `Namespace` itself.
    pub namespace: String,
    /// The name of the object.
    pub name: String,
}

impl Kind {
    /// Every kind except `Secret`, which is never listed.
    pub const ALL: [Self; 18] = [
        Self::Namespace,
        Self::Service,
        Self::ServiceAccount,
        Self::EndpointSlice,
        Self::ConfigMap,
        Self::HttpRoute,
        Self::GrpcRoute,
        Self::TlsRoute,
        Self::TcpRoute,
        Self::ReferenceGrant,
        Self::BackendTlsPolicy,
        Self::TrafficPolicy,
        Self::RateLimitPolicy,
        Self::AuthorizationPolicy,
        Self::PodExemption,
        Self::ServiceLevelObjective,
        Self::Workload,
        Self::Proxy,
    ];

    /// The kinds of the Gateway API that attach to services and route their traffic.
    pub const ROUTES: [Self; 4] =
        [Self::HttpRoute, Self::GrpcRoute, Self::TlsRoute, Self::TcpRoute];

    /// Whether this is the kind of a policy that is attached to objects and has a status (GEP-713).
    #[must_use]
    pub const fn is_policy(self) -> bool {
        matches!(
            self,
            Self::TrafficPolicy
                | Self::RateLimitPolicy
                | Self::AuthorizationPolicy
                | Self::BackendTlsPolicy
        )
    }

    /// The kind as written in `kind` in YAML.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Namespace => "Namespace",
            Self::Service => "Service",
            Self::ServiceAccount => "ServiceAccount",
            Self::EndpointSlice => "EndpointSlice",
            Self::ConfigMap => "ConfigMap",
            Self::Secret => "Secret",
            Self::HttpRoute => "HTTPRoute",
            Self::GrpcRoute => "GRPCRoute",
            Self::TlsRoute => "TLSRoute",
            Self::TcpRoute => "TCPRoute",
            Self::ReferenceGrant => "ReferenceGrant",
            Self::BackendTlsPolicy => "BackendTLSPolicy",
            Self::TrafficPolicy => "TrafficPolicy",
            Self::RateLimitPolicy => "RateLimitPolicy",
            Self::AuthorizationPolicy => "AuthorizationPolicy",
            Self::PodExemption => "PodExemption",
            Self::ServiceLevelObjective => "ServiceLevelObjective",
            Self::Workload => "Workload",
            Self::Proxy => "Proxy",
        }
    }

    /// The `apiVersion` that Leno writes to YAML.
    #[must_use]
    pub const fn api_version(self) -> &'static str {
        self.api_versions()[0]
    }

    /// Every `apiVersion` that Leno accepts, the newest first. All have the same fields.
    #[must_use]
    pub const fn api_versions(self) -> &'static [&'static str] {
        match self {
            Self::Namespace
            | Self::Service
            | Self::ServiceAccount
            | Self::ConfigMap
            | Self::Secret => &["v1"],
            Self::EndpointSlice => &["discovery.k8s.io/v1"],
            Self::GrpcRoute => &["gateway.networking.k8s.io/v1"],
            Self::BackendTlsPolicy => {
                &["gateway.networking.k8s.io/v1", "gateway.networking.k8s.io/v1alpha3"]
            }
            Self::TlsRoute => &[
                "gateway.networking.k8s.io/v1",
                "gateway.networking.k8s.io/v1alpha3",
                "gateway.networking.k8s.io/v1alpha2",
            ],
            Self::TcpRoute => {
                &["gateway.networking.k8s.io/v1", "gateway.networking.k8s.io/v1alpha2"]
            }
            Self::HttpRoute | Self::ReferenceGrant => {
                &["gateway.networking.k8s.io/v1", "gateway.networking.k8s.io/v1beta1"]
            }
            Self::TrafficPolicy
            | Self::RateLimitPolicy
            | Self::AuthorizationPolicy
            | Self::PodExemption
            | Self::ServiceLevelObjective
            | Self::Workload
            | Self::Proxy => &["leno.dev/v1alpha1"],
        }
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.as_str())?;
        match self.namespace.as_str() {
            "" => write!(f, " {}", self.name),
            namespace => write!(f, " {namespace}/{}", self.name),
        }
    }
}

impl Object {
    /// The key of this object.
    #[must_use]
    pub fn key(&self) -> ObjectKey {
        let of_meta = |kind, meta: &ObjectMeta| ObjectKey {
            kind,
            namespace: meta.namespace.clone().unwrap_or_default(),
            name: meta.name.clone().unwrap_or_default(),
        };
        let of_own = |kind, metadata: &Metadata| ObjectKey {
            kind,
            namespace: metadata.namespace.clone(),
            name: metadata.name.clone(),
        };
        match self {
            Self::Namespace(object) => of_meta(Kind::Namespace, &object.metadata),
            Self::Service(object) => of_meta(Kind::Service, &object.metadata),
            Self::ServiceAccount(object) => of_meta(Kind::ServiceAccount, &object.metadata),
            Self::EndpointSlice(object) => of_meta(Kind::EndpointSlice, &object.metadata),
            Self::ConfigMap(object) => of_meta(Kind::ConfigMap, &object.metadata),
            Self::Secret(object) => of_meta(Kind::Secret, &object.metadata),
            Self::HttpRoute(object) => of_meta(Kind::HttpRoute, &object.metadata),
            Self::GrpcRoute(object) => of_meta(Kind::GrpcRoute, &object.metadata),
            Self::TlsRoute(object) => of_meta(Kind::TlsRoute, &object.metadata),
            Self::TcpRoute(object) => of_meta(Kind::TcpRoute, &object.metadata),
            Self::ReferenceGrant(object) => of_meta(Kind::ReferenceGrant, &object.metadata),
            Self::BackendTlsPolicy(object) => of_meta(Kind::BackendTlsPolicy, &object.metadata),
            Self::TrafficPolicy(object) => of_own(Kind::TrafficPolicy, &object.metadata),
            Self::RateLimitPolicy(object) => of_own(Kind::RateLimitPolicy, &object.metadata),
            Self::AuthorizationPolicy(object) => {
                of_own(Kind::AuthorizationPolicy, &object.metadata)
            }
            Self::PodExemption(object) => of_own(Kind::PodExemption, &object.metadata),
            Self::ServiceLevelObjective(object) => {
                of_own(Kind::ServiceLevelObjective, &object.metadata)
            }
            Self::Workload(object) => of_own(Kind::Workload, &object.metadata),
            Self::Proxy(object) => of_own(Kind::Proxy, &object.metadata),
        }
    }
}

impl Object {
    /// Reads a policy from a document without checking it. `None` if it cannot be decoded, or if `kind` is not a
    /// policy.
    pub fn unchecked_policy<'de, D: Deserializer<'de>>(kind: Kind, document: D) -> Option<Self> {
        match kind {
            Kind::TrafficPolicy => {
                StatusDocument::<TrafficPolicySpec, _>::deserialize(document).ok().map(Into::into)
            }
            Kind::RateLimitPolicy => {
                StatusDocument::<RateLimitPolicySpec, _>::deserialize(document).ok().map(Into::into)
            }
            Kind::AuthorizationPolicy => {
                StatusDocument::<AuthorizationPolicySpec, _>::deserialize(document)
                    .ok()
                    .map(Into::into)
            }
            Kind::BackendTlsPolicy => {
                let read = BackendTlsPolicy::deserialize(document).ok();
                read.map(|policy| Self::BackendTlsPolicy(Box::new(policy)))
            }
            _ => None,
        }
    }
}

/// Formats the object as one YAML document; [`crate::parse`] reads it back as an equal object.
#[must_use]
pub fn to_yaml(object: &Object) -> String {
    let text = match object {
        Object::Namespace(object) => serde_saphyr::to_string(object),
        Object::Service(object) => serde_saphyr::to_string(object),
        Object::ServiceAccount(object) => serde_saphyr::to_string(object),
        Object::EndpointSlice(object) => serde_saphyr::to_string(object),
        Object::ConfigMap(object) => serde_saphyr::to_string(object),
        Object::Secret(object) => serde_saphyr::to_string(object),
        Object::HttpRoute(object) => serde_saphyr::to_string(object),
        Object::GrpcRoute(object) => serde_saphyr::to_string(object),
        Object::TlsRoute(object) => serde_saphyr::to_string(object),
        Object::TcpRoute(object) => serde_saphyr::to_string(object),
        Object::ReferenceGrant(object) => serde_saphyr::to_string(object),
        Object::BackendTlsPolicy(object) => serde_saphyr::to_string(object),
        Object::TrafficPolicy(object) => {
            let kind = Kind::TrafficPolicy;
            own(kind, &object.metadata, &object.spec, object.status.as_ref())
        }
        Object::RateLimitPolicy(object) => {
            let kind = Kind::RateLimitPolicy;
            own(kind, &object.metadata, &object.spec, object.status.as_ref())
        }
        Object::AuthorizationPolicy(object) => {
            let kind = Kind::AuthorizationPolicy;
            own(kind, &object.metadata, &object.spec, object.status.as_ref())
        }
        Object::Workload(object) => {
            own(Kind::Workload, &object.metadata, &object.spec, object.status.as_ref())
        }
        Object::PodExemption(object) => {
            own(Kind::PodExemption, &object.metadata, &object.spec, None::<&()>)
        }
        Object::ServiceLevelObjective(object) => {
            own(Kind::ServiceLevelObjective, &object.metadata, &object.spec, None::<&()>)
        }
        Object::Proxy(object) => own(Kind::Proxy, &object.metadata, &object.spec, None::<&()>),
    };
    text.expect("these types hold texts, numbers, lists and maps with text keys only")
}

fn own<S: Serialize, T: Serialize>(
    kind: Kind,
    metadata: &Metadata,
    spec: &S,
    status: Option<&T>,
) -> Result<String, serde_saphyr::SerializeError> {
    let (api_version, kind) = (kind.api_version(), kind.as_str());
    serde_saphyr::to_string(&Document { api_version, kind, metadata, spec, status })
}

/// A document of Leno's own API group, as Leno writes it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document<'a, S, T> {
    api_version: &'static str,
    kind: &'static str,
    metadata: &'a Metadata,
    spec: &'a S,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<&'a T>,
}

/// A document of Leno's own API group with a status, as Leno reads it.
#[derive(Deserialize)]
pub(crate) struct StatusDocument<S, T> {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
    metadata: Metadata,
    spec: S,
    status: Option<T>,
}

/// A `Workload` document, as Leno reads it.
pub(crate) type WorkloadDocument = StatusDocument<WorkloadSpec, WorkloadStatus>;

/// The document of a policy, as Leno reads it.
pub(crate) type PolicyDocument<S> = StatusDocument<S, PolicyStatus>;

/// A document of Leno's own API group without a status, as Leno reads it.
#[derive(Deserialize)]
pub(crate) struct OwnDocument<S> {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
    metadata: Metadata,
    spec: S,
}

impl From<WorkloadDocument> for Object {
    fn from(document: WorkloadDocument) -> Self {
        Self::Workload(Box::new(Workload {
            metadata: document.metadata,
            spec: document.spec,
            status: document.status,
        }))
    }
}

impl From<OwnDocument<PodExemptionSpec>> for Object {
    fn from(document: OwnDocument<PodExemptionSpec>) -> Self {
        let OwnDocument { metadata, spec, .. } = document;
        Self::PodExemption(Box::new(PodExemption { metadata, spec }))
    }
}

impl From<OwnDocument<ServiceLevelObjectiveSpec>> for Object {
    fn from(document: OwnDocument<ServiceLevelObjectiveSpec>) -> Self {
        let OwnDocument { metadata, spec, .. } = document;
        Self::ServiceLevelObjective(Box::new(ServiceLevelObjective { metadata, spec }))
    }
}

impl From<OwnDocument<ProxySpec>> for Object {
    fn from(document: OwnDocument<ProxySpec>) -> Self {
        Self::Proxy(Box::new(Proxy { metadata: document.metadata, spec: document.spec }))
    }
}

impl From<StatusDocument<TrafficPolicySpec, PolicyStatus>> for Object {
    fn from(document: StatusDocument<TrafficPolicySpec, PolicyStatus>) -> Self {
        let StatusDocument { metadata, spec, status, .. } = document;
        Self::TrafficPolicy(Box::new(TrafficPolicy { metadata, spec, status }))
    }
}

impl From<StatusDocument<RateLimitPolicySpec, PolicyStatus>> for Object {
    fn from(document: StatusDocument<RateLimitPolicySpec, PolicyStatus>) -> Self {
        let StatusDocument { metadata, spec, status, .. } = document;
        Self::RateLimitPolicy(Box::new(RateLimitPolicy { metadata, spec, status }))
    }
}

impl From<StatusDocument<AuthorizationPolicySpec, PolicyStatus>> for Object {
    fn from(document: StatusDocument<AuthorizationPolicySpec, PolicyStatus>) -> Self {
        let StatusDocument { metadata, spec, status, .. } = document;
        Self::AuthorizationPolicy(Box::new(AuthorizationPolicy { metadata, spec, status }))
    }
}
