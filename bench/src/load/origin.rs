//! Where a generator runs, and what it counts.

use std::ffi::{OsStr, OsString};
use std::process::Command;

use serde::{Deserialize, Serialize};

/// The counts of a generator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Count {
    /// Requests that were answered.
    pub(crate) requests: u64,
    /// Requests that failed.
    pub(crate) errors: u64,
    /// Answered requests a second.
    pub(crate) requests_per_s: f64,
}

/// The prefix command that a generator runs through, such as `leno exec`; empty for none. It
/// executes the program that follows it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Origin(Vec<OsString>);

impl Origin {
    /// Runs programs as this process does.
    pub(crate) fn here() -> Self {
        Self::default()
    }

    /// Runs programs through `command`, which executes the arguments that follow its own.
    pub(crate) fn through(command: &Command) -> Self {
        let program = std::iter::once(command.get_program());
        Self(program.chain(command.get_args()).map(OsStr::to_owned).collect())
    }

    /// The command that runs `program` from this origin.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let Some((first, rest)) = self.0.split_first() else { return Command::new(program) };
        let mut command = Command::new(first);
        command.args(rest).arg(program);
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generator_runs_as_whom_it_is_told() {
        let mut exec = Command::new("leno");
        exec.args(["exec", "client", "--"]);
        let command = Origin::through(&exec).command("/usr/bin/wrk");
        let all: Vec<_> =
            std::iter::once(command.get_program()).chain(command.get_args()).collect();
        assert_eq!(all, ["leno", "exec", "client", "--", "/usr/bin/wrk"]);
        assert_eq!(Origin::here().command("wrk").get_program(), "wrk");
    }
}
