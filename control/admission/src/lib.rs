//! Adds the proxy to pods, removes it again, and checks objects of the mesh before they are stored. This crate
//! does no I/O.
//!
//! [`inject`] takes a pod, or the template of one, and adds what a pod of the mesh needs: the proxy's container,
//! its volumes, and probes that reach the application through it. [`uninject`] is its exact inverse. [`rewrite`]
//! applies either to every pod template in a text of YAML or JSON, and keeps the form of all other text.
//!
//! ```text
//! text ─► documents ─► pod templates ─► inject ─► text       leno inject, leno uninject
//! review ─► pod ─────────────────────► inject ─► JSON patch  the controller's webhooks
//!        └► object of the mesh ─► judge ─► denial, warnings
//! ```
//!
//! [`judge`] decides whether an object of the mesh may be stored, by the checks of `leno analyze`, against those
//! [`StoredObjects`] that it touches.
//!
//! A pod is a [`JsonValue`] and not a struct, so fields that this crate does not change are never lost. The crate
//! does not check who sends a request, and has no Kubernetes client.
//!
//! Read first: [`inject`], [`InjectionSettings`], [`PodOutcome`], [`rewrite`]; [`AdmissionReview`] and [`judge`].

mod container;
mod inject;
mod judge;
mod mode;
mod ports;
mod pre_stop;
mod probes;
mod review;
mod settings;
mod stored;
mod stream;
mod uninject;
mod value;
mod waypoint;
mod workload;
mod workload_api;

pub use container::waypoint_pod;
pub use inject::{InjectError, NamespaceFloor, PodContext, PodOutcome, SkipReason, inject, patch};
pub use judge::{is_unjudged, judge};
pub use mode::ProxiesOfNamespace;
pub use review::{AdmissionReview, ReviewAnswer, ReviewError};
pub use settings::{
    ContainerResources, ContainerShape, DEFAULT_CONTROL, DEFAULT_PRE_STOP_SLEEP, InjectionSettings,
    NoWorkloadApiVolume, WorkloadApiVolume, access_log, exports, metrics_compat,
    pod_certificate_seconds, pull_secrets, scrape_from, traces,
};
pub use stored::StoredObjects;
pub use stream::{ManifestFormat, StreamError, rewrite};
pub use uninject::{UninjectError, uninject};
pub use value::JsonValue;
pub use workload::{InjectionOutcome, InjectionReport, inject_document, uninject_document};

/// The name of the proxy's container.
pub const CONTAINER: &str = "leno-proxy";
/// The volume that contains the token with which the proxy authenticates to the control plane.
pub const TOKEN_VOLUME: &str = "leno-token";
/// The volume with the socket of the SPIFFE Workload API that issues the proxy's certificates, or that the proxy serves to the
/// containers of its pod.
pub const WORKLOAD_API_VOLUME: &str = "leno-workload-api";
/// The volume with the certificate that the kubelet requests for the pod.
pub const IDENTITY_VOLUME: &str = "leno-identity";
/// The name of a volume, and of the ConfigMap in it, that contains the roots for verifying the control plane.
pub const ROOTS: &str = "leno-roots";
/// The field of that ConfigMap with the roots.
pub const ROOTS_KEY: &str = "roots.pem";
