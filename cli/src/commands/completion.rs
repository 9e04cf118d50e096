//! `leno completion`.

use anyhow::Result;
use clap::{Args, Command};
use clap_complete::Shell;

/// Prints the completion script of a shell
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  leno completion bash > /etc/bash_completion.d/leno")]
pub(crate) struct Completion {
    /// The shell
    shell: Shell,
}

pub(crate) fn run(completion: &Completion, command: &mut Command) -> Result<bool> {
    let mut script = Vec::new();
    clap_complete::generate(completion.shell, command, "leno", &mut script);
    super::print(&String::from_utf8(script)?)?;
    Ok(true)
}
