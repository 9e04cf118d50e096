//! `leno exec`.

use std::ffi::OsString;

use clap::Args;

use super::MeshName;

/// Runs a command as a workload: in its namespace, with its DNS, identity and environment
///
/// Traffic of the command is captured like the workload's own. Terminal and exit code are the
/// command's. Needs root.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  sudo leno exec -n shop web -- curl -s http://catalog:8080/")]
pub(crate) struct Exec {
    #[command(flatten)]
    mesh: MeshName,

    /// Namespace of the workload; not needed where its name is in one namespace only
    #[arg(short, long)]
    namespace: Option<String>,

    /// An instance such as web-1, or a workload such as web, which means its first instance
    workload: String,

    /// The command and its arguments
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// Comes back only when the command could not be run.
pub(crate) fn run(exec: &Exec) -> anyhow::Error {
    let namespace = exec.namespace.as_deref();
    leno_local::exec::exec(&exec.mesh.name, namespace, &exec.workload, &exec.command).into()
}
