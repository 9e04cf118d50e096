//! Opens the parts of the control plane that serving needs, for files or for a cluster.

use std::net::SocketAddr;
use std::sync::Arc;

use leno_cluster::KeySecrets;
use leno_identity::Authority;
use leno_keys::{DocumentStore, KeySets, WebAuthorities};
use leno_serve::{Authenticator, PlaneState, ServerCredentials};
use leno_sources::SourceUpdate;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::admin::Render;
use crate::config::{Config, MeshSource};
use crate::refused::RefusedLog;
use crate::rotation::ClusterParts;
use crate::stored::AdmissionObjects;
use crate::webhook::Webhook;

mod cluster;
mod files;

/// All parts of a control plane except its server.
pub(crate) struct Plane {
    pub(crate) authority: Arc<Authority>,
    pub(crate) authenticator: Arc<dyn Authenticator>,
    pub(crate) source: PlaneSource,
    pub(crate) metrics: Vec<Render>,
    /// Append the lines that `/ready?verbose` adds to `/ready`.
    pub(crate) details: Vec<Render>,
    pub(crate) webhook: Option<WebhookServer>,
    /// The parts for rotating the authority of a cluster; `None` outside of a cluster.
    pub(crate) rotation: Option<ClusterParts>,
    /// The store that keeps other trust domains' bundles for the next start.
    pub(crate) bundles: DocumentStore,
}

/// The server of the webhooks, which the API server calls.
pub(crate) struct WebhookServer {
    pub(crate) address: SocketAddr,
    pub(crate) credentials: ServerCredentials,
    pub(crate) webhook: Arc<Webhook>,
}

/// The source of changes, and the parts that follow them.
pub(crate) struct PlaneSource {
    pub(crate) updates: mpsc::Receiver<SourceUpdate>,
    /// The keys of token issuers to which policies refer by URL.
    pub(crate) keys: KeySets,
    /// The Secrets with keys of token issuers; `None` outside of a cluster.
    pub(crate) secrets: Option<KeySecrets>,
    /// Updates the status of routes and policies after these changes; `None` outside of a cluster.
    pub(crate) statuses: Option<Arc<leno_cluster::StatusReconciler>>,
    /// The objects that the webhooks use.
    pub(crate) stored: Option<Arc<AdmissionObjects>>,
    /// The ignored endpoints that were already logged.
    pub(crate) refused: RefusedLog,
    /// The task that competes for the leader's Lease. It must complete before the process ends, because it then
    /// releases the Lease. `None` outside of a cluster.
    pub(crate) last: Option<JoinHandle<()>>,
}

impl Plane {
    /// Opens the configured source. If the API server does not answer yet, waits for it.
    pub(crate) async fn open(
        config: &Config,
        of: (&Arc<PlaneState>, &Arc<WebAuthorities>),
        stop: &watch::Receiver<bool>,
    ) -> anyhow::Result<Self> {
        match &config.source {
            MeshSource::Files(files) => {
                files::open(files, (config.issuer.as_deref(), &config.trust_domain), of.1)
            }
            MeshSource::Cluster(cluster) => cluster::open(cluster, config, of, stop).await,
        }
    }
}
