//! What the command line does in a Kubernetes cluster: query it, check an installation, remove it.
//!
//! The chart (`leno-charts`) defines what is installed, and kubectl or Helm applies it; this crate queries what is in
//! the cluster. [`installed`] returns the values of an installation, [`before`] checks whether an installation is
//! possible, [`after`] checks whether one is healthy, and [`MeshRemoval`] removes all of it, from the nodes as well.
//!
//! ```text
//! leno upgrade    installed() ── values ──► the chart ──► YAML
//! leno check      before(), after() ── findings
//! leno explain    ClusterObjects ── objects ──► the analysis of files; ejections() ── the client's proxies
//! leno stat       scrape()    ── proxies, each through the API server ──► the figures of `leno up`
//! leno stat --since, leno why, leno dashboard   ClusterHistory ── the observer, with the user's own token
//! leno diagnostics  diagnose(), pod_capture() ── one pod's proxy, and its node's agent
//! leno bug-report report()    ── all of these in one archive, without secrets
//! leno uninstall  MeshRemoval ── webhooks, pods leave, agents, nodes, everything else
//! ```

mod capture;
mod checks;
mod destinations;
mod diagnose;
mod ejections;
mod error;
mod history;
pub mod identity;
mod mesh;
mod namespaces;
mod objects;
mod pod_admin;
mod pods;
mod processes;
mod proxy_removal;
mod removal;
mod report;
mod stat;
mod uncaptured;

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::ConfigMap;
use leno_charts::{INSTALLED, INSTALLED_VALUES, Values};
use leno_kube::{Api, Client, RequiredRight, Right};

pub use capture::{PodCapture, ProxyReport, node_captures, node_page, pod_capture};
pub use checks::{after, before, is_trusted};
pub use destinations::destinations;
pub use diagnose::{Diagnosis, ProxyPod, diagnose};
pub use ejections::{Ejections, ejections};
pub use error::Error;
pub use history::ClusterHistory;
pub use leno_resources::ObjectKey;
pub use leno_sources::is_ready;
pub use mesh::{ClusterObjects, ObjectExtent};
pub use namespaces::namespace_settings;
pub use objects::{
    ObjectReference, apply, delete, delete_exactly, documents, is_absent, named, paged,
};
pub use pod_admin::{PodAdminClient, PodName};
pub use pods::{RunningPod, running, statuses, unstartable};
pub use removal::{MeshRemoval, RemovalReport};
pub use report::{Archive, ReportScope, report};
pub use stat::{instances, scrape};

/// The label of the agents' pods.
const AGENTS: &str = "app.kubernetes.io/name=leno-agent";

/// Selects a cluster.
#[derive(Clone, Debug, Default)]
pub struct ClusterTarget {
    /// The kubeconfig file; default: `KUBECONFIG` or `~/.kube/config`.
    pub kubeconfig: Option<PathBuf>,
    /// Its context; default: the current one.
    pub context: Option<String>,
}

impl ClusterTarget {
    /// A name for the cluster: that of its context.
    #[must_use]
    pub fn name(&self) -> String {
        self.pinned().context.unwrap_or_else(|| "cluster".to_owned())
    }

    /// The same target with its context named explicitly, so that the target stays the same when the current
    /// context of the kubeconfig changes. If no kubeconfig can be read, the target is unchanged.
    #[must_use]
    pub fn pinned(&self) -> Self {
        let current = || leno_kube::current_context(self.kubeconfig.as_deref());
        Self { kubeconfig: self.kubeconfig.clone(), context: self.context.clone().or_else(current) }
    }

    /// Whether a cluster is selected: by this target, or else by `KUBECONFIG`, `~/.kube/config` or
    /// the pod that this process runs in.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.kubeconfig.is_some()
            || self.context.is_some()
            || std::env::var_os("KUBECONFIG").is_some_and(|path| !path.is_empty())
            || std::env::home_dir().is_some_and(|home| home.join(".kube/config").exists())
            || std::env::var_os("KUBERNETES_SERVICE_HOST").is_some()
    }
}

/// The rights among `rights` that the user does not have in the whole cluster, in words.
///
/// # Errors
/// The API server does not answer.
pub async fn lacking(client: &Client, rights: &[Right]) -> Result<Vec<String>, Error> {
    unmet(client, rights.iter().map(RequiredRight::from).collect()).await
}

/// The actions among `needs` that the user may not do, in words, in the same order.
async fn unmet(client: &Client, needs: Vec<RequiredRight>) -> Result<Vec<String>, Error> {
    leno_kube::unmet(client, needs).await.map_err(Error::api("query which actions are permitted"))
}

/// A client of the cluster.
///
/// # Errors
/// No cluster is selected, or its configuration cannot be used.
pub async fn connect(target: &ClusterTarget) -> Result<Client, Error> {
    if !target.is_there() {
        return Err(Error::NoCluster);
    }
    let file = target.kubeconfig.as_deref().map(Path::new);
    Ok(leno_kube::connect(file, target.context.as_deref()).await?)
}

/// An existing installation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstalledMesh {
    /// Its version.
    pub version: String,
    /// Its values, as JSON.
    pub values: String,
}

impl InstalledMesh {
    /// The values of the installation.
    ///
    /// # Errors
    /// This version does not know one of the values.
    pub fn told(&self) -> Result<Values, Error> {
        let name = format!("the settings of the installed version {}", self.version);
        Ok(Values::load(&[(name, self.values.clone())], &[])?)
    }
}

/// The installation in `namespace`, if there is one.
///
/// # Errors
/// The API server does not answer, or the user lacks the right.
pub async fn installed(client: &Client, namespace: &str) -> Result<Option<InstalledMesh>, Error> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let map = maps.get_opt(INSTALLED).await;
    let map = map.map_err(Error::api(format!("get ConfigMap {namespace}/{INSTALLED}")))?;
    Ok(map.and_then(|map| map.data).map(|mut data| InstalledMesh {
        version: data.remove("version").unwrap_or_default(),
        values: data.remove(INSTALLED_VALUES).unwrap_or_default(),
    }))
}
