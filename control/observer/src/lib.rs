//! The history of the mesh of a Kubernetes cluster, and the rights of its readers.
//!
//! ```text
//!  API server ── pods, namespaces ──► Pods ─┬─► MeshState, marks ─┐
//!  proxies ── /metrics, every 5 s ──► Scrape ┴─► MeshGrowth ───────┴─► Hub (leno-dashboard) ─► a file
//!  agents ── /metrics, every 30 s ──► connections that the kernel counts ─┘  │
//!                                                                            │
//!  API server ◄── TokenReview, SubjectAccessReview ── Readers ──► VisibleNamespaces ──► JSON ◄── leno, browser
//! ```
//! The observer runs as `leno-controller observe` in a separate pod, so that a fault in it affects neither the
//! mesh nor the control plane. Like a Prometheus server, it connects to proxies at the addresses of their pods. A
//! reader sees the namespaces in which they may open port-forwards to pods, which `leno stat` and `leno tap` need
//! as well.
//!
//! Queries about the mesh are answered by `leno-dashboard`, and the metrics of proxies are interpreted by
//! `leno-observe`.
//!
//! Read first: [`observe`], `readers.rs`.

mod agents;
mod marks;
mod metrics;
mod objects;
mod pods;
mod readers;
mod scrape;
mod serve;
mod state;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use leno_dashboard::hub::Hub;
pub use leno_dashboard::visible_namespaces::PORT;
use leno_kube::Client;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use metrics::Metrics;
use objects::ObjectEdits;
use pods::Pods;
use readers::Readers;
use scrape::Scraper;
use serve::{Admin, ObserverFront};

/// The name of the mesh if none is configured.
pub const MESH: &str = "cluster";

/// The settings of the observer.
#[derive(Clone, Debug)]
pub struct ObserverSettings {
    /// The name of the mesh.
    pub mesh: String,
    /// The control plane's namespace, which is the observer's own.
    pub namespace: String,
    /// The path of the file with the history.
    pub history: PathBuf,
    /// The address on which the page and the interface are served. It is on loopback and reached by port-forward,
    /// because the connections are not encrypted.
    pub listen: SocketAddr,
    /// The address on which `/metrics`, `/ready` and `/live` are served.
    pub admin: Option<SocketAddr>,
}

/// Why the observer does not run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The history cannot be read.
    #[error("cannot read {}", .0.display())]
    History(PathBuf, #[source] io::Error),
    /// An address cannot be used.
    #[error("cannot listen on {0}")]
    Listen(SocketAddr, #[source] io::Error),
}

/// Observes the mesh of the client's cluster until the future is dropped.
///
/// # Errors
/// If the file of the history or an address cannot be used.
pub async fn observe(client: Client, settings: ObserverSettings) -> Result<(), Error> {
    let path = settings.history.clone();
    let hub = Hub::open(&settings.mesh, path.clone());
    let hub = Arc::new(hub.map_err(|error| Error::History(path, error))?);
    let listen = async |address: SocketAddr| {
        TcpListener::bind(address).await.map_err(|error| Error::Listen(address, error))
    };
    let (metrics, pods) = (Arc::new(Metrics::default()), Arc::new(Pods::default()));
    let readers = Readers::new(client.clone(), &settings.namespace, metrics.clone());
    let front = ObserverFront::new(hub.clone(), pods.clone(), readers);
    let edits = Arc::new(ObjectEdits::default());
    let admin = Admin {
        hub: hub.clone(),
        pods: pods.clone(),
        edits: edits.clone(),
        metrics: metrics.clone(),
        limits: front.limits.clone(),
    };
    let (listener, admin_listener) = (
        listen(settings.listen).await?,
        match settings.admin {
            Some(address) => Some(listen(address).await?),
            None => None,
        },
    );
    serve::say_where(&listener, admin_listener.as_ref());
    let followed = pods.clone().follow(client.clone());
    let edited = edits.clone().follow(client);
    let mut scraper = Scraper::new(&settings, (pods, edits), hub, metrics);
    // Separate tasks, so that collecting metrics, probes and readers do not delay each other.
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { scraper.run().await });
    tasks.spawn(async move { admin.serve(admin_listener).await });
    tokio::select! {
        () = followed => {}
        () = edited => {}
        () = front.serve(listener) => {}
        Some(ended) = tasks.join_next() => {
            if let Err(error) = ended && error.is_panic() {
                std::panic::resume_unwind(error.into_panic());
            }
        }
    }
    Ok(())
}
