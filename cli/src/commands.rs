//! The commands, and what several of them share.

pub(crate) mod check;
pub(crate) mod cleanup;
pub(crate) mod completion;
pub(crate) mod demo;
pub(crate) mod exec;
pub(crate) mod stat;
pub(crate) mod table;
pub(crate) mod up;

use clap::{Args, ValueEnum};

/// Which mesh of this machine.
#[derive(Debug, Args)]
pub(crate) struct MeshName {
    /// Name of the mesh
    #[arg(long, visible_alias = "mesh", default_value = "default", value_name = "NAME")]
    pub(crate) name: String,
}

/// The forms of output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// For people.
    #[default]
    Table,
    /// For programs; names and units are stable.
    Json,
}

/// Prints a value as JSON.
pub(crate) fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    println!("{}", serde_json::to_string_pretty(value)?);
    Ok(())
}

/// Runs a future on a runtime of its own.
pub(crate) fn block_on<T>(future: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(future)
}
