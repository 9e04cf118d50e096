//! Implements the command `leno exec`.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Args;

use super::RunningMesh;

/// Runs a command as a workload: in its namespace, with its DNS, identity and environment
///
/// Traffic of the command is captured like the workload's own. The command uses the terminal and sets the exit code,
/// which is 127 if the command does not exist. Needs root.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  sudo leno exec -n shop web -- curl -s http://catalog:8080/")]
pub(crate) struct Exec {
    #[command(flatten)]
    mesh: RunningMesh,

    /// Namespace of the workload; not needed if its name is in only one namespace
    #[arg(short, long)]
    namespace: Option<String>,

    /// An instance such as web-1, or a workload such as web, which means its first instance
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
