//! Determines what the processes of a workload are permitted to do, from /proc (proc_pid_status(5),
//! capabilities(7)).

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::libc;

use crate::error::Error;

/// The name of the proxy's program.
const PROXY: &str = "leno-proxy";

/// The ioctl that returns the user namespace that owns a namespace (linux/nsfs.h).
const NS_GET_USERNS: libc::Ioctl = 0xb701;

/// The number of a capability's bit.
#[derive(Clone, Copy, Debug)]
pub(super) enum Capability {
    DacOverride = 1,
    SetUid = 7,
    NetAdmin = 12,
    NetRaw = 13,
    SysAdmin = 21,
}

/// A process in the workload's network namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: u32,
    program: String,
    /// Its effective user.
    pub(super) user: u32,
    /// The capabilities that it may use in the network namespace.
    capabilities: u64,
    /// Whether a writable hierarchy of control groups is mounted for it. Its user must in addition be permitted to
    /// write there.
    pub(super) writes_cgroups: bool,
}

impl Process {
    pub(super) fn has(&self, capability: Capability) -> bool {
        self.capabilities & (1 << capability as u32) != 0
    }

    /// Whether it is the proxy: it has the proxy's program name and user, and no capability.
    pub(super) fn is_proxy(&self, users: &[u32]) -> bool {
        self.program == PROXY && users.contains(&self.user) && self.capabilities == 0
    }

    pub(super) fn named(&self) -> String {
        format!("{} {}", self.pid, self.program.escape_default())
    }
}

/// A namespace, identified by the device and the inode of its file.
type NamespaceId = (u64, u64);

/// Reads those of the processes `pids` that still run and are in this network namespace.
pub(super) fn read(netns: &Path, pids: &[u32]) -> Result<Vec<Process>, Error> {
    let failed = |action: &str| Error::io(format!("{action} {}", netns.display()));
    let namespace = File::open(netns).map_err(failed("open"))?;
    let network = namespace.metadata().map(|one| id(&one)).map_err(failed("read"))?;
    let owner = owner(&namespace).map_err(failed("find the user namespace of"))?;
    let own = fs::metadata("/proc/self/ns/user").map(|one| id(&one)).map_err(failed("compare"))?;
    let mut found = Vec::new();
    for pid in pids {
        match read_one(*pid, network, [owner, own]) {
            Ok(process) => found.extend(process),
            // The process has ended.
            Err(error) if is_gone(&error) => {}
            Err(error) => return Err(Error::io(format!("read process {pid}"))(error)),
        }
    }
    Ok(found)
}

fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
}

/// Reads a process; `None` if it is in another network namespace. `rulers` are the user namespaces whose
/// capabilities apply to this network namespace.
fn read_one(
    pid: u32,
    network: NamespaceId,
    rulers: [NamespaceId; 2],
) -> io::Result<Option<Process>> {
    let folder = PathBuf::from(format!("/proc/{pid}"));
    if id(&fs::metadata(folder.join("ns/net"))?) != network {
        return Ok(None);
    }
    let user_namespace = id(&fs::metadata(folder.join("ns/user"))?);
    let mut process = parse_status(&fs::read_to_string(folder.join("status"))?);
    process.pid = pid;
    if !rulers.contains(&user_namespace) {
        process.capabilities = 0;
    }
    process.writes_cgroups = has_writable_cgroups(&fs::read_to_string(folder.join("mountinfo"))?);
    Ok(Some(process))
}

fn id(metadata: &fs::Metadata) -> NamespaceId {
    (metadata.dev(), metadata.ino())
}

/// The user namespace that owns a namespace.
#[expect(unsafe_code, reason = "an ioctl that no library has")]
fn owner(namespace: &File) -> io::Result<NamespaceId> {
    // SAFETY: this request takes no argument, and returns a descriptor or -1.
    let found = unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_USERNS) };
    if found < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just created this descriptor, and nothing else owns it.
    let found = File::from(unsafe { OwnedFd::from_raw_fd(found) });
    found.metadata().map(|one| id(&one))
}

/// Parses `/proc/<pid>/status`.
fn parse_status(text: &str) -> Process {
    let mut process = Process::default();
    for line in text.lines() {
        let Some((name, value)) = line.split_once(':') else { continue };
        let value = value.trim();
        match name {
            "Name" => value.clone_into(&mut process.program),
            // The fields are the real, effective, saved, and file system user.
            "Uid" => {
                let effective = value.split_whitespace().nth(1);
                process.user = effective.and_then(|user| user.parse().ok()).unwrap_or_default();
            }
            // The permitted capabilities, which a process may add to its effective set at any time.
            "CapPrm" => process.capabilities = u64::from_str_radix(value, 16).unwrap_or_default(),
            _ => {}
        }
    }
    process
}

/// Whether `/proc/<pid>/mountinfo` has a writable mount of a version 2 hierarchy.
fn has_writable_cgroups(text: &str) -> bool {
    text.lines().any(|line| {
        let Some((mount, file_system)) = line.split_once(" - ") else { return false };
        let options = mount.split(' ').nth(5).unwrap_or_default();
        file_system.starts_with("cgroup2 ") && options.split(',').any(|option| option == "rw")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_read_from_its_status() {
        let status = "Name:\tnginx\nUmask:\t0022\nUid:\t1000\t1001\t0\t0\nCapInh:\t0000000000000000\n\
                      CapPrm:\t0000000000002080\nCapEff:\t0000000000000000\n";
        let process = parse_status(status);
        assert_eq!((&*process.program, process.user), ("nginx", 1001));
        let has = [Capability::NetRaw, Capability::SetUid].map(|one| process.has(one));
        let lacks = [Capability::NetAdmin, Capability::SysAdmin, Capability::DacOverride];
        assert_eq!((has, lacks.map(|one| process.has(one))), ([true; 2], [false; 3]));
    }

    #[test]
    fn the_proxy_is_its_program_under_its_user_without_a_capability() {
        let proxy = Process { program: PROXY.to_owned(), user: 2102, ..Process::default() };
        assert!(proxy.is_proxy(&[2102]));
        assert!(!proxy.is_proxy(&[102_102]));
        assert!(!Process { program: "sh".to_owned(), ..proxy.clone() }.is_proxy(&[2102]));
        assert!(!Process { capabilities: 1 << 13, ..proxy }.is_proxy(&[2102]));
    }

    #[test]
    fn control_groups_are_written_where_they_are_mounted_for_it() {
        let line = |options: &str, kind: &str| {
            format!(
                "29 23 0:26 / /sys/fs/cgroup {options} shared:9 - {kind} cgroup rw,nsdelegate\n"
            )
        };
        assert!(has_writable_cgroups(&line("rw,nosuid", "cgroup2")));
        assert!(!has_writable_cgroups(&line("ro,nosuid", "cgroup2")));
        assert!(!has_writable_cgroups(&line("rw,nosuid", "tmpfs")));
    }
}
