//! `leno-agent`: captures the pods of one Kubernetes node that have a proxy.
//!
//! ```text
//!  CNI plugin ──/run/leno/agent.sock──► server ─┐
//!  API server ──pods of this node─────► follow ─┴► keeper ──► leno-capture ──► the kernel
//!                                  install: the plugin's place in the node's chain
//! ```
//! A pod is captured when its sandbox is made, before any of its containers starts; one that started
//! without the agent is found by its processes. No request passes here: the kernel holds what was set
//! up when the agent ends, and the next one takes it over by its records (`record`).
//!
//! It does not know services, identities or policies, and has no connection to a proxy. Read `keeper`
//! first. It ends with 0 when asked to by SIGTERM or SIGINT, 2 on an error, 64 on wrong usage.

mod admin;
mod config;
mod follow;
mod host;
mod install;
mod keeper;
mod metrics;
mod pod;
mod record;
mod retry;
mod run;
mod server;

use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::prelude::*;

use config::{Flags, Task};

/// The program failed; the message says how.
const ERROR: u8 = 2;
/// The program was called wrongly.
const USAGE: u8 = 64;
/// Threads beside those that capture.
const THREADS: usize = 2;
/// Captures at once; each verifies kernel programs or runs a command of the system.
const MAX_CAPTURES: usize = 8;

fn main() -> ExitCode {
    let flags = match Flags::try_parse() {
        Ok(flags) => flags,
        Err(error) => {
            // Where even this cannot be printed, the exit code says it.
            let _ = error.print();
            let asked = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
            return if asked { ExitCode::SUCCESS } else { ExitCode::from(USAGE) };
        }
    };
    let filter: Targets = match flags.log.parse() {
        Ok(filter) => filter,
        Err(error) => return complain(USAGE, &format!("--log {:?}: {error}", flags.log)),
    };
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()));
    tracing_subscriber::registry().with(lines).with(filter).init();
    match start(flags) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => complain(ERROR, &format!("{error:#}")),
    }
}

fn start(flags: Flags) -> anyhow::Result<()> {
    if flags.task == Some(Task::Cleanup) {
        return run::cleanup(&flags.node);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .max_blocking_threads(MAX_CAPTURES)
        .enable_all()
        .build()?;
    let ended = runtime.block_on(run::run(flags));
    // A capture that is under way is finished by the next agent.
    runtime.shutdown_background();
    ended
}

fn complain(code: u8, message: &str) -> ExitCode {
    eprintln!("leno-agent: {message}");
    ExitCode::from(code)
}
