//! Finds the binaries under test.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};

/// The directory into which cargo puts the workspace's binaries: that of the running executable, or its parent if
/// the executable is a test in `deps/`.
pub fn directory() -> Result<PathBuf> {
    let exe = std::env::current_exe().context("cannot tell where this executable is")?;
    let dir = exe.parent().context("this executable has no directory")?;
    let dir = if dir.ends_with("deps") { dir.parent().unwrap_or(dir) } else { dir };
    Ok(dir.to_path_buf())
}

/// The path of the workspace's binary `name` in [`directory`].
pub fn ours(name: &str) -> Result<PathBuf> {
    let path = directory()?.join(name);
    if !path.is_file() {
        bail!("{} is missing: build it first with cargo build --workspace", path.display());
    }
    Ok(path)
}

/// The directory of tools that `scripts/tools.sh` installs: the folder `tools` next to those of the profiles.
pub fn tools() -> Result<PathBuf> {
    let directory = directory()?;
    let target = directory.parent().context("the binaries are in no target directory")?;
    Ok(target.join("tools"))
}

/// The file at `path` in [`tools`], which `scripts/tools.sh NAME` has installed.
pub fn tool(name: &str, path: &str) -> Result<PathBuf> {
    let file = tools()?.join(path);
    if !file.is_file() {
        bail!("{name} is missing: scripts/tools.sh {name}");
    }
    Ok(file)
}

/// The path of a system program, from PATH and the directories that root's PATH may lack.
#[must_use]
pub fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/local/sbin"].map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|candidate| candidate.is_file())
}

/// Like [`find`], but if the program is missing, the error names the Debian package to install.
pub fn require(name: &str, package: &str) -> Result<PathBuf> {
    find(name).with_context(|| format!("{name} is missing: apt-get install -y {package}"))
}
