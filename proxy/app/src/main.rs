//! The data-plane proxy. This crate only connects the other crates.
//!
//! ```text
//! main thread (control):  flags ─► Setup ─► identity, discovery, admin server, signals
//! worker threads:         listeners ─► leno-outbound / leno-inbound
//! ```
//!
//! With `--node` one process serves several workloads ([`node`]). A broker (`leno-broker`) in each workload's network
//! namespace creates the sockets for it.
//!
//! With a control plane, the proxy listens only once it has a certificate and a policy, so that a listening proxy can
//! serve. The capture relies on that.

#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]

mod admin;
mod capture;
mod config;
mod confine;
mod control;
mod datagrams;
mod export;
mod fixed;
mod guest;
mod hook;
mod known;
mod node;
mod panics;
mod pulse;
mod reclaim;
mod run;
mod services;
mod setup;
mod standing;
mod state;
mod worker;

use std::process::ExitCode;

use leno_program::{ProgramFailure, chain};

use config::Flags;

fn main() -> ExitCode {
    leno_program::run(|flags: &Flags| &flags.log, start)
}

fn start(flags: Flags) -> Result<(), ProgramFailure> {
    panics::install();
    leno_confine::close_memory().map_err(|error| {
        ProgramFailure::error(format!(
            "cannot protect the memory of this process from others: \
             {error}"
        ))
    })?;
    // This must run before TLS is used. It must also run before the process is confined, because the FIPS module runs
    // its self-tests here.
    leno_crypto::select(flags.tls_profile)
        .map_err(|error| ProgramFailure::usage(format!("--tls-profile: {}", chain(&error))))?;
    let ended = match flags.hook {
        Some(hook) => hook::run(hook, flags.admin),
        None if flags.node => node::run(&flags),
        None => run::run(&flags),
    };
    ended.map_err(ProgramFailure::error)
}
