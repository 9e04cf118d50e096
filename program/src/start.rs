//! From flags to an exit code.

use std::fmt::Display;
use std::io::{IsTerminal, stderr};
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::prelude::*;

/// The program failed; the message says how.
const ERROR: u8 = 2;
/// The program was called wrongly: `EX_USAGE` of sysexits(3).
const USAGE: u8 = 64;

/// Why a program ends, other than because it was asked to.
#[derive(Debug)]
pub struct Failure {
    code: u8,
    message: String,
}

impl Failure {
    /// It could not do its work, or go on with it: exit code 2.
    pub fn error(why: impl Display) -> Self {
        Self { code: ERROR, message: format!("{why:#}") }
    }

    /// It was called wrongly: exit code 64.
    pub fn usage(why: impl Display) -> Self {
        Self { code: USAGE, message: format!("{why:#}") }
    }
}

/// Reads the flags, sets the log up on standard error by the filter among them, and runs the program.
///
/// A panic aborts the process, in whichever task or thread it happens: a program that went on
/// without one of them would seem to be well. The program may set another hook.
///
/// It ends with 0, or with the code of its [`Failure`], whose message goes to standard error.
pub fn run<F: Parser>(
    log: impl FnOnce(&F) -> &str,
    program: impl FnOnce(F) -> Result<(), Failure>,
) -> ExitCode {
    let flags = match F::try_parse() {
        Ok(flags) => flags,
        Err(error) => {
            // Where even this cannot be printed, the exit code says it.
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
        Err(Failure { code, message }) => {
            eprintln!("{}: {message}", F::command().get_name());
            ExitCode::from(code)
        }
    }
}

fn set_up_log(filter: &str) -> Result<(), Failure> {
    let parsed = filter.parse::<Targets>();
    let filter = parsed.map_err(|error| Failure::usage(format!("--log {filter:?}: {error}")))?;
    let lines =
        tracing_subscriber::fmt::layer().with_writer(stderr).with_ansi(stderr().is_terminal());
    tracing_subscriber::registry().with(lines).with(filter).init();
    Ok(())
}
