//! Finds Chromium and the programs that drive it through the pages of the dashboard.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

use crate::{binaries, tools};

/// A browser, and the programs that drive it.
#[derive(Clone, Debug)]
pub struct Browser {
    driver: PathBuf,
    chromium: PathBuf,
}

impl Browser {
    /// Finds the browser and the programs. If something is missing, prints what it is and returns `None`; this is
    /// an error if `LENO_REQUIRE` contains `tools`.
    pub fn find_or_skip() -> Result<Option<Self>> {
        let Some(driver) = tools::install_or_skip("browser")? else { return Ok(None) };
        let found = binaries::find("chromium").zip(binaries::find("node"));
        let Some((chromium, _)) = found else {
            if tools::required("tools") {
                bail!("LENO_REQUIRE has tools: chromium or node is missing");
            }
            println!("skipped: chromium or node is missing");
            return Ok(None);
        };
        Ok(Some(Self { driver, chromium }))
    }

    /// A command that runs a script of `dashboard/web/test` with Node. If the machine's Node is too old, the one
    /// of the browser's driver is used.
    #[must_use]
    pub fn run(&self, script: &str) -> Command {
        let own = self.driver.join("node_modules/node/bin/node");
        let mut node = Command::new(if own.exists() { own } else { "node".into() });
        let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../dashboard/web/test");
        node.arg(scripts.join(script));
        node.env("LENO_BROWSER", &self.driver).env("LENO_CHROMIUM", &self.chromium);
        node
    }
}
