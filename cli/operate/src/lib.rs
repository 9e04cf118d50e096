//! What the command line does in a Kubernetes cluster: looks at an installation, and takes it away.
//!
//! What is installed is the chart's concern (`leno-charts`) and is applied by kubectl or Helm; this crate
//! asks the cluster what is there. [`installed`] is what an installation was told, [`check`] whether it
//! is well, or whether there can be one, [`Removal`] how it goes without a trace, also on the nodes.
//!
//! ```text
//! leno upgrade    installed() ── values ──► the chart ──► YAML
//! leno check      check()     ── findings
//! leno uninstall  Removal     ── webhooks, agents, nodes, everything else
//! ```

mod checks;
mod objects;
mod removal;

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};
use leno_charts::{INSTALLED, INSTALLED_VALUES};

pub use checks::{Finding, Level, after, before};
pub use removal::{Removal, Removed};

/// Which cluster.
#[derive(Clone, Debug, Default)]
pub struct Target {
    /// The kubeconfig; without it, `KUBECONFIG` or `~/.kube/config`.
    pub kubeconfig: Option<PathBuf>,
    /// Its context; without it, the current one.
    pub context: Option<String>,
}

/// Why something could not be done in a cluster.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot be reached.
    #[error(transparent)]
    Connect(#[from] leno_sources::ConnectError),
    /// It says no, or nothing.
    #[error("{0}: the API server does not do it")]
    Api(String, #[source] kube::Error),
    /// There is nothing to remove.
    #[error("nothing is installed in {0}: say --namespace with the one that it is in")]
    Nothing(String),
    /// A node cannot be reached.
    #[error("it is not ready")]
    NotReady,
    /// Something takes longer than it should.
    #[error("{0}: waited for {1} s")]
    Late(String, u64),
    /// The chart and the cluster do not go together.
    #[error(transparent)]
    Chart(#[from] leno_charts::Error),
    /// What the chart says is no document.
    #[error("the chart has a document that cannot be read: {0}")]
    Document(String),
}

impl Error {
    fn api(what: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let what = what.into();
        move |error| Self::Api(what, error)
    }
}

/// A client of the cluster.
///
/// # Errors
/// Where no cluster is named, or what names it cannot be used.
pub async fn connect(target: &Target) -> Result<Client, Error> {
    let file = target.kubeconfig.as_deref().map(Path::new);
    Ok(leno_sources::connect(file, target.context.as_deref()).await?)
}

/// An installation that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installed {
    /// Its version.
    pub version: String,
    /// What it was told, as JSON.
    pub values: String,
}

/// What is installed in `namespace`, none where nothing is.
///
/// # Errors
/// When the API server does not answer, or does not let us look.
pub async fn installed(client: &Client, namespace: &str) -> Result<Option<Installed>, Error> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let map = maps.get_opt(INSTALLED).await;
    let map = map.map_err(Error::api(format!("get ConfigMap {namespace}/{INSTALLED}")))?;
    Ok(map.and_then(|map| map.data).map(|mut data| Installed {
        version: data.remove("version").unwrap_or_default(),
        values: data.remove(INSTALLED_VALUES).unwrap_or_default(),
    }))
}
