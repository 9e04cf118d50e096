//! `leno-controller`: the control plane of the Leno service mesh.
//!
//! ```text
//!  files, or a cluster ──► sources ──► index (State) ──► discovery ──► proxies
//!                              authority, tokens ─────► identity ───┘
//! ```
//!
//! Wiring only: flags, logging, signals, and the parts put together. It ends with 0 when asked to
//! by SIGTERM or SIGINT, 2 on an error, 64 on wrong usage.

mod admin;
mod config;
mod known;
mod plane;
mod reload;
mod run;
mod webhook;

use std::process::ExitCode;

use leno_program::Failure;

use config::{Config, Flags};

/// Threads that serve; the control plane of a machine mostly waits.
const MAX_THREADS: usize = 4;

fn main() -> ExitCode {
    leno_program::run(
        |flags: &Flags| &flags.log,
        |flags| start(Config::new(flags).map_err(Failure::usage)?).map_err(Failure::error),
    )
}

fn start(config: Config) -> anyhow::Result<()> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()?;
    let ended = runtime.block_on(run::run(config));
    // Streams were told; whatever still waits for a client ends here.
    runtime.shutdown_background();
    ended
}
