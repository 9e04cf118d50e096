//! The mark in a network namespace that says it is captured (`leno_types::ports::MARK`).
//!
//! It lives as long as the namespace, whoever made it, and an unprivileged proxy can read it: one that
//! was told to wait for it listens only once its connections are captured.

use std::fs;
use std::path::Path;

use leno_types::ports::{MARK, RESERVED_FILE, are_marked};

use crate::command::inside;
use crate::error::Error;

/// Marks the namespace; fine if it is.
///
/// # Errors
/// When the namespace cannot be entered or its parameter not be written.
pub fn mark(netns: &Path) -> Result<(), Error> {
    inside(netns, || {
        let reserved = read()?;
        if are_marked(&reserved) {
            return Ok(());
        }
        let mut all: Vec<String> = reserved.trim().split(',').map(ToOwned::to_owned).collect();
        all.extend(MARK.iter().map(ToString::to_string));
        all.retain(|range| !range.is_empty());
        write(&all.join(","))
    })
}

/// Whether the namespace is marked.
///
/// # Errors
/// When it cannot be entered.
pub fn is_marked(netns: &Path) -> Result<bool, Error> {
    inside(netns, || read().map(|reserved| are_marked(&reserved)))
}

/// Removes the mark, and every other reserved port between its first and last; fine if there is none.
///
/// # Errors
/// When the namespace cannot be entered or its parameter not be written.
pub fn unmark(netns: &Path) -> Result<(), Error> {
    inside(netns, || {
        let reserved = read()?;
        if !are_marked(&reserved) {
            return Ok(());
        }
        let kept: Vec<&str> =
            reserved.trim().split(',').filter(|range| !are_of_mark(range)).collect();
        write(&kept.join(","))
    })
}

/// Whether a range begins among the ports of the mark.
fn are_of_mark(range: &str) -> bool {
    let first = range.split('-').next().and_then(|first| first.parse::<u16>().ok());
    first.is_some_and(|first| (MARK[0]..=MARK[2]).contains(&first))
}

fn read() -> Result<String, Error> {
    fs::read_to_string(RESERVED_FILE).map_err(Error::io(format!("read {RESERVED_FILE}")))
}

/// An empty list needs its line break to be written at all.
fn write(reserved: &str) -> Result<(), Error> {
    let written = fs::write(RESERVED_FILE, format!("{reserved}\n"));
    written.map_err(Error::io(format!("write {RESERVED_FILE}")))
}
