//! What Leno's command lines, `leno` and `leno-bench`, have in common: printing output, ending a command, parsing
//! durations, and selecting a cluster. The crate does not know any command.
//!
//! Exit codes: 0 yes or done, 1 no (a check that fails), 2 error, 64 usage (sysexits(3)).

mod cluster;
mod dashes;
mod options;
mod output;
mod usage;

use std::process::ExitCode;

use clap::error::ErrorKind;

pub use cluster::Cluster;
pub use leno_observe::escape::escaped;
pub use leno_program::{duration, note, note_text, print_line, print_text, within};
pub use output::{OutputForm, print, print_json, print_raw};

/// The variable with which the script of `leno completion` starts a program to complete a line.
pub const COMPLETES: &str = "LENO_COMPLETE";
/// `EX_USAGE` of sysexits(3).
const USAGE: u8 = 64;

/// The exit code of a finished command; an error is printed with the program's name in front.
#[must_use]
pub fn ended(program: &str, done: &anyhow::Result<bool>) -> ExitCode {
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        // The reader, such as `head`, closed the pipe because it needs no more.
        Err(error) if output::is_closed(error) => ExitCode::SUCCESS,
        Err(error) => {
            complain(program, error);
            ExitCode::from(2)
        }
    }
}

/// Prints an error with its causes, and the program's name in front.
pub fn complain(program: &str, error: &anyhow::Error) {
    note!("{program}: {}", escaped(&once(error)));
}

/// An error with its causes. Causes whose text an earlier message already contains are left out, because some
/// libraries include their causes in the message and return them as well.
fn once(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text += &format!(": {cause}");
        }
    }
    text
}

/// Prints why the command line could not be parsed, or the help that it requests; returns the exit
/// code.
#[must_use]
pub fn not_parsed(mut error: clap::Error) -> ExitCode {
    dashes::hint(&mut error);
    options::hint(&mut error);
    usage::shorten(&mut error);
    // If standard error is closed, there is nothing left to do.
    let _closed = error.print();
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
        _ => ExitCode::from(USAGE),
    }
}

/// Runs a future on a new single-threaded runtime.
///
/// # Errors
/// The runtime cannot be created, or the future fails.
pub fn block_on<T>(future: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(future)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_printed_once() {
        let cause = anyhow::anyhow!("unclosed bracket");
        let error = cause.context("cannot read kubeconfig: unclosed bracket").context("no cluster");
        assert_eq!(once(&error), "no cluster: cannot read kubeconfig: unclosed bracket");
    }
}
