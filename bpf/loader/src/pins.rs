//! The directory in bpffs with all pins, and the names in it.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt as _, symlink};
use std::path::{Path, PathBuf};

use libbpf_rs::Link;

use crate::{Error, mounts};

/// Longest name of a captured workload, in bytes; a directory entry may have 255.
const MAX_OWNER: usize = 200;

/// `<bpffs>/leno`: the parent of the directories of all workloads and meshes.
#[derive(Clone, Debug)]
pub struct PinRoot {
    directory: PathBuf,
}

impl PinRoot {
    /// Uses `/sys/fs/bpf` if that is a bpffs, else a bpffs mounted at `/run/leno/bpf`. No other
    /// mount is used: each mount of bpffs is a separate file system, and its pins end with it.
    ///
    /// # Errors
    /// When bpffs cannot be mounted or written.
    pub fn find() -> Result<Self, Error> {
        let mounted = mounts::mounts().map_err(Error::io("read /proc/self/mountinfo"))?;
        let usual = Path::new("/sys/fs/bpf");
        if mounted.iter().any(|m| m.at == usual && m.kind == "bpf" && m.writable && m.is_visible())
        {
            return Self::at(usual);
        }
        Self::at(&mounts::mount_privately("bpf", "bpf")?)
    }

    /// Uses a bpffs that the caller has mounted.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn at(bpffs: &Path) -> Result<Self, Error> {
        let directory = bpffs.join("leno");
        create_private_directory(&directory)?;
        Ok(Self { directory })
    }

    /// The directory itself.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.directory
    }

    /// The directory of one owner (a workload, or a mesh with its flow programs), whether it exists or not.
    pub(crate) fn of(&self, owner: &str) -> Result<PathBuf, Error> {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
        if owner.is_empty() || owner.len() > MAX_OWNER || !owner.bytes().all(allowed) {
            return Err(Error::Owner(owner.to_owned()));
        }
        // bpffs allows no dots in names.
        Ok(self.directory.join(owner.replace('.', ":")))
    }
}

/// Creates a directory that only this user may enter. Succeeds if it exists and belongs to this user. In a bpffs with
/// default options any user may create directories, and the owner of a directory can remove what is in it.
pub(crate) fn create_private_directory(path: &Path) -> Result<(), Error> {
    let made = match fs::DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => fs::symlink_metadata(path)
            .and_then(|found| {
                let ours = found.is_dir() && found.uid() == nix::unistd::geteuid().as_raw();
                let whose = || format!("it exists and belongs to user {}: remove it", found.uid());
                if ours { Ok(()) } else { Err(io::Error::other(whose())) }
            }),
        other => other,
    };
    made.map_err(Error::io(format!("make {}", path.display())))
}

/// Writes a note: a symbolic link whose target is the text, because bpffs has no plain files. An older note is replaced
/// atomically.
pub(crate) fn write_note(directory: &Path, name: &str, text: &str) -> Result<(), Error> {
    let (path, next) = (directory.join(name), directory.join(format!("next_{name}")));
    // Left by a process that was killed.
    remove(&next)?;
    let written = symlink(text, &next).and_then(|()| fs::rename(&next, &path));
    written.map_err(Error::io(format!("write {}", path.display())))
}

/// Reads a note; empty if there is none.
pub(crate) fn read_note(directory: &Path, name: &str) -> String {
    match fs::read_link(directory.join(name)) {
        Ok(text) => text.to_string_lossy().into_owned(),
        Err(_) => String::new(),
    }
}

/// Where the link of a program is pinned.
pub(crate) fn link_path(directory: &Path, program: &str) -> PathBuf {
    directory.join(format!("link_{program}"))
}

/// Where a map is pinned.
pub(crate) fn map_path(directory: &Path, map: &str) -> PathBuf {
    directory.join(format!("map_{map}"))
}

/// The pinned links in the directory, unordered.
pub(crate) fn links(directory: &Path) -> Result<Vec<PathBuf>, Error> {
    let all = entries(directory)?;
    Ok(all.into_iter().filter(|path| file_name(path).starts_with("link_")).collect())
}

/// The pins of attached programs in the directory, unordered: links and iterators.
pub(crate) fn programs(directory: &Path) -> Result<Vec<PathBuf>, Error> {
    let runs = |path: &PathBuf| {
        let name = file_name(path);
        name.starts_with("link_") || name.starts_with("read_")
    };
    Ok(entries(directory)?.into_iter().filter(runs).collect())
}

/// The entries of a directory; empty if it does not exist.
pub(crate) fn entries(directory: &Path) -> Result<Vec<PathBuf>, Error> {
    let action = || format!("list {}", directory.display());
    match fs::read_dir(directory) {
        Ok(entries) => entries
            .map(|entry| Ok(entry.map_err(Error::io(action()))?.path()))
            .collect::<Result<_, Error>>(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(Error::io(action())(error)),
    }
}

/// Detaches the program of a pinned link and removes the pin; succeeds if it is gone.
pub(crate) fn detach(path: &Path) -> Result<(), Error> {
    if !path.exists() {
        return Ok(());
    }
    // Removing only the pin would detach the program when the last descriptor of the link is closed, and another
    // process may have one. Detaching fails if the cgroup or namespace is gone. That is harmless, because the kernel
    // has detached the link already.
    match Link::open(path) {
        Ok(link) => {
            if let Err(error) = link.detach() {
                tracing::debug!(path = %path.display(), %error, "link was detached before");
            }
        }
        Err(error) => tracing::warn!(path = %path.display(), %error, "cannot open pinned link"),
    }
    remove(path)
}

/// Removes a file; succeeds if it is gone.
pub(crate) fn remove(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::io(format!("remove {}", path.display()))(error))
        }
        _ => Ok(()),
    }
}

/// Removes the directory of an owner with all its pins, links first.
pub(crate) fn remove_all(directory: &Path) -> Result<(), Error> {
    for link in links(directory)? {
        detach(&link)?;
    }
    for entry in entries(directory)? {
        remove(&entry)?;
    }
    match fs::remove_dir(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::io(format!("remove {}", directory.display()))(error))
        }
        _ => Ok(()),
    }
}

/// The last component, as text.
pub(crate) fn file_name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}
