//! The mark that shows that the connections of a network namespace are captured: the ports of
//! `leno_types::ports::MARK` are in the namespace's list of reserved ports.
//!
//! The list lives as long as the namespace, independently of the process that wrote it, and an
//! unprivileged proxy can read it. A proxy that is configured to wait for the mark listens only once its
//! connections are captured.

use std::fs;
use std::path::Path;

use leno_types::ports::{MARK, RESERVED_FILE, are_marked};

use crate::command::inside;
use crate::error::Error;

/// Marks the namespace. Succeeds if it is already marked.
///
/// # Errors
/// If the namespace cannot be entered or its kernel parameter cannot be written.
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
/// If the namespace cannot be entered.
pub fn is_marked(netns: &Path) -> Result<bool, Error> {
    inside(netns, || read().map(|reserved| are_marked(&reserved)))
}

/// Removes the mark, even if another program has set it. Other reserved ports stay. Succeeds if there is no mark.
///
/// # Errors
/// If the namespace cannot be entered or its kernel parameter cannot be written.
pub fn unmark(netns: &Path) -> Result<(), Error> {
    inside(netns, || {
        let reserved = read()?;
        if !are_marked(&reserved) {
            return Ok(());
        }
        write(&without_mark(&reserved))
    })
}

/// The list of reserved ports, in the kernel's format, without those of the mark.
fn without_mark(reserved: &str) -> String {
    let mut kept = Vec::new();
    for range in reserved.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (Ok(mut first), Ok(last)) = (first.parse::<u32>(), last.parse::<u32>()) else {
            continue;
        };
        for port in MARK.map(u32::from) {
            if (first..=last).contains(&port) {
                kept.extend((first < port).then(|| format!("{first}-{}", port - 1)));
                first = port + 1;
            }
        }
        kept.extend((first <= last).then(|| format!("{first}-{last}")));
    }
    kept.join(",")
}

fn read() -> Result<String, Error> {
    fs::read_to_string(RESERVED_FILE).map_err(Error::io(format!("read {RESERVED_FILE}")))
}

/// Writes the list. For an empty list a line break is written, because writing zero bytes changes nothing.
fn write(reserved: &str) -> Result<(), Error> {
    let written = fs::write(RESERVED_FILE, format!("{reserved}\n"));
    written.map_err(Error::io(format!("write {RESERVED_FILE}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_beside_those_of_the_mark_stay_reserved() {
        for (reserved, kept) in [
            ("15001,15006,15020\n", ""),
            ("80,15001-15006,15020-15021", "80-80,15002-15005,15021-15021"),
            ("1-65535", "1-15000,15002-15005,15007-15019,15021-65535"),
        ] {
            assert_eq!(without_mark(reserved), kept);
            assert!(!are_marked(kept));
        }
    }
}
