//! `leno completion`.

use clap::{Args, Command};
use clap_complete::Shell;

/// Prints the completion script of a shell
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  leno completion bash > /etc/bash_completion.d/leno")]
pub(crate) struct Completion {
    /// The shell
    shell: Shell,
}

pub(crate) fn run(completion: &Completion, command: &mut Command) {
    clap_complete::generate(completion.shell, command, "leno", &mut std::io::stdout());
}
