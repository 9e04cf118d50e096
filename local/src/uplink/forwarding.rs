//! Forwarding of IPv4 in the namespace of the calling thread, and what the kernel changes beside it.
//!
//! A change of `ip_forward` sets `conf/all/accept_redirects` to the contrary, and the forwarding of new and of
//! every present interface to the same. Off again is so not what was there before: a machine that listened to
//! no redirects would, and an interface that alone forwarded would not.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::{Attempt, Result};

/// Whether the machine passes packets on.
const SWITCH: &str = "/proc/sys/net/ipv4/ip_forward";
/// The settings of every interface, in a directory each.
const INTERFACES: &str = "/proc/sys/net/ipv4/conf";
/// Directories there that are no interface.
const ALL: &str = "all";
const NEW: &str = "default";

/// What was set while forwarding was off.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ForwardingBefore {
    /// Of all interfaces.
    accept_redirects: String,
    /// Of interfaces that come.
    forwarding: String,
    /// Those that forwarded nevertheless.
    forwarded: Vec<String>,
}

impl ForwardingBefore {
    /// Reads it.
    pub(super) fn read() -> Result<Self> {
        let entries = fs::read_dir(INTERFACES).attempt(|| format!("cannot list {INTERFACES}"))?;
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let mut forwarded: Vec<String> = names
            .filter(|name| name != ALL && name != NEW)
            // One that has just gone does not forward.
            .filter(|name| read(&setting(name, "forwarding")).is_ok_and(|value| value != "0"))
            .collect();
        forwarded.sort_unstable();
        Ok(Self {
            accept_redirects: read(&setting(ALL, "accept_redirects"))?,
            forwarding: read(&setting(NEW, "forwarding"))?,
            forwarded,
        })
    }

    /// Switches forwarding off, and sets the rest to what it was.
    pub(super) fn restore(&self) -> Result<()> {
        write(Path::new(SWITCH), "0")?;
        write(&setting(ALL, "accept_redirects"), &self.accept_redirects)?;
        write(&setting(NEW, "forwarding"), &self.forwarding)?;
        for interface in &self.forwarded {
            let path = setting(interface, "forwarding");
            if path.exists() {
                write(&path, "1")?;
            }
        }
        Ok(())
    }
}

/// Whether IPv4 is forwarded.
pub(super) fn is_on() -> Result<bool> {
    read(Path::new(SWITCH)).map(|value| value != "0")
}

/// Has IPv4 forwarded; where it is already, nothing changes.
pub(super) fn switch_on() -> Result<()> {
    if is_on()? { Ok(()) } else { write(Path::new(SWITCH), "1") }
}

fn setting(interface: &str, name: &str) -> PathBuf {
    Path::new(INTERFACES).join(interface).join(name)
}

fn read(path: &Path) -> Result<String> {
    let text = fs::read_to_string(path).attempt(|| format!("cannot read {}", path.display()))?;
    Ok(text.trim().to_owned())
}

fn write(path: &Path, value: &str) -> Result<()> {
    match fs::write(path, value) {
        // Its interface went in between.
        Err(error) if error.kind() == io::ErrorKind::NotFound && !path.exists() => Ok(()),
        other => other.attempt(|| format!("cannot write {value} to {}", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use nix::sched::{CloneFlags, unshare};

    use super::*;
    use crate::netns::on_own_thread;

    #[test]
    fn off_again_is_what_was_there_before() {
        if !nix::unistd::geteuid().is_root() {
            let require = std::env::var("LENO_REQUIRE").unwrap_or_default();
            assert!(!require.contains("root"), "root is required");
            println!("skipped: needs root");
            return;
        }
        on_own_thread(|| {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            // As a machine has it that listens to no redirects, and forwards by one interface.
            write(Path::new(SWITCH), "0").unwrap();
            write(&setting(ALL, "accept_redirects"), "0").unwrap();
            write(&setting("lo", "forwarding"), "1").unwrap();
            write(&setting(NEW, "forwarding"), "1").unwrap();
            let before = ForwardingBefore::read().unwrap();
            assert_eq!(before.forwarded, ["lo"]);
            switch_on().unwrap();
            assert!(is_on().unwrap());
            before.restore().unwrap();
            assert!(!is_on().unwrap());
            assert_eq!(ForwardingBefore::read().unwrap(), before);
            assert_eq!(read(&setting(ALL, "accept_redirects")).unwrap(), "0");
        });
    }
}
