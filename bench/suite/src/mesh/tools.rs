//! Finds the programs of other projects.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Finds a program in PATH and in the directories that root's PATH may lack.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/local/sbin"].map(PathBuf::from))
        .map(|directory| directory.join(name))
        .find(|candidate| candidate.is_file())
}

/// Finds a program that `scripts/tools.sh` has installed: in LENO_TOOLS, or else in `tools` beside
/// the directory of the build profile that this program is from.
pub(crate) fn installed(path: &str) -> Option<PathBuf> {
    let given = std::env::var_os("LENO_TOOLS").map(PathBuf::from);
    let built = || Some(std::env::current_exe().ok()?.parent()?.parent()?.join("tools"));
    let file = given.or_else(built)?.join(path);
    file.is_file().then_some(file)
}

/// The first line of a program's version output.
pub(super) fn version(program: &Path, flag: &str) -> String {
    let Ok(output) = Command::new(program).arg(flag).output() else { return String::new() };
    let said = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&said);
    text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default().to_owned()
}
