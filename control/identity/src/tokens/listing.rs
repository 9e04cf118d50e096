//! What a directory of tokens held when it was last read.

use std::fs::{self, DirEntry};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use aws_lc_rs::constant_time::verify_slices_are_equal;
use leno_types::InstanceName;

use super::MAX_TOKENS;
use super::record::{Digest, Record};
use crate::files::{self, FileError};

/// Bound of a token's file, in bytes: the longest names take under 700.
const MAX_FILE: u64 = 4096;

/// How long after a change a directory's time may still hide another one. The kernel stamps with
/// its tick, 10 milliseconds at the coarsest; a listing read sooner than this is read again.
const SETTLED: Duration = Duration::from_millis(100);

/// A file in a token directory that holds no token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadToken {
    /// The file.
    pub file: PathBuf,
    /// What is wrong with it.
    pub reason: String,
}

/// The tokens of a directory, and when it had them.
#[derive(Debug)]
pub(super) struct Listing {
    records: Vec<Record>,
    pub(super) bad: Vec<BadToken>,
    /// The directory's time of change; `None` where it was too fresh to be relied upon.
    changed: Option<SystemTime>,
}

impl Listing {
    /// Reads every token; a file that holds none is noted and harms no other.
    pub(super) fn read(directory: &Path) -> Result<Self, FileError> {
        let now = SystemTime::now();
        // Before the files: a change while they are read shows as another time at the next look.
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

    /// Whether the directory has not changed since.
    pub(super) fn is_current(&self, directory: &Path) -> Result<bool, FileError> {
        Ok(self.changed == Some(changed_at(directory)?))
    }

    /// The record with this digest. Takes the same time wherever it is and however much matches.
    pub(super) fn find(&self, digest: &Digest) -> Option<&Record> {
        self.records.iter().fold(None, |found, record| {
            let same = verify_slices_are_equal(&record.digest, digest).is_ok();
            if same { Some(record) } else { found }
        })
    }

    /// The record of this instance, of which there is at most one.
    pub(super) fn of(&self, instance: &InstanceName) -> Option<&Record> {
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

/// How many tokens a directory has, good or bad, counted up to the bound.
pub(super) fn count(directory: &Path) -> Result<usize, FileError> {
    Ok(token_files(directory)?.take(MAX_TOKENS).count())
}

/// Names that begin with a dot are files on their way to another name, or none of ours.
fn token_files(
    directory: &Path,
) -> Result<impl Iterator<Item = std::io::Result<DirEntry>>, FileError> {
    let entries = fs::read_dir(directory).map_err(files::failed("list", directory))?;
    let hidden = |entry: &DirEntry| entry.file_name().as_encoded_bytes().starts_with(b".");
    Ok(entries.filter(move |entry| !entry.as_ref().is_ok_and(hidden)))
}

/// `None` where the file has gone since it was listed.
fn read_record(path: &Path) -> Result<Option<Record>, String> {
    let name = path.file_name().and_then(|name| name.to_str()).ok_or("its name is not UTF-8")?;
    let bytes = match files::read_bounded(path, MAX_FILE) {
        Ok(Some(bytes)) => bytes,
        Ok(None) => return Ok(None),
        Err(FileError::Io { source, .. }) => return Err(source.to_string()),
        Err(error) => return Err(error.to_string()),
    };
    Record::from_json(name, &bytes).map(Some)
}

fn changed_at(directory: &Path) -> Result<SystemTime, FileError> {
    fs::metadata(directory)
        .and_then(|metadata| metadata.modified())
        .map_err(files::failed("examine", directory))
}
