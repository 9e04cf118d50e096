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

use clap::Parser;
use clap::error::ErrorKind;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::prelude::*;

use config::{Config, Flags};

/// The program failed; the message says how.
const ERROR: u8 = 2;
/// The program was called wrongly.
const USAGE: u8 = 64;
/// Threads that serve; the control plane of a machine mostly waits.
const MAX_THREADS: usize = 4;

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
    let config = match Config::new(flags) {
        Ok(config) => config,
        Err(error) => return complain(USAGE, &format!("{error:#}")),
    };
    match start(config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => complain(ERROR, &format!("{error:#}")),
    }
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

fn complain(code: u8, message: &str) -> ExitCode {
    eprintln!("leno-controller: {message}");
    ExitCode::from(code)
}
