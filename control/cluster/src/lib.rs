//! What the control plane keeps in a Kubernetes cluster, and asks of it, beside the objects that it
//! follows.
//!
//! ```text
//!  Secret       <- authority   what all replicas sign with, made by the first of them, replaced by the one that leads
//!  Secrets      -> key_secrets  keys of tokens, where a Role lets it read them
//!  its own pod, ConfigMap  -> replicas  what others say of their proxies, and what an operator asks for
//!  TokenReview  <- tokens      whose token a proxy shows, and on which node the pods of a node proxy run
//!  routes and policies  <- statuses  their status, by the replica that leads
//!  ConfigMaps   <- roots       what proxies check the control plane by, in every namespace, by it
//!  Secrets      <- kept        fetched keys and trust bundles, for replicas that start, by it
//!  ClusterTrustBundle <- trust_bundle  the mesh's roots, for pods that mount them, by it
//!  PodCertificateRequests <- pod_certificates  certificates that kubelets request for pods, by it
//!  webhooks     <- webhooks    what the API server checks the control plane by, by it
//!  Deployments, Services, ServiceAccounts, Gateways  <- waypoints  the pods of waypoints, by it
//!  XMesh        <- xmesh       what the mesh says of itself, by it
//!  its own pod  <- replica     whether it follows all kinds (kinds), whether proxies enforce all (unenforced), by each
//!  a removal    <- removal     taken back, step by step, if the mesh was installed again, by it
//! ```
//!
//! The replicas share nothing but the API server, and what one of them does twice or too late is
//! refused by it: a Secret is created once, and a Lease or a status is replaced only in the version
//! that was read.
//!
//! It does not know what objects mean (`leno-index`, `leno-status`), how they are followed
//! (`leno-sources`), how the API server is reached (`leno-kube`) or how proxies are served (`leno-serve`).
//!
//! All that is kept runs as a `Reconciler` (`reconcile`).
//!
//! Read first: [`authority`], [`TokenReviewer`], [`StatusReconciler`], [`RootsReconciler`], [`WebhookReconciler`],
//! [`XMeshReconciler`], [`RemovalReconciler`], [`FetchedReconciler`], [`PodCertificateSigner`].

mod authority;
mod certificates_api;
mod counts;
mod fetched;
mod key_secrets;
mod kinds;
mod pem;
mod pod_certificates;
mod reconcile;
mod removal;
mod replica;
mod replicas;
mod roots;
mod statuses;
mod tokens;
mod trust_bundle;
mod unenforced;
mod waypoints;
mod webhooks;
mod xmesh;

pub use authority::{
    AuthorityError, AuthorityReconciler, AuthorityStore, SECRET, StoreError, authority,
};
pub use fetched::{BUNDLES, FetchedReconciler, KEYS};
pub use key_secrets::KeySecrets;
pub use kinds::{FailingKind, kinds_followed};
pub use pod_certificates::PodCertificateSigner;
pub use removal::{HeldRemoval, RemovalProgress, RemovalReconciler};
pub use replica::{ReplicaPodCondition, ReplicaReport, ReplicaReporter, ReportSource};
pub use replicas::{ReplicaTrust, Replicas, TRUST_ANNOTATION};
pub use roots::{CONFIG_MAP, RootsReconciler};
pub use statuses::{AffectedStatuses, StatusReconciler};
pub use tokens::{AUDIENCE, NODE_ACCOUNT, TokenReviewer};
pub use trust_bundle::{TRUST_BUNDLE, TrustBundleReconciler};
pub use unenforced::{
    POLICIES_CONDITION, UNENFORCED_ANNOTATION, policies_enforced, unenforced_annotation,
};
pub use waypoints::{WAYPOINT_CLASS, WaypointReconciler};
pub use webhooks::{INJECTOR, VALIDATOR, WebhookReconciler};
pub use xmesh::{FEATURES, MESH, XMeshReconciler};
