//! A network outside of the mesh: a namespace that is connected to the mesh's switch namespace, and
//! the programs in it.
//!
//! ```text
//!   instances ── bridge ── switch namespace ── 198.51.100.1 ═══ 198.51.100.2 ── outside
//! ```
//!
//! Or it is connected to a namespace that plays the machine on which the mesh runs:
//!
//! ```text
//!   instances ── bridge ── switch namespace    machine ── 198.51.100.1 ═══ 198.51.100.2 ── outside
//!                                                            default route   203.0.113.9
//! ```

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::Result;
use leno_testkit::command::{self, Running};
use leno_testkit::lab::Lab;
use leno_testkit::{binaries, netns};

/// How long a command of `ip` may take.
const LIMIT: Duration = Duration::from_secs(60);
/// The address of the outside namespace.
pub(crate) const ADDRESS: &str = "198.51.100.2";

/// A namespace that simulates the machine on which a mesh is started. Dropping the value removes the namespace.
pub(crate) struct Machine(String);

/// The namespace outside of the mesh. Dropping the value ends the programs in the namespace and removes it.
pub(crate) struct Outside {
    name: String,
    programs: Vec<Running>,
}

impl Outside {
    /// The address behind a machine's default route.
    pub(crate) const FAR: &str = "203.0.113.9";
    /// The second address in the machine's network.
    pub(crate) const SECOND: &str = "198.51.100.3";

    /// Creates an outside namespace that is connected to a running mesh.
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

    /// Creates an outside namespace that is connected to a machine. It has a route to one address of the machine,
    /// and none to networks behind it.
    pub(crate) fn of(machine: &Machine) -> Result<Self> {
        let outside = Outside { name: format!("{}-out", machine.0), programs: Vec::new() };
        let own = outside.name.as_str();
        ip(&["netns", "add", own])?;
        let peer = ["peer", "name", "eth0", "netns", own];
        let pair = ["-n", &machine.0, "link", "add", "eth0", "type", "veth"];
        ip(&[&pair[..], &peer].concat())?;
        let far = format!("{}/32", Self::FAR);
        for words in [
            &["-n", &machine.0, "address", "add", "198.51.100.1/24", "dev", "eth0"][..],
            &["-n", &machine.0, "link", "set", "eth0", "up"],
            &["-n", own, "address", "add", &format!("{ADDRESS}/24"), "dev", "eth0"],
            &["-n", own, "address", "add", &far, "dev", "eth0"],
            &["-n", own, "link", "set", "eth0", "up"],
            &["-n", own, "link", "set", "lo", "up"],
            &["-n", &machine.0, "route", "add", "default", "via", ADDRESS],
        ] {
            ip(words)?;
        }
        Ok(outside)
    }

    /// Adds a route to a network through an address.
    pub(crate) fn routes(&self, network: &str, by: &str) -> Result<()> {
        ip(&["-n", &self.name, "route", "add", network, "via", by])
    }

    /// The output of a command that runs in the namespace.
    pub(crate) fn says(&self, words: &[&str]) -> Result<String> {
        says(&self.name, words)
    }

    /// Starts a program in the namespace. If its name begins with `leno-`, it is a binary of this build.
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

impl Machine {
    /// Creates a machine without any network, which does not forward packets.
    pub(crate) fn new() -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let nth = NEXT.fetch_add(1, Ordering::Relaxed);
        let machine = Machine(format!("t{}-m{nth}", std::process::id()));
        ip(&["netns", "add", &machine.0])?;
        ip(&["-n", &machine.0, "link", "set", "lo", "up"])?;
        Ok(machine)
    }

    /// The name of its namespace.
    pub(crate) fn name(&self) -> &str {
        &self.0
    }

    /// The output of a command that runs on the machine.
    pub(crate) fn says(&self, words: &[&str]) -> Result<String> {
        says(&self.0, words)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if let Err(error) = ip(&["netns", "delete", &self.0]) {
            eprintln!("cannot remove namespace {}: {error:#}", self.0);
        }
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

fn says(namespace: &str, words: &[&str]) -> Result<String> {
    let program = binaries::require(words[0], words[0])?;
    netns::inside(&netns::path(namespace), || {
        command::text(Command::new(program).args(&words[1..]), LIMIT)
    })
}

fn ip(words: &[&str]) -> Result<()> {
    let program = binaries::require("ip", "iproute2")?;
    command::text(Command::new(program).args(words), LIMIT).map(drop)
}
