//! Creates directories and files that only their owner may access, and replaces files atomically.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Permission bits with which other users could change a directory's content.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// Permission bits with which other users could read or change a secret.
const OPEN_TO_OTHERS: u32 = 0o077;

/// A file or directory could not be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The operating system reported an error.
    #[error("cannot {doing} {}", path.display())]
    Io {
        /// The operation: "read", "write", ...
        doing: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Other users could read or change the content.
    #[error("{} is open to other users (mode {mode:03o}); run: chmod go-rwx {}", path.display(), path.display())]
    Exposed {
        /// The file or directory.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The path is not a regular file, or the file is longer than the bound.
    #[error("{} is not a regular file of at most {max} bytes", path.display())]
    Shape {
        /// The file.
        path: PathBuf,
        /// The bound, in bytes.
        max: u64,
    },
}

/// Whether a new file must survive a power failure.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Durability {
    /// The file must survive a crash, so it is flushed to disk.
    Durable,
    /// The file need not survive a crash, because it is created again after a restart.
    Volatile,
}

/// Creates a directory with mode 0700 if it does not exist. Rejects an existing one that other users may change.
pub(crate) fn private_directory(path: &Path) -> Result<(), FileError> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(failed("create directory", path))?;
    let mode = fs::metadata(path).map_err(failed("examine", path))?.permissions().mode() & 0o777;
    if mode & WRITABLE_BY_OTHERS != 0 {
        return Err(FileError::Exposed { path: path.to_owned(), mode });
    }
    Ok(())
}

/// Reads a file of at most `max` bytes; `None` if the file does not exist.
pub(crate) fn read_bounded(path: &Path, max: u64) -> Result<Option<Vec<u8>>, FileError> {
    let shape = match fs::symlink_metadata(path) {
        Ok(shape) => shape,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed("examine", path)(error)),
    };
    if !shape.is_file() || shape.len() > max {
        return Err(FileError::Shape { path: path.to_owned(), max });
    }
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed("read", path)(error)),
    }
}

/// As [`read_bounded`], but the file may be a symbolic link.
pub(crate) fn read_linked(path: &Path, max: u64) -> Result<Option<Vec<u8>>, FileError> {
    match path.canonicalize() {
        Ok(path) => read_bounded(&path, max),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed("examine", path)(error)),
    }
}

/// As [`read_bounded`], for a secret: rejects a file that other users may read.
pub(crate) fn read_secret(path: &Path, max: u64) -> Result<Option<Vec<u8>>, FileError> {
    if let Ok(shape) = fs::symlink_metadata(path)
        && shape.is_file()
        && shape.mode() & OPEN_TO_OTHERS != 0
    {
        return Err(FileError::Exposed { path: path.to_owned(), mode: shape.mode() & 0o777 });
    }
    read_bounded(path, max)
}

/// Writes a file with mode 0600, atomically: a reader sees the old content or the new, never a part of it.
pub(crate) fn write_private(path: &Path, bytes: &[u8], keep: Durability) -> Result<(), FileError> {
    write(path, bytes, (0o600, keep))
}

/// Writes a file that every user may read, atomically.
///
/// # Errors
/// [`FileError`]. The file is then unchanged.
pub fn write_public(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    write(path, bytes, (0o644, Durability::Volatile))
}

fn write(path: &Path, bytes: &[u8], (mode, keep): (u32, Durability)) -> Result<(), FileError> {
    let directory = path.parent().expect("files are written below a directory");
    let mut tag = [0; 8];
    aws_lc_rs::rand::fill(&mut tag).map_err(|_| no_randomness(path))?;
    let staged = directory.join(format!(".new-{}", hex(&tag)));
    let written = stage(&staged, bytes, (mode, keep)).and_then(|()| fs::rename(&staged, path));
    if let Err(error) = written {
        // An error here is ignored, because the caller needs the first error.
        let _ = fs::remove_file(&staged);
        return Err(failed("write", path)(error));
    }
    if keep == Durability::Durable {
        File::open(directory)
            .and_then(|directory| directory.sync_all())
            .map_err(failed("flush", directory))?;
    }
    Ok(())
}

/// Formats bytes in lower-case hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a String cannot fail");
        text
    })
}

/// Adds the operation and the path to an I/O error.
pub(crate) fn failed<'a>(
    doing: &'static str,
    path: &'a Path,
) -> impl FnOnce(io::Error) -> FileError + 'a {
    move |source| FileError::Io { doing, path: path.to_owned(), source }
}

/// The error of a system that provides no random bytes.
pub(crate) fn no_randomness(path: &Path) -> FileError {
    failed("draw random bytes for", path)(io::Error::other("the system's generator failed"))
}

fn stage(path: &Path, bytes: &[u8], (mode, keep): (u32, Durability)) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    // The process's umask can only clear bits; this sets the exact mode.
    file.set_permissions(Permissions::from_mode(mode))?;
    file.write_all(bytes)?;
    if keep == Durability::Durable {
        file.sync_all()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_may_change_or_read_is_refused() {
        let temporary = tempfile::tempdir().unwrap();
        let directory = temporary.path().join("deep/er");
        private_directory(&directory).unwrap();
        assert_eq!(fs::metadata(&directory).unwrap().mode() & 0o777, 0o700);

        let file = directory.join("secret");
        write_private(&file, b"x", Durability::Volatile).unwrap();
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
        assert_eq!(read_secret(&file, 1).unwrap().unwrap(), b"x");
        fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(read_secret(&file, 1), Err(FileError::Exposed { mode: 0o640, .. })));

        fs::set_permissions(&directory, Permissions::from_mode(0o770)).unwrap();
        assert!(matches!(private_directory(&directory), Err(FileError::Exposed { .. })));
    }

    #[test]
    fn only_small_regular_files_are_read() {
        let temporary = tempfile::tempdir().unwrap();
        let file = temporary.path().join("file");
        assert!(read_bounded(&file, 4).unwrap().is_none());
        write_private(&file, b"12345", Durability::Durable).unwrap();
        assert!(matches!(read_bounded(&file, 4), Err(FileError::Shape { .. })));
        assert!(matches!(read_bounded(temporary.path(), 4096), Err(FileError::Shape { .. })));
        let link = temporary.path().join("link");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert!(matches!(read_bounded(&link, 4096), Err(FileError::Shape { .. })));
    }
}
