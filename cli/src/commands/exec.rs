//! Implements the command `leno exec`.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Args;

use super::RunningMesh;

/// Runs a command in the environment of a workload: with its namespaces, DNS, identity and variables
///
/// Connections of the command are captured like those of the workload. The command uses this terminal. Exits with the
/// command's exit code, or with 127 if the command does not exist. Needs root.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  sudo leno exec -n shop web -- curl -s http://catalog:8080/")]
pub(crate) struct Exec {
    #[command(flatten)]
    mesh: RunningMesh,

    /// Namespace of the workload. Not needed if its name is in only one namespace
    #[arg(short, long)]
    namespace: Option<String>,

    /// Instance (web-1) or workload (web); of a workload, its first instance
    workload: String,

    /// The command and its arguments
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// Runs the command in place of this process. Returns only if the command could not be run; then prints the reason
/// and returns the exit code.
pub(crate) fn run(exec: &Exec) -> ExitCode {
    let namespace = exec.namespace.as_deref();
    let (error, code) = match exec.mesh.name() {
        Ok(mesh) => leno_local::exec::exec(&mesh, namespace, &exec.workload, &exec.command),
        Err(error) => (error, 2),
    };
    leno_console::complain("leno", &error.into());
    ExitCode::from(code)
}
