//! Printing to standard output, as a table or as JSON.

use std::fmt;
use std::io::{self, Write as _};

use clap::ValueEnum;

use crate::escaped;

/// The forms of output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum OutputForm {
    /// For people.
    #[default]
    Table,
    /// For programs; names and units are stable.
    Json,
}

/// Prints a value as JSON.
///
/// # Errors
/// As [`print`].
pub fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    print_raw(&(serde_json::to_string_pretty(value)? + "\n"))
}

/// Prints a text for people and flushes it. Control sequences for terminals are escaped, because tables contain texts
/// of workloads and documents.
///
/// # Errors
/// As [`print_raw`].
pub fn print(text: &str) -> anyhow::Result<()> {
    print_raw(&escaped(text))
}

/// Prints a text as it is and flushes it.
///
/// # Errors
/// Standard output cannot be written. [`crate::ended`] treats a reader that closed the pipe (`|
/// head`) as success.
pub fn print_raw(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Unprinted)?;
    Ok(())
}

/// Whether the reader of standard output has closed it.
pub(crate) fn is_closed(error: &anyhow::Error) -> bool {
    let unprinted = error.downcast_ref::<Unprinted>();
    unprinted.is_some_and(|Unprinted(reason)| reason.kind() == io::ErrorKind::BrokenPipe)
}

/// The error for output that could not be printed.
#[derive(Debug)]
struct Unprinted(io::Error);

impl fmt::Display for Unprinted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cannot write to standard output")
    }
}

impl std::error::Error for Unprinted {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}
