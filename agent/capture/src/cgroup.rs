//! Where the version 2 cgroup hierarchy is.

use std::path::PathBuf;

use leno_bpf::mounts;

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
