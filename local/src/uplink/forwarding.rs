//! IPv4 forwarding in the namespace of the calling thread, and the settings that the kernel changes with it.
//!
//! When `ip_forward` changes, the kernel sets `conf/all/accept_redirects` to the opposite, and the forwarding of
//! all present and future interfaces to the same value. So disabling `ip_forward` again does not restore the
//! settings: a machine that had ignored redirects would accept them, and an interface that had forwarded by its
//! own setting would no longer forward.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::{Attempt, Result};

/// The file that enables forwarding.
const SWITCH: &str = "/proc/sys/net/ipv4/ip_forward";
/// The folder with the settings of each interface.
const INTERFACES: &str = "/proc/sys/net/ipv4/conf";
/// Folders in [`INTERFACES`] that do not belong to an interface.
const ALL: &str = "all";
const NEW: &str = "default";

/// The settings before forwarding was enabled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ForwardingBefore {
    /// The setting for all interfaces.
    accept_redirects: String,
    /// The setting for new interfaces.
    forwarding: String,
    /// Interfaces that forwarded by their own setting.
    forwarded: Vec<String>,
}

impl ForwardingBefore {
    /// Reads the present settings.
    pub(super) fn read() -> Result<Self> {
        let entries = fs::read_dir(INTERFACES).attempt(|| format!("cannot list {INTERFACES}"))?;
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let mut forwarded: Vec<String> = names
            .filter(|name| name != ALL && name != NEW)
            // An interface that has just been removed does not forward.
            .filter(|name| read(&setting(name, "forwarding")).is_ok_and(|value| value != "0"))
            .collect();
        forwarded.sort_unstable();
        Ok(Self {
            accept_redirects: read(&setting(ALL, "accept_redirects"))?,
            forwarding: read(&setting(NEW, "forwarding"))?,
            forwarded,
        })
    }

    /// Disables forwarding, and restores the other settings that the kernel changes with it.
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

/// Enables IPv4 forwarding, if it is disabled.
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
        // The interface was removed in the meantime.
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
            // The settings of a machine that ignores redirects, and forwards for one interface.
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
