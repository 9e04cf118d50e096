//! `leno-controller`: the control plane of the Leno service mesh.
//!
//! ```text
//!  files, or a cluster ──► sources ──► index (PlaneState) ──► discovery ──► proxies
//!                              authority, tokens ─────► identity ───┘
//! ```
//!
//! This crate is only the wiring: flags, logging, signals, and the connection of the parts. The program exits with
//! 0 after SIGTERM or SIGINT, with 2 on an error, and with 64 on wrong usage.

mod admin;
mod bundle_endpoint;
mod config;
mod federation;
mod observe;
mod plane;
mod refused;
mod reload;
mod rotation;
mod run;
mod stored;
mod webhook;
mod workload_bundles;

use std::process::ExitCode;

use leno_program::{ProgramFailure, chain};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use config::{Config, Flags, Task};

/// Most worker threads of the runtime, however many CPUs there are: the control plane mostly waits.
const MAX_THREADS: usize = 4;

fn main() -> ExitCode {
    leno_program::run(
        |flags: &Flags| &flags.log,
        |flags| {
            leno_crypto::select(flags.tls_profile).map_err(|error| {
                ProgramFailure::usage(format!("--tls-profile: {}", chain(&error)))
            })?;
            match flags.task {
                Some(Task::Observe(flags)) => observe::run(flags).map_err(ProgramFailure::error),
                None => start(Config::new(flags).map_err(ProgramFailure::usage)?)
                    .map_err(ProgramFailure::error),
            }
        },
    )
}

fn start(config: Config) -> anyhow::Result<()> {
    raise_descriptors();
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()?;
    let ended = runtime.block_on(run::run(config));
    // The streams have been asked to end. Tasks that still wait for a client are dropped here.
    runtime.shutdown_background();
    ended
}

/// Raises the limit of open files to the hard limit, because each connection needs a descriptor. The soft limit is
/// often only 1,024, for programs that use `select(2)`.
fn raise_descriptors() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE).and_then(|(soft, hard)| {
        if soft < hard { setrlimit(Resource::RLIMIT_NOFILE, hard, hard) } else { Ok(()) }
    });
    if let Err(error) = raised {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
}
