//! The tokens in a directory, as they were when the directory was last read.

use std::fs::{self, DirEntry};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use aws_lc_rs::constant_time::verify_slices_are_equal;
use leno_types::InstanceName;

use super::MAX_TOKENS;
use super::record::{Digest, TokenRecord};
use crate::files::{self, FileError};

/// Longest token file, in bytes. Even with the longest names, it has less than 700.
const MAX_FILE: u64 = 4096;

/// How long ago a directory must have changed for its time of change to be reliable. The kernel's timestamps are
/// only as precise as its tick, which may be 10 milliseconds, so two changes may have the same time. A listing
/// that was read sooner after a change is read again.
const SETTLED: Duration = Duration::from_millis(100);

/// A file in a token directory that holds no valid token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadToken {
    /// The file.
    pub file: PathBuf,
    /// What is wrong with it.
    pub reason: String,
}

/// The tokens of a directory, with the directory's time of change.
#[derive(Debug)]
pub(super) struct TokenListing {
    records: Vec<TokenRecord>,
    pub(super) bad: Vec<BadToken>,
    /// The directory's time of change when it was read; `None` if it was too recent to be reliable.
    changed: Option<SystemTime>,
}

impl TokenListing {
    /// Reads every token. A file without a valid token is recorded, and does not affect the others.
    pub(super) fn read(directory: &Path) -> Result<Self, FileError> {
        let now = SystemTime::now();
        // Taken before the files are read. If the directory changes during the read, it has a later time than
        // this, and the next query reads it again.
        let changed = changed_at(directory)?;
        let settled = now.duration_since(changed).is_ok_and(|age| age >= SETTLED);
        let mut listing =
            Self { records: Vec::new(), bad: Vec::new(), changed: settled.then_some(changed) };
        for (index, entry) in token_files(directory)?.enumerate() {
            let path = entry.map_err(files::failed("list", directory))?.path();
            if index == MAX_TOKENS {
                let reason = format!("it and all after it are over the {MAX_TOKENS} of a store");
                listing.bad.push(BadToken { file: path, reason });
                break;
            }
            match read_record(&path) {
                Ok(Some(record)) => listing.records.push(record),
                Ok(None) => {}
                Err(reason) => listing.bad.push(BadToken { file: path, reason }),
            }
        }
        Ok(listing)
    }

    /// Whether the directory has not changed since it was read.
    pub(super) fn is_current(&self, directory: &Path) -> Result<bool, FileError> {
        Ok(self.changed == Some(changed_at(directory)?))
    }

    /// The record with this digest. The search takes the same time whatever the digest is, so that the time
    /// reveals nothing about valid digests.
    pub(super) fn find(&self, digest: &Digest) -> Option<&TokenRecord> {
        self.records.iter().fold(None, |found, record| {
            let same = verify_slices_are_equal(&record.digest, digest).is_ok();
            if same { Some(record) } else { found }
        })
    }

    /// The record of this instance, if it has one.
    pub(super) fn of(&self, instance: &InstanceName) -> Option<&TokenRecord> {
        self.records.iter().find(|record| record.instance == *instance)
    }

    /// Logs the bad files that an earlier listing did not have.
    pub(super) fn warn_of_new(&self, earlier: &Self) {
        for bad in self.bad.iter().filter(|bad| !earlier.bad.contains(bad)) {
            bad.warn();
        }
    }
}

impl BadToken {
    pub(super) fn warn(&self) {
        tracing::warn!(file = %self.file.display(), reason = self.reason, "not a token; ignored");
    }
}

/// How many files of tokens a directory has, valid or not. Counting stops at the bound.
pub(super) fn count(directory: &Path) -> Result<usize, FileError> {
    Ok(token_files(directory)?.take(MAX_TOKENS).count())
}

/// The files in a directory, except those whose name begins with a dot. These are temporary files that will be
/// renamed, or do not belong to the store.
fn token_files(
    directory: &Path,
) -> Result<impl Iterator<Item = std::io::Result<DirEntry>>, FileError> {
    let entries = fs::read_dir(directory).map_err(files::failed("list", directory))?;
    let hidden = |entry: &DirEntry| entry.file_name().as_encoded_bytes().starts_with(b".");
    Ok(entries.filter(move |entry| !entry.as_ref().is_ok_and(hidden)))
}

/// Reads a token's file; `None` if the file was removed after the directory was listed.
fn read_record(path: &Path) -> Result<Option<TokenRecord>, String> {
    let name = path.file_name().and_then(|name| name.to_str()).ok_or("its name is not UTF-8")?;
    let bytes = match files::read_bounded(path, MAX_FILE) {
        Ok(Some(bytes)) => bytes,
        Ok(None) => return Ok(None),
        Err(FileError::Io { source, .. }) => return Err(source.to_string()),
        Err(error) => return Err(error.to_string()),
    };
    TokenRecord::from_json(name, &bytes).map(Some)
}

fn changed_at(directory: &Path) -> Result<SystemTime, FileError> {
    fs::metadata(directory)
        .and_then(|metadata| metadata.modified())
        .map_err(files::failed("examine", directory))
}
