//! `leno bench`: starts `leno-bench`. That is a separate program so that the installed `leno` does not contain the
//! lab.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use anyhow::{Context, Result, anyhow};
use clap::Args;
use leno_local::program;

/// Measures what meshes cost: sends the same load through each mesh and without one, and compares the results
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Bench {
    /// Arguments of `leno-bench`. `leno bench help` lists its commands, and `leno help bench run` explains one of
    /// them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
    arguments: Vec<OsString>,
}

pub(crate) fn run(bench: &Bench) -> Result<bool> {
    start(bench.arguments.iter())
}

/// The arguments for `leno-bench`, if the command line is `leno help bench ...`. The parser of `leno` does not
/// know the commands of `leno-bench`.
pub(crate) fn help(words: impl Iterator<Item = OsString>) -> Option<Vec<OsString>> {
    let words: Vec<OsString> = words.collect();
    let [first, second, of @ ..] = words.as_slice() else { return None };
    let is_of_bench = first == "help" && second == "bench";
    is_of_bench.then(|| [std::slice::from_ref(first), of].concat())
}

/// Replaces this process by `leno-bench`; returns only if that fails.
pub(crate) fn start(arguments: impl Iterator<Item = impl AsRef<OsStr>>) -> Result<bool> {
    let found = program::find("leno-bench").ok_or_else(|| program::missing("leno-bench"))?;
    // With this name, the usage texts of `leno-bench` say `leno bench`.
    let failed = Command::new(&found).arg0("leno bench").args(arguments).exec();
    Err(anyhow!(failed)).with_context(|| format!("starting {}", found.display()))
}
