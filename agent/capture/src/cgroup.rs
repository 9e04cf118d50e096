//! Finds the version 2 cgroup hierarchy, and mounts it if the machine does not. Also unmounts the bpffs that
//! captures have mounted.

use std::fs;
use std::path::{Path, PathBuf};

use leno_bpf::mounts;
use nix::mount::umount;

use crate::Error;

/// The usual mount points, which are tried first and in this order. Another mount shows the same hierarchy, but
/// may end with the program that has created it.
const USUAL: &[&str] = &["/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/run/leno/cgroup2"];

/// The root of the cgroup2 hierarchy, if it is mounted.
pub(crate) fn mounted() -> Result<Option<PathBuf>, Error> {
    mounts::find("cgroup2", USUAL).map_err(Error::io("read /proc/self/mountinfo"))
}

/// The root of the cgroup2 hierarchy. If it is not mounted, mounts it at `/run/leno/cgroup2`.
///
/// # Errors
/// If it is not mounted and the kernel refuses to mount it.
pub fn cgroup2_root() -> Result<PathBuf, Error> {
    match mounted()? {
        Some(root) => Ok(root),
        None => Ok(mounts::mount_privately("cgroup2", "cgroup2")?),
    }
}

/// Unmounts the file systems that captures mounted on a machine without them, unless they are `needed`,
/// and removes `/run/leno` if nothing else is in it.
pub fn unmount_shared(needed: impl FnOnce() -> bool) {
    mounts::unmount_private(needed);
}

/// Unmounts the bpffs that [`capture`](crate::capture) mounted on a machine without one, unless any program still
/// has a pin there. Returns whether it is not mounted any more.
///
/// # Errors
/// If it cannot be read or unmounted.
pub fn unmount_unused() -> Result<bool, Error> {
    let at = Path::new(mounts::PRIVATE).join("bpf");
    let all = mounts::mounts().map_err(Error::io("read /proc/self/mountinfo"))?;
    if !all.iter().any(|mount| mount.at == at && mount.kind == "bpf") {
        return Ok(true);
    }
    let action = || format!("unmount {}", at.display());
    // `remove_dir` only removes an empty directory, so no pin is removed.
    let _others = fs::remove_dir(at.join("leno"));
    if fs::read_dir(&at).map_err(Error::io(action()))?.next().is_some() {
        return Ok(false);
    }
    umount(&at).map_err(|errno| Error::io(action())(errno.into()))?;
    fs::remove_dir(&at).map_err(Error::io(action()))?;
    Ok(true)
}
