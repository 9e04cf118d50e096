//! Writes the archive, within a size limit, and removes secrets from its files.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use flate2::Compression;
use flate2::write::GzEncoder;
use serde::Serialize;
use serde_json::Value;

use super::object::cleaned;
use super::scrub::scrubbed;

/// Most bytes of all files before compression. The limit is low because a report is sent by mail and read by
/// people.
const MAX_BYTES: usize = 128 << 20;
/// The mode of the file: only the user who creates it may read it.
const MODE: u32 = 0o600;

/// An archive that is being written. The archive itself removes secrets from every file, so that no file can
/// bypass it.
pub struct Archive {
    tar: tar::Builder<GzEncoder<File>>,
    /// The folder in the archive that contains all files.
    folder: String,
    made: u64,
    bytes: usize,
}

impl Archive {
    /// Creates a new file, which must not exist. The folder in the archive has the same name as the file.
    ///
    /// # Errors
    /// The file exists or cannot be created.
    pub fn create(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().write(true).create_new(true).mode(MODE).open(path)?;
        let made = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let tar = tar::Builder::new(GzEncoder::new(file, Compression::default()));
        Ok(Self { tar, folder: folder(path), made, bytes: 0 })
    }

    /// Adds a text; returns whether there was space for it.
    ///
    /// # Errors
    /// The archive cannot be written.
    pub fn text(&mut self, name: &str, text: &str) -> io::Result<bool> {
        self.add(name, scrubbed(text).as_bytes())
    }

    /// Adds objects of a mesh; returns whether there was space for them.
    ///
    /// # Errors
    /// The archive cannot be written.
    pub fn objects(&mut self, name: &str, objects: Vec<Value>) -> io::Result<bool> {
        let all: Vec<Value> = objects.into_iter().map(cleaned).collect();
        self.add(name, &serde_json::to_vec_pretty(&all)?)
    }

    /// Adds a value that this program has computed; returns whether there was space for it.
    ///
    /// # Errors
    /// The archive cannot be written.
    pub fn found(&mut self, name: &str, value: &impl Serialize) -> io::Result<bool> {
        self.text(name, &serde_json::to_string_pretty(value)?)
    }

    /// Writes the end of the archive.
    ///
    /// # Errors
    /// The archive cannot be written.
    pub fn finish(self) -> io::Result<()> {
        self.tar.into_inner()?.finish()?.sync_all()
    }

    fn add(&mut self, name: &str, bytes: &[u8]) -> io::Result<bool> {
        if self.bytes.saturating_add(bytes.len()) > MAX_BYTES {
            return Ok(false);
        }
        self.bytes += bytes.len();
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(MODE);
        header.set_mtime(self.made);
        let path = format!("{}/{name}", self.folder);
        self.tar.append_data(&mut header, path, bytes)?;
        Ok(true)
    }
}

/// The folder that contains all files after the archive is unpacked.
fn folder(file: &Path) -> String {
    let name = file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let name = name.trim_end_matches(".tar.gz").trim_end_matches(".tgz");
    if name.is_empty() { "leno-bug-report".to_owned() } else { name.to_owned() }
}
