//! `leno bench`: starts `leno-bench`, which is a separate program so that the installed `leno` does not contain the
//! lab.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use anyhow::{Context, Result, anyhow};
use clap::Args;
use leno_local::program;

/// Measures meshes, or none, under the same load, and reports what they cost
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Bench {
    /// The arguments of `leno-bench`; `leno bench help` lists its commands
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
    arguments: Vec<OsString>,
}

/// Replaces this process by `leno-bench`; returns only if that fails.
pub(crate) fn run(bench: &Bench) -> Result<bool> {
    let found = program::find("leno-bench").ok_or_else(|| program::missing("leno-bench"))?;
    // The usage texts of `leno-bench` then say `leno bench`.
    let failed = Command::new(&found).arg0("leno bench").args(&bench.arguments).exec();
    Err(anyhow!(failed)).with_context(|| format!("starting {}", found.display()))
}
