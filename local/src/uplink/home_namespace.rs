//! The network namespace in which a mesh was started. `leno cleanup` has to find it again.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use nix::sched::{CloneFlags, setns};
use serde::{Deserialize, Serialize};

use crate::error::{Attempt, Result};
use crate::netns;

/// The file of the calling thread's namespace.
const OWN: &str = "/proc/thread-self/ns/net";

/// A network namespace, identified by its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct HomeNamespace {
    device: u64,
    inode: u64,
}

impl HomeNamespace {
    /// The namespace of the calling thread.
    pub(super) fn of_thread() -> Result<Self> {
        Self::of(Path::new(OWN)).attempt(|| format!("cannot examine {OWN}"))
    }

    fn of(file: &Path) -> std::io::Result<Self> {
        fs::metadata(file).map(|meta| Self { device: meta.dev(), inode: meta.ino() })
    }

    /// Runs `work` inside the namespace on a new thread; `None` if the namespace no longer exists.
    pub(super) fn within<T: Send>(
        &self,
        work: impl FnOnce() -> Result<T> + Send,
    ) -> Result<Option<T>> {
        let Some(file) = self.find() else { return Ok(None) };
        let inside = || {
            let what =
                || "cannot enter the network namespace in which the mesh was started".to_owned();
            setns(&file, CloneFlags::CLONE_NEWNET).attempt(what)?;
            work().map(Some)
        };
        netns::on_own_thread(inside)
    }

    /// Opens the namespace, so that it continues to exist. A namespace is found by its name or by a process in it.
    fn find(&self) -> Option<File> {
        let own = [PathBuf::from(OWN)].into_iter();
        let named = entries(Path::new(netns::DIRECTORY));
        let processes = entries(Path::new("/proc")).map(|process| process.join("ns/net"));
        let mut all = own.chain(named).chain(processes);
        all.find_map(|path| {
            let is_it = Self::of(&path).is_ok_and(|found| found == *self);
            // If the process has ended since, the path may now belong to another process.
            if is_it { File::open(path).ok() } else { None }
        })
    }
}

fn entries(directory: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_is_found_again_and_one_that_is_gone_is_not() {
        let own = HomeNamespace::of_thread().unwrap();
        assert!(own.find().is_some());
        assert!(HomeNamespace { inode: 1, ..own }.find().is_none());
    }
}
