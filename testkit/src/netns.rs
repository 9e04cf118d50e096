//! Runs code inside a network namespace.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use nix::sched::{CloneFlags, setns};

/// The file of a named network namespace, as `ip netns` creates it.
#[must_use]
pub fn path(name: &str) -> PathBuf {
    Path::new("/run/netns").join(name)
}

/// Runs `work` on its own thread in the network namespace of `file` (`/run/netns/NAME` or `/proc/PID/ns/net`).
/// Sockets and processes that `work` creates belong to that namespace. The thread ends with `work`.
pub fn inside<T: Send>(file: &Path, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let namespace =
        File::open(file).with_context(|| format!("cannot open namespace {}", file.display()))?;
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            setns(&namespace, CloneFlags::CLONE_NEWNET)
                .with_context(|| format!("cannot enter namespace {}", file.display()))?;
            work()
        });
        thread.join().map_err(|_| anyhow!("the work in {} panicked", file.display()))?
    })
}
