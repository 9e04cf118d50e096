//! Finds the programs of other projects, and says how to install missing programs.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

/// A program that is missing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} is missing: {bring}")]
pub struct Missing {
    /// The missing program.
    pub what: String,
    /// The command that installs it.
    pub bring: String,
}

impl Missing {
    /// The error that the program `what` is missing; the command `bring` installs it.
    pub(crate) fn new(what: impl Into<String>, bring: impl Into<String>) -> Self {
        Self { what: what.into(), bring: bring.into() }
    }
}

/// A program that the suite needs, as one of its data files describes it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Tool {
    /// The name to look for in PATH, or beside this program if it is one of Leno's programs; `None` if the user has to
    /// name the file.
    program: Option<String>,
    /// The path at which `scripts/tools.sh` installs the program.
    installed: Option<String>,
    /// How to install the program, for the message when it is missing.
    bring: String,
}

impl Tool {
    /// Returns the program that the user has `given` for the mesh or generator `name`, or else finds it.
    pub(crate) fn find(&self, (name, given): (&str, Option<&Path>)) -> Result<PathBuf, Missing> {
        let in_path = || {
            let name = self.program.as_deref()?;
            let is_ours = name.starts_with("leno-");
            if is_ours { leno_local::program::find(name) } else { find(name) }
        };
        let found = || self.installed.as_deref().and_then(installed).or_else(in_path);
        let program = given.map_or_else(found, |given| given.is_file().then(|| given.to_owned()));
        let name = self.program.as_deref().unwrap_or(name);
        let what = given.map_or_else(|| name.to_owned(), |given| given.display().to_string());
        program.ok_or_else(|| Missing::new(what, &*self.bring))
    }
}

/// Finds a program in PATH, or in directories that root's PATH may lack.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/local/sbin"].map(PathBuf::from))
        .map(|directory| directory.join(name))
        .find(|candidate| candidate.is_file())
}

/// Finds a program that `scripts/tools.sh` has installed: in LENO_TOOLS, or else in the directory `tools` beside the
/// build directory of this program's profile.
fn installed(path: &str) -> Option<PathBuf> {
    let given = std::env::var_os("LENO_TOOLS").map(PathBuf::from);
    let built = || Some(std::env::current_exe().ok()?.parent()?.parent()?.join("tools"));
    let file = given.or_else(built)?.join(path);
    file.is_file().then_some(file)
}

/// The first line that a program prints about its version.
pub(crate) fn version(program: &Path, flag: &str) -> String {
    let Ok(output) = Command::new(program).arg(flag).output() else { return String::new() };
    let said = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&said);
    text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default().to_owned()
}
