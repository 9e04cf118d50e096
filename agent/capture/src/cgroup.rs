//! Where the version 2 cgroup hierarchy is, and what is mounted where a machine has no mount.

use std::fs;
use std::path::{Path, PathBuf};

use leno_bpf::mounts;
use nix::mount::umount;

use crate::Error;

/// Tried first, in this order; any other mount shows the same hierarchy but may be somebody's own.
const USUAL: &[&str] = &["/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/run/leno/cgroup2"];

/// The root of the cgroup2 hierarchy, if it is mounted.
pub(crate) fn mounted() -> Result<Option<PathBuf>, Error> {
    mounts::find("cgroup2", USUAL).map_err(Error::io("read /proc/self/mountinfo"))
}

/// The root of the cgroup2 hierarchy: where it is mounted, else mounted at `/run/leno/cgroup2`.
///
/// # Errors
/// When it is not mounted and the kernel refuses to.
pub fn cgroup2_root() -> Result<PathBuf, Error> {
    match mounted()? {
        Some(root) => Ok(root),
        None => Ok(mounts::mount_privately("cgroup2", "cgroup2")?),
    }
}

/// Unmounts the bpffs that [`capture`](crate::capture) mounted where the machine has none, unless
/// something is still pinned there, of anyone; whether nothing of it is left.
///
/// # Errors
/// When it cannot be looked at or unmounted.
pub fn unmount_unused() -> Result<bool, Error> {
    let at = Path::new(mounts::PRIVATE).join("bpf");
    let all = mounts::mounts().map_err(Error::io("read /proc/self/mountinfo"))?;
    if !all.iter().any(|mount| mount.at == at && mount.kind == "bpf") {
        return Ok(true);
    }
    let action = || format!("unmount {}", at.display());
    // Only an empty directory is removed, so that no pin is.
    let _others = fs::remove_dir(at.join("leno"));
    if fs::read_dir(&at).map_err(Error::io(action()))?.next().is_some() {
        return Ok(false);
    }
    umount(&at).map_err(|errno| Error::io(action())(errno.into()))?;
    fs::remove_dir(&at).map_err(Error::io(action()))?;
    Ok(true)
}
