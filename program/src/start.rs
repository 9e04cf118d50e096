//! Runs a program from its flags to its exit code.

use std::fmt::Display;
use std::io::{IsTerminal, stderr};
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::prelude::*;

/// The program failed; the message gives the reason.
const ERROR: u8 = 2;
/// The command line is wrong: `EX_USAGE` of sysexits(3).
const USAGE: u8 = 64;

/// Why a program ends with an error.
#[derive(Debug)]
pub struct ProgramFailure {
    code: u8,
    message: String,
}

impl ProgramFailure {
    /// The program could not do its work, or had to stop: exit code 2.
    pub fn error(why: impl Display) -> Self {
        Self { code: ERROR, message: format!("{why:#}") }
    }

    /// The command line is wrong: exit code 64.
    pub fn usage(why: impl Display) -> Self {
        Self { code: USAGE, message: format!("{why:#}") }
    }
}

/// Parses the flags, starts logging on standard error with the filter from the flags, and runs the
/// program.
///
/// A panic in any task or thread aborts the process. Otherwise the program would go on without that task, and seem
/// healthy. The program may install another panic hook.
///
/// The exit code is 0, or that of the [`ProgramFailure`], whose message goes to standard error.
pub fn run<F: Parser>(
    log: impl FnOnce(&F) -> &str,
    program: impl FnOnce(F) -> Result<(), ProgramFailure>,
) -> ExitCode {
    let flags = match F::try_parse() {
        Ok(flags) => flags,
        Err(error) => {
            // If the message cannot be printed, the exit code still reports the mistake.
            let _ = error.print();
            let asked = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
            return if asked { ExitCode::SUCCESS } else { ExitCode::from(USAGE) };
        }
    };
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        print(panic);
        std::process::abort();
    }));
    match set_up_log(log(&flags)).and_then(|()| program(flags)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(ProgramFailure { code, message }) => {
            crate::note!("{}: {message}", F::command().get_name());
            ExitCode::from(code)
        }
    }
}

fn set_up_log(filter: &str) -> Result<(), ProgramFailure> {
    let parsed = filter.parse::<Targets>();
    let filter =
        parsed.map_err(|error| ProgramFailure::usage(format!("--log {filter:?}: {error}")))?;
    let lines =
        tracing_subscriber::fmt::layer().with_writer(stderr).with_ansi(stderr().is_terminal());
    tracing_subscriber::registry().with(lines).with(filter).init();
    Ok(())
}
