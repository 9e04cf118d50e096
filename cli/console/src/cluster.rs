//! The flags that select a cluster.

use std::path::PathBuf;

use clap::Args;
use leno_operate::ClusterTarget;

/// Selects a cluster.
#[derive(Clone, Debug, Args)]
pub struct Cluster {
    /// Kubeconfig file with the cluster's address and credentials [default: the variable KUBECONFIG, else
    /// ~/.kube/config]
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// Context of the kubeconfig [default: the current context]
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,
}

impl Cluster {
    /// Whether the command line selects a cluster.
    #[must_use]
    pub fn is_named(&self) -> bool {
        self.kubeconfig.is_some() || self.context.is_some()
    }

    /// Where to find the cluster's address and credentials.
    #[must_use]
    pub fn target(&self) -> ClusterTarget {
        ClusterTarget { kubeconfig: self.kubeconfig.clone(), context: self.context.clone() }
    }
}
