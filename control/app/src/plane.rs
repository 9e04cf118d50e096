//! What serving needs, from wherever it is.

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

/// A control plane but for its server.
pub(crate) struct Plane {
    pub(crate) authority: Arc<Authority>,
    pub(crate) authenticator: Arc<dyn Authenticator>,
    pub(crate) source: PlaneSource,
    pub(crate) metrics: Vec<Render>,
    /// What `/ready?verbose` adds.
    pub(crate) details: Vec<Render>,
    pub(crate) webhook: Option<WebhookServer>,
    /// What moves the authority of a cluster.
    pub(crate) rotation: Option<ClusterParts>,
    /// Where trust bundles of other trust domains are kept for the next start.
    pub(crate) bundles: DocumentStore,
}

/// What the API server calls.
pub(crate) struct WebhookServer {
    pub(crate) address: SocketAddr,
    pub(crate) credentials: ServerCredentials,
    pub(crate) webhook: Arc<Webhook>,
}

/// Where changes come from.
pub(crate) struct PlaneSource {
    pub(crate) updates: mpsc::Receiver<SourceUpdate>,
    /// The keys of issuers of tokens that policies name by URL.
    pub(crate) keys: KeySets,
    /// The Secrets with such keys, in a cluster.
    pub(crate) secrets: Option<KeySecrets>,
    /// What takes note of changes beside the index.
    pub(crate) statuses: Option<Arc<leno_cluster::StatusReconciler>>,
    /// What the webhooks look at.
    pub(crate) stored: Option<Arc<AdmissionObjects>>,
    /// The endpoints that were logged as ignored.
    pub(crate) refused: RefusedLog,
    /// What has to come to its end before the process does.
    pub(crate) last: Option<JoinHandle<()>>,
}

impl Plane {
    /// Opens what the configuration names. A cluster that does not answer yet is waited for.
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
