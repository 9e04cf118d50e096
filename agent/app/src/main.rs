//! `leno-agent`: captures the pods of one Kubernetes node that have a proxy.
//!
//! ```text
//!  CNI plugin ──/run/leno/agent.sock──► server ─┐
//!  API server ──pods of this node─────► follow ─┴► keeper ──► leno-capture ──► the kernel
//!                                       │  flows ──► leno-flows ────► the kernel ──► /metrics
//!                                  install: the plugin's entry in the node's chain
//! ```
//! A pod is captured when its sandbox is created, before any of its containers starts. A pod that was started
//! while no agent ran is found by its processes. No request passes through the agent. When the agent ends,
//! captures stay in the kernel, and the next agent takes them over with the help of records (`record`).
//!
//! A pod in node mode contains no proxy. The agent starts its broker (`brokers`) and hands it to the supervisor of
//! node proxies. The supervisor is the same program (`supervisor`), and runs beside the agent without its
//! privileges.
//!
//! The agent handles no services, identities or policies, and has no connection to proxies. Read `keeper` first.
//! The program exits with 0 after SIGTERM or SIGINT, with 2 on an error, and with 64 on wrong usage.

mod admin;
mod brokers;
mod captures;
mod config;
mod flows;
mod follow;
mod host;
mod install;
mod keeper;
mod metrics;
mod peers;
mod pod;
mod record;
mod reports;
mod retry;
mod run;
mod server;
mod sizes;
mod supervisor;

use std::process::ExitCode;

use leno_program::ProgramFailure;

use config::{Flags, Task};

/// How many worker threads the runtime has, besides the blocking threads that capture.
const THREADS: usize = 2;
/// Most captures at the same time. Each loads kernel programs or runs a command.
const MAX_CAPTURES: usize = 8;

fn main() -> ExitCode {
    leno_program::run(
        |flags: &Flags| &flags.log,
        |flags| start(flags).map_err(ProgramFailure::error),
    )
}

fn start(flags: Flags) -> anyhow::Result<()> {
    match flags.task {
        Some(Task::Cleanup) => return run::cleanup(&flags.node),
        Some(Task::Supervise(flags)) => return supervisor::run(flags),
        None => {}
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .max_blocking_threads(MAX_CAPTURES)
        .enable_all()
        .build()?;
    let ended = runtime.block_on(run::run(flags));
    // The next agent completes a capture that is interrupted here.
    runtime.shutdown_background();
    ended
}
