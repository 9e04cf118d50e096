//! `leno-broker`: creates sockets in the network namespace and control group of one workload, for a node proxy, which
//! serves many workloads and runs outside of their namespaces (`leno_handover`).
//!
//! There is one broker for each workload of a node proxy, so it is small: it has no async runtime, no TLS, no logger
//! and no configuration. `leno up` and the agent of a Kubernetes node start it, with the channel for its orders as
//! standard input. It writes its messages to standard error.

#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]

mod broker;
mod flags;

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::{env, fmt};

use anyhow::Context as _;

use flags::{Command, Flags, USAGE};

/// The exit codes that all programs of Leno use (`leno_program`).
const ERROR: u8 = 2;
const WRONG_USAGE: u8 = 64;

fn main() -> ExitCode {
    match Command::parse(env::args_os().skip(1)) {
        Ok(Command::Help) => show(format_args!("{USAGE}")),
        Ok(Command::Version) => show(format_args!("leno-broker {}\n", env!("CARGO_PKG_VERSION"))),
        Ok(Command::Run(flags)) => {
            if let Err(error) = run(flags) {
                report(format_args!("{error:#}"));
                return ExitCode::from(ERROR);
            }
        }
        Err(wrong) => {
            report(format_args!("{wrong}\n{USAGE}"));
            return ExitCode::from(WRONG_USAGE);
        }
    }
    ExitCode::SUCCESS
}

fn run(flags: Flags) -> anyhow::Result<()> {
    leno_confine::close_memory()
        .context("cannot protect the memory of this process from others")?;
    broker::run(flags)
}

/// Writes the help or the version to standard output.
fn show(what: fmt::Arguments<'_>) {
    // Nothing more can be done if standard output has no reader.
    let _unread = io::stdout().write_fmt(what);
}

/// Writes a line for the operator.
fn report(what: fmt::Arguments<'_>) {
    // The reader of standard error may no longer exist, for example if the agent was replaced. The broker continues
    // without it.
    let _unread = writeln!(io::stderr(), "leno-broker: {what}");
}
