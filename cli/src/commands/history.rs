//! Queries the history of a mesh. For `leno up`, it queries the observer on this machine; for a cluster, the
//! observer that runs there.

use anyhow::{Context as _, Result};
use leno_local::layout::Layout;
use leno_local::status::MeshStatus;
use serde::de::DeserializeOwned;

use super::{AnyMesh, ChosenMesh};

/// The source of a mesh's history.
pub(crate) enum MeshHistory {
    Machine(Layout),
    Cluster {
        history: Box<leno_operate::ClusterHistory>,
        /// The name of the mesh, which is the name of the kubeconfig's context.
        name: String,
    },
}

impl MeshHistory {
    /// The history of the chosen mesh. Sends no request yet.
    pub(crate) async fn of(mesh: &AnyMesh) -> Result<Self> {
        Ok(match mesh.choose()? {
            ChosenMesh::Machine(name) => {
                if !nix::unistd::geteuid().is_root() {
                    return Err(leno_local::Error::NeedsRoot.into());
                }
                Self::Machine(Layout::new(&name)?)
            }
            ChosenMesh::Cluster(target) => {
                let history =
                    leno_operate::ClusterHistory::new(&target, &mesh.system_namespace).await?;
                Self::Cluster { history: Box::new(history), name: target.name() }
            }
        })
    }

    /// Checks that a namespace exists, and that the user may see it.
    pub(crate) async fn has_namespace(&self, namespace: &str) -> Result<()> {
        match self {
            Self::Machine(layout) => MeshStatus::read(layout)?.has_namespace(namespace)?,
            Self::Cluster { history, .. } => history.may_see(namespace).await?,
        }
        Ok(())
    }

    /// Requests a path of the observer's interface, including the query, and decodes the answer.
    pub(crate) async fn ask<T: DeserializeOwned>(&self, target: &str) -> Result<T> {
        match self {
            Self::Machine(layout) => Ok(leno_local::observer::ask(layout, target).await?),
            Self::Cluster { history, .. } => {
                let reply = history.ask(target).await?;
                if reply.status != 200 {
                    return Err(leno_operate::Error::Observer(reason(&reply.body)).into());
                }
                let remedy = "the observer is of another version than this program: use the leno \
                              of the installation, or leno upgrade | kubectl apply --server-side \
                              -f -";
                serde_json::from_str(&reply.body).context(remedy)
            }
        }
    }

    /// The name of the mesh. `own` is the name that the observer itself reports.
    pub(crate) fn name(&self, own: String) -> String {
        match self {
            Self::Machine(_) => own,
            Self::Cluster { name, .. } => name.clone(),
        }
    }
}

/// The error text in an answer of the interface.
fn reason(body: &str) -> String {
    let error = serde_json::from_str::<serde_json::Value>(body).ok();
    let text = error.and_then(|error| Some(error["error"].as_str()?.to_owned()));
    text.unwrap_or_else(|| body.trim().to_owned())
}
