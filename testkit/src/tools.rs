//! Finds or installs the tools that tests use as a reference, which `scripts/tools.sh` installs into the target
//! directory, and the programs from Debian packages that tests need.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::{binaries, command};

/// How long an installation may take. It may compile a Go module with all its dependencies.
const INSTALL_LIMIT: Duration = Duration::from_secs(600);

/// The directory of `tool`. If the tool is missing, installs it.
pub fn install(tool: &str) -> Result<PathBuf> {
    let tools = binaries::tools()?;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/tools.sh");
    let mut install = Command::new(script);
    install.arg(tool).env("LENO_TOOLS", &tools);
    command::text(&mut install, INSTALL_LIMIT).with_context(|| format!("cannot install {tool}"))?;
    Ok(tools.join(tool))
}

/// Like [`install`], but if the installation fails, prints the reason and returns `None`. That is an error if
/// `LENO_REQUIRE` contains `tools`.
pub fn install_or_skip(tool: &str) -> Result<Option<PathBuf>> {
    or_skip("tools", install(tool))
}

/// The path of a program from a Debian package. If it is missing, prints how to install it and returns `None`.
/// That is an error if `LENO_REQUIRE` contains `servers`.
pub fn find_or_skip(program: &str, package: &str) -> Result<Option<PathBuf>> {
    or_skip("servers", binaries::require(program, package))
}

fn or_skip(what: &str, found: Result<PathBuf>) -> Result<Option<PathBuf>> {
    match found {
        Ok(path) => Ok(Some(path)),
        Err(error) if required(what) => bail!("LENO_REQUIRE has {what}: {error:#}"),
        Err(error) => {
            println!("skipped: {error:#}");
            Ok(None)
        }
    }
}

/// Whether a test must fail, rather than be skipped, if `what` is missing.
#[must_use]
pub fn required(what: &str) -> bool {
    std::env::var("LENO_REQUIRE").is_ok_and(|all| all.split(',').any(|one| one.trim() == what))
}
