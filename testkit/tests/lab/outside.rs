//! A network outside of the mesh: a namespace that the mesh's own can reach, and the programs in it.
//!
//! ```text
//!   instances ── bridge ── switch namespace ── 198.51.100.1 ═══ 198.51.100.2 ── outside
//! ```

use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use leno_testkit::command::{self, Running};
use leno_testkit::lab::Lab;
use leno_testkit::{binaries, netns};

/// How long `ip` may take.
const LIMIT: Duration = Duration::from_secs(10);
/// The outside's address.
pub(crate) const ADDRESS: &str = "198.51.100.2";

/// The namespace; dropping it ends its programs and removes it.
pub(crate) struct Outside {
    name: String,
    programs: Vec<Running>,
}

impl Outside {
    /// Its second address.
    pub(crate) const SECOND: &str = "198.51.100.3";

    /// Makes it beside a mesh that runs.
    pub(crate) fn beside(lab: &Lab) -> Result<Self> {
        let outside = Outside { name: format!("{}-out", lab.name()), programs: Vec::new() };
        let (own, switch) = (outside.name.as_str(), format!("leno-{}", lab.name()));
        ip(&["netns", "add", own])?;
        let peer = ["peer", "name", "eth0", "netns", own];
        let pair = ["-n", &switch, "link", "add", "outside", "type", "veth"];
        ip(&[&pair[..], &peer].concat())?;
        ip(&["-n", &switch, "address", "add", "198.51.100.1/24", "dev", "outside"])?;
        ip(&["-n", &switch, "link", "set", "outside", "up"])?;
        let address = format!("{ADDRESS}/24");
        ip(&["-n", own, "address", "add", &address, "dev", "eth0"])?;
        let second = format!("{}/24", Self::SECOND);
        ip(&["-n", own, "address", "add", &second, "dev", "eth0"])?;
        ip(&["-n", own, "link", "set", "eth0", "up"])?;
        ip(&["-n", own, "link", "set", "lo", "up"])?;
        ip(&["-n", own, "route", "add", "default", "via", "198.51.100.1"])?;
        Ok(outside)
    }

    /// Starts a program there; our binaries are found by their names.
    pub(crate) fn start(&mut self, words: &[&str]) -> Result<()> {
        let program = match words[0].starts_with("leno-") {
            true => binaries::ours(words[0])?,
            false => binaries::require(words[0], words[0])?,
        };
        let running = netns::inside(&netns::path(&self.name), || {
            Running::start(Command::new(program).args(&words[1..]))
        })?;
        self.programs.push(running);
        Ok(())
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        self.programs.clear();
        if let Err(error) = ip(&["netns", "delete", &self.name]) {
            eprintln!("cannot remove namespace {}: {error:#}", self.name);
        }
    }
}

fn ip(words: &[&str]) -> Result<()> {
    let program = binaries::require("ip", "iproute2")?;
    command::text(Command::new(program).args(words), LIMIT).map(drop)
}
