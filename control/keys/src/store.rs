//! The last good sets on disk, so that a restart of the control plane while an issuer is down forgets none.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use aws_lc_rs::digest::{SHA256, digest};
use data_encoding::HEXLOWER;

/// A directory of sets, each in a file that is named by its URL.
#[derive(Clone, Debug)]
pub struct Store(PathBuf);

impl Store {
    /// The sets below a directory, which is made if it is missing.
    ///
    /// # Errors
    /// The directory cannot be made.
    pub fn open(directory: &Path) -> io::Result<Self> {
        use std::os::unix::fs::DirBuilderExt as _;
        match fs::DirBuilder::new().mode(0o700).create(directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(Self(directory.to_owned())),
        }
    }

    fn file(&self, url: &str) -> PathBuf {
        self.0.join(HEXLOWER.encode(digest(&SHA256, url.as_bytes()).as_ref()))
    }

    /// The set that was fetched last from a URL, if it can be read.
    pub(crate) fn read(&self, url: &str) -> Option<String> {
        match fs::read_to_string(self.file(url)) {
            Ok(text) => Some(text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                tracing::warn!(url, %error, "the last keys of this URL cannot be read");
                None
            }
        }
    }

    /// Removes the set of a URL that no policy names any more: tenants can name others without end.
    pub(crate) fn forget(&self, url: &str) {
        if let Err(error) = fs::remove_file(self.file(url))
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(url, %error, "keys that no policy names cannot be removed");
        }
    }

    /// Stores a set in place of the last one.
    pub(crate) fn write(&self, url: &str, set: &str) {
        let file = self.file(url);
        let draft = file.with_extension("new");
        let written = fs::write(&draft, set).and_then(|()| fs::rename(&draft, &file));
        if let Err(error) = written {
            tracing::warn!(url, %error, "keys cannot be stored for the next start");
        }
    }
}
