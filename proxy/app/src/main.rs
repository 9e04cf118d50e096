//! The data-plane proxy: wiring only.
//!
//! ```text
//! main thread (control):  flags ─► Setup ─► identity, discovery, admin server, signals
//! worker threads:         listeners ─► leno-outbound / leno-inbound
//! ```
//!
//! The proxy opens its listeners only once it has an identity, so that "it listens" means "it can
//! serve"; capture relies on that.

mod admin;
mod config;
mod confine;
mod control;
mod fixed;
mod hook;
mod resident;
mod run;
mod setup;
mod state;
mod worker;

use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::prelude::*;

use config::Flags;

/// `EX_USAGE` of sysexits(3).
const USAGE: u8 = 64;

fn main() -> ExitCode {
    let flags = match Flags::try_parse() {
        Ok(flags) => flags,
        Err(error) => {
            // Nothing can be done about a closed standard error.
            let _closed = error.print();
            let asked = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
            return if asked { ExitCode::SUCCESS } else { ExitCode::from(USAGE) };
        }
    };
    if let Err(error) = log(&flags.log) {
        eprintln!("leno-proxy: --log: {error}");
        return ExitCode::from(USAGE);
    }
    // Proxies of one machine run as one user: none may look into the memory of another.
    if let Err(error) = nix::sys::prctl::set_dumpable(false) {
        eprintln!("leno-proxy: cannot close its memory to others: {error}");
        return ExitCode::from(2);
    }
    let ended = match flags.hook {
        Some(hook) => hook::run(hook, flags.admin),
        None => run::run(&flags),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("leno-proxy: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn log(filter: &str) -> Result<(), tracing_subscriber::filter::ParseError> {
    let filter: Targets = filter.parse()?;
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .with_target(false);
    tracing_subscriber::registry().with(lines).with(filter).init();
    Ok(())
}
