//! What the control plane stores in a Kubernetes cluster, and what it reads there besides the objects of the mesh.
//!
//! ```text
//!  Secret       <- authority   what all replicas sign with, made by the first of them, replaced by the leader
//!  Secrets      -> key_secrets  keys of tokens, where a Role permits it
//!  its own pod, ConfigMap  -> replicas  what other replicas report about their proxies, and an operator's requests
//!  TokenReview  <- tokens      who owns the token that a proxy shows, and on which node a node proxy runs
//!  routes and policies  <- statuses  their status; written by the leader, as all that follows up to `xmesh`
//!  ConfigMaps   <- roots       the roots by which proxies verify the control plane, in every namespace
//!  Secrets      <- kept        fetched keys and trust bundles, for replicas that start
//!  ClusterTrustBundle <- trust_bundle  the mesh's roots, for pods that mount them
//!  PodCertificateRequests <- pod_certificates  certificates that kubelets request for pods
//!  webhooks     <- webhooks    the roots by which the API server verifies the control plane
//!  Deployments, Services, ServiceAccounts, Gateways  <- waypoints  the pods of waypoints
//!  XMesh        <- xmesh       the features of the mesh
//!  its own pod  <- replica     whether it follows all kinds (kinds), and whether its proxies enforce all policies (unenforced); by each replica
//!  DaemonSet    -> agents      whether the agents of all nodes report which pods node proxies serve
//!  a removal    <- removal     cancelled step by step if the mesh was installed again; by the leader
//! ```
//!
//! The replicas communicate only through the API server. It prevents conflicts between them: a Secret can be
//! created only once, and a Lease or a status can be replaced only in the version that was read.
//!
//! Other crates interpret objects (`leno-index`, `leno-status`), follow them (`leno-sources`), connect to the API
//! server (`leno-kube`) and serve proxies (`leno-serve`).
//!
//! Every part that writes repeatedly is a `Reconciler` (`reconcile`).
//!
//! Read first: [`authority`], [`TokenReviewer`], [`StatusReconciler`], [`RootsReconciler`], [`WebhookReconciler`],
//! [`XMeshReconciler`], [`RemovalReconciler`], [`FetchedReconciler`], [`PodCertificateSigner`].

mod agents;
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

pub use agents::until_agents_report;
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
