//! What the command line does in a Kubernetes cluster: asks it, looks at an installation, takes it away.
//!
//! What is installed is the chart's concern (`leno-charts`) and is applied by kubectl or Helm; this crate
//! asks the cluster what is there. [`installed`] is what an installation was told, [`check`] whether it
//! is well, or whether there can be one, [`Removal`] how it goes without a trace, also on the nodes.
//!
//! ```text
//! leno upgrade    installed() ── values ──► the chart ──► YAML
//! leno check      check()     ── findings
//! leno explain    Known       ── objects ──► the analysis of files
//! leno stat       scrape()    ── proxies, each through the API server ──► the figures of `leno up`
//! leno diagnostics  diagnose(), pod_capture() ── one proxy's pod, and the proxy itself or its node's agent
//! leno bug-report report()    ── all of that in one archive, scrubbed
//! leno uninstall  Removal     ── webhooks, pods leave, agents, nodes, everything else
//! ```

mod capture;
mod checks;
mod diagnose;
mod error;
mod leaving;
mod mesh;
mod namespaces;
mod objects;
mod pods;
mod reach;
mod removal;
mod report;
mod rights;
mod stat;
mod uncaptured;

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::config::Kubeconfig;
use kube::{Api, Client};
use leno_charts::{INSTALLED, INSTALLED_VALUES, Values};

pub use capture::{PodCapture, node_captures, pod_capture};
pub use checks::{Finding, Level, after, before, is_trusted};
pub use diagnose::{Diagnosis, Seen, diagnose};
pub use error::Error;
pub use leno_resources::ObjectKey;
pub use leno_sources::is_ready;
pub use mesh::{Extent, Known};
pub use namespaces::captures;
pub use objects::{Named, apply, delete, delete_exactly, documents, is_absent, named, paged};
pub use pods::{Running, running, statuses, unstartable};
pub use reach::{PodName, Reach};
pub use removal::{Removal, Removed};
pub use report::{Wanted, report};
pub use rights::{Right, lacking};
pub use stat::scrape;

/// The label of the agents' pods.
const AGENTS: &str = "app.kubernetes.io/name=leno-agent";

/// Which cluster.
#[derive(Clone, Debug, Default)]
pub struct Target {
    /// The kubeconfig; without it, `KUBECONFIG` or `~/.kube/config`.
    pub kubeconfig: Option<PathBuf>,
    /// Its context; without it, the current one.
    pub context: Option<String>,
}

impl Target {
    /// What it is called: its context.
    #[must_use]
    pub fn name(&self) -> String {
        self.pinned().context.unwrap_or_else(|| "cluster".to_owned())
    }

    /// The same, by the name of its context, so that it stays the same when the kubeconfig gets another
    /// current one; as it is where no kubeconfig can be read.
    #[must_use]
    pub fn pinned(&self) -> Self {
        let current = || {
            let read = match &self.kubeconfig {
                Some(path) => Kubeconfig::read_from(path),
                None => Kubeconfig::read(),
            };
            read.ok().and_then(|file| file.current_context)
        };
        Self { kubeconfig: self.kubeconfig.clone(), context: self.context.clone().or_else(current) }
    }

    /// Whether any cluster is named: by this, or where this names none, by `KUBECONFIG`, `~/.kube/config`
    /// or the pod that this runs in.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.kubeconfig.is_some()
            || self.context.is_some()
            || std::env::var_os("KUBECONFIG").is_some_and(|path| !path.is_empty())
            || std::env::home_dir().is_some_and(|home| home.join(".kube/config").exists())
            || std::env::var_os("KUBERNETES_SERVICE_HOST").is_some()
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

impl Installed {
    /// What it was told.
    ///
    /// # Errors
    /// Where this version has no such value.
    pub fn told(&self) -> Result<Values, Error> {
        let name = format!("what {} was told", self.version);
        Ok(Values::load(&[(name, self.values.clone())], &[])?)
    }
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
