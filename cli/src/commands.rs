//! The commands, and what several of them share.

pub(crate) mod analyze;
pub(crate) mod bench;
pub(crate) mod bug_report;
pub(crate) mod check;
pub(crate) mod cleanup;
pub(crate) mod completion;
pub(crate) mod demo;
pub(crate) mod diagnostics;
pub(crate) mod exec;
pub(crate) mod explain;
pub(crate) mod inject;
pub(crate) mod install;
pub(crate) mod lines;
pub(crate) mod stat;
pub(crate) mod table;
pub(crate) mod uninstall;
pub(crate) mod up;
pub(crate) mod upgrade;

use std::fmt;
use std::io::{self, Write as _};

use clap::{Args, ValueEnum};

/// What a mesh of `leno up` is called where nobody says.
const DEFAULT_MESH: &str = "default";

/// Which mesh of this machine.
#[derive(Debug, Args)]
pub(crate) struct MeshName {
    /// Name of the mesh
    #[arg(long, visible_alias = "mesh", default_value = DEFAULT_MESH, value_name = "NAME")]
    pub(crate) name: String,
}

/// Which mesh: the one of a cluster, or one of this machine.
#[derive(Debug, Args)]
pub(crate) struct AnyMesh {
    /// Name of a mesh of `leno up` [default: default]
    #[arg(long, visible_alias = "mesh", value_name = "NAME",
          conflicts_with_all = ["cluster", "kubeconfig", "context"])]
    pub(crate) name: Option<String>,

    /// The mesh of the cluster that the kubeconfig names
    #[arg(long)]
    pub(crate) cluster: bool,

    #[command(flatten)]
    pub(crate) which: Cluster,

    /// The namespace of the control plane in the cluster
    #[arg(long, value_name = "NAME", default_value = leno_charts::NAMESPACE)]
    pub(crate) system_namespace: String,
}

/// A mesh that was chosen.
#[derive(Clone, Debug)]
pub(crate) enum Chosen {
    /// One of `leno up`, by its name.
    Machine(String),
    /// That of a cluster.
    Cluster(leno_operate::Target),
}

impl AnyMesh {
    /// The one that is named, else the only one that there is.
    pub(crate) fn choose(&self) -> anyhow::Result<Chosen> {
        use leno_local::{Error, layout::Layout, status::Status};
        if self.cluster || self.which.is_named() {
            return Ok(Chosen::Cluster(self.which.target()));
        }
        if let Some(name) = &self.name {
            return Ok(Chosen::Machine(name.clone()));
        }
        let runs = !matches!(Status::read(&Layout::new(DEFAULT_MESH)?), Err(Error::NotRunning(_)));
        match (runs, self.which.target().is_there()) {
            (true, false) => Ok(Chosen::Machine(DEFAULT_MESH.to_owned())),
            (false, true) => Ok(Chosen::Cluster(self.which.target())),
            (true, true) => anyhow::bail!(
                "a mesh of `leno up` runs here, and a cluster is named by a kubeconfig: say --name \
                 {DEFAULT_MESH}, or --cluster"
            ),
            (false, false) => anyhow::bail!(
                "no mesh: none of `leno up` is called {DEFAULT_MESH:?} (--name NAME has another), and no cluster \
                 is named (--kubeconfig FILE, KUBECONFIG)"
            ),
        }
    }
}

/// Which cluster.
#[derive(Clone, Debug, Args)]
pub(crate) struct Cluster {
    /// The cluster's address and credentials [default: KUBECONFIG, ~/.kube/config]
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<std::path::PathBuf>,

    /// The context of the kubeconfig [default: the current one]
    #[arg(long, value_name = "NAME")]
    pub(crate) context: Option<String>,
}

impl Cluster {
    /// Whether one is named.
    pub(crate) fn is_named(&self) -> bool {
        self.kubeconfig.is_some() || self.context.is_some()
    }

    /// Where that is.
    pub(crate) fn target(&self) -> leno_operate::Target {
        leno_operate::Target { kubeconfig: self.kubeconfig.clone(), context: self.context.clone() }
    }
}

/// The forms of output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// For people.
    #[default]
    Table,
    /// For programs; names and units are stable.
    Json,
}

/// Prints a value as JSON.
pub(crate) fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    print(&(serde_json::to_string_pretty(value)? + "\n"))
}

/// Prints a text, all of it or none: a reader that went away (`| head`) is an error that
/// [`is_closed`] knows.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Unprinted)?;
    Ok(())
}

/// Whether an error says that nobody reads what is printed any more.
pub(crate) fn is_closed(error: &anyhow::Error) -> bool {
    let unprinted = error.downcast_ref::<Unprinted>();
    unprinted.is_some_and(|Unprinted(reason)| reason.kind() == io::ErrorKind::BrokenPipe)
}

/// Why something could not be printed.
#[derive(Debug)]
struct Unprinted(io::Error);

impl fmt::Display for Unprinted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cannot write to standard output")
    }
}

impl std::error::Error for Unprinted {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

/// Runs a future on a runtime of its own.
pub(crate) fn block_on<T>(future: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(future)
}
