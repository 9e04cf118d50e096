//! The way to a cluster's API server.

use std::path::{Path, PathBuf};
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};

/// Longest wait for a connection to the API server; it is in the same cluster.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a cluster cannot be asked.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Neither a service account's files nor a usable kubeconfig.
    #[error("no cluster is named: run inside one, or give --kubeconfig or KUBECONFIG")]
    Infer(#[from] kube::config::InferConfigError),
    /// The kubeconfig that was named cannot be used.
    #[error("{} cannot be used", .0.display())]
    File(PathBuf, #[source] KubeconfigError),
    /// What they name cannot be used.
    #[error("the cluster's address or credentials cannot be used")]
    Client(#[from] kube::Error),
}

/// A client of the cluster whose kubeconfig this is, in its current context; without one, of the one
/// that `KUBECONFIG` or `~/.kube/config` names, else of the cluster that this process runs in. Nothing
/// is asked yet.
///
/// # Errors
/// Where no cluster is named, or what names it cannot be used.
pub async fn connect(kubeconfig: Option<&Path>) -> Result<Client, ConnectError> {
    let mut config = match kubeconfig {
        Some(path) => {
            let failed = |error| ConnectError::File(path.to_owned(), error);
            let file = Kubeconfig::read_from(path).map_err(failed)?;
            let context = KubeConfigOptions::default();
            Config::from_custom_kubeconfig(file, &context).await.map_err(failed)?
        }
        None => Config::infer().await?,
    };
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    Ok(Client::try_from(config)?)
}
