//! What surrounds a process of an instance: control group, network, names of files and host, user.

#![expect(unsafe_code, reason = "prctl(PR_CAPBSET_DROP) has no safe wrapper")]

use std::ffi::{CString, OsStr};
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::{
    Gid, Pid, Uid, User, getgrouplist, getppid, setgid, setgroups, sethostname, setuid,
};

use crate::cgroup::Cgroup;
use crate::descriptors::Descriptors;
use crate::error::{Attempt, Error, Result};
use crate::netns::Netns;
use crate::record;

/// The kernel numbers capabilities from 0; this is above the highest there may be (a 64-bit set).
const CAPABILITIES: libc::c_ulong = 64;

/// What a process enters between fork and exec. Everything is prepared beforehand, so that
/// [`Enclosure::enter`] makes system calls and nothing else: no allocation, no lock.
#[derive(Debug)]
pub struct Enclosure {
    cgroup: File,
    netns: File,
    files: Vec<(CString, CString)>,
    hostname: CString,
}

/// Whom a process runs as, and what it may.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    uid: Uid,
    gid: Gid,
    groups: Vec<Gid>,
    /// A process of the mesh's own: no capability can ever be gained, not by a set-user-ID program
    /// either, and as many descriptors as the system permits.
    confined: bool,
    /// Home directory, for the environment.
    home: Option<PathBuf>,
    name: Option<String>,
}

/// How a process ends with its parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tether(Pid);

impl Enclosure {
    /// Prepares to enter `cgroup` and `netns`; `files` are laid over the system's own: from, onto.
    ///
    /// # Errors
    /// When the group or the namespace is gone.
    pub fn new(
        cgroup: &Cgroup,
        netns: &Netns,
        files: &[(PathBuf, PathBuf)],
        hostname: &str,
    ) -> Result<Self> {
        let text = |bytes: &[u8]| {
            CString::new(bytes).map_err(|_| Error::Refused("a path holds a NUL byte".into()))
        };
        let pair = |(from, onto): &(PathBuf, PathBuf)| {
            Ok((text(from.as_os_str().as_bytes())?, text(onto.as_os_str().as_bytes())?))
        };
        let path = netns.path();
        Ok(Self {
            cgroup: cgroup.entry()?,
            netns: File::open(&path).attempt(|| format!("cannot open {}", path.display()))?,
            files: files.iter().map(pair).collect::<Result<_>>()?,
            hostname: text(hostname.as_bytes())?,
        })
    }

    /// Moves the calling process in. Safe between fork and exec.
    ///
    /// # Errors
    /// The system's reason.
    pub fn enter(&self) -> io::Result<()> {
        (&self.cgroup).write_all(b"0")?;
        setns(&self.netns, CloneFlags::CLONE_NEWNET)?;
        unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWUTS)?;
        // Unmounts of the host arrive here, mounts made here stay here.
        let slave = MsFlags::MS_SLAVE | MsFlags::MS_REC;
        mount(None::<&str>, "/", None::<&str>, slave, None::<&str>)?;
        for (from, onto) in &self.files {
            let bind = MsFlags::MS_BIND;
            mount(Some(from.as_c_str()), onto.as_c_str(), None::<&str>, bind, None::<&str>)?;
        }
        sethostname(OsStr::from_bytes(self.hostname.as_bytes()))?;
        Ok(())
    }
}

impl Credentials {
    /// Those of whoever called `leno`: the user behind sudo, or the user of this process.
    #[must_use]
    pub fn invoking() -> Self {
        let number = |name: &str| std::env::var(name).ok()?.parse().ok();
        match (number("SUDO_UID"), number("SUDO_GID")) {
            (Some(uid), Some(gid)) if uid != 0 && nix::unistd::geteuid().is_root() => {
                Self::of_user(Uid::from_raw(uid), Gid::from_raw(gid))
            }
            _ => Self {
                uid: nix::unistd::getuid(),
                gid: nix::unistd::getgid(),
                groups: nix::unistd::getgroups().unwrap_or_default(),
                confined: false,
                home: None,
                name: None,
            },
        }
    }

    /// A user of the mesh's own, with no group but its own and no way to any privilege.
    #[must_use]
    pub fn confined(id: u32) -> Self {
        Self {
            uid: Uid::from_raw(id),
            gid: Gid::from_raw(id),
            groups: Vec::new(),
            confined: true,
            home: None,
            name: None,
        }
    }

    /// Root, which owns the mesh's files, without any of root's capabilities.
    #[must_use]
    pub fn powerless_root() -> Self {
        Self::confined(0)
    }

    /// The user id.
    #[must_use]
    pub fn uid(&self) -> u32 {
        self.uid.as_raw()
    }

    /// What the environment says about the user, where it differs from this process's.
    pub fn environment(&self) -> impl Iterator<Item = (&'static str, &OsStr)> {
        let home = self.home.as_deref().map(|home| ("HOME", home.as_os_str()));
        let name = self.name.as_deref().map(OsStr::new);
        let user = name.map(|name| ("USER", name));
        let logname = name.map(|name| ("LOGNAME", name));
        [home, user, logname].into_iter().flatten()
    }

    fn of_user(uid: Uid, gid: Gid) -> Self {
        let user = User::from_uid(uid).ok().flatten();
        let groups = user.as_ref().and_then(|user| {
            let name = CString::new(user.name.as_bytes()).ok()?;
            getgrouplist(&name, gid).ok()
        });
        Self {
            uid,
            gid,
            groups: groups.unwrap_or_else(|| vec![gid]),
            confined: false,
            home: user.as_ref().map(|user| user.dir.clone()),
            name: user.map(|user| user.name),
        }
    }

    /// Makes the calling process run as this user. Safe between fork and exec.
    ///
    /// # Errors
    /// The system's reason.
    pub fn assume(&self) -> io::Result<()> {
        if self.confined {
            Descriptors::raise()?;
            drop_capabilities();
        }
        // A process that is not root keeps what it has; leno up refuses that case before.
        if nix::unistd::geteuid().is_root() {
            setgroups(&self.groups)?;
            setgid(self.gid)?;
            setuid(self.uid)?;
        }
        if self.confined {
            prctl::set_no_new_privs()?;
        }
        Ok(())
    }
}

impl Tether {
    /// To the calling process; take it before the fork.
    #[must_use]
    pub fn to_this_process() -> Self {
        Self(nix::unistd::getpid())
    }

    /// Has the kernel kill the calling process when the parent *thread* ends, so children must be
    /// started by a thread that lives as long as the mesh. Safe between fork and exec; a change of
    /// user undoes it, so it comes last.
    ///
    /// # Errors
    /// When the parent has ended already.
    pub fn tie(self) -> io::Result<()> {
        prctl::set_pdeathsig(Signal::SIGKILL)?;
        if getppid() == self.0 { Ok(()) } else { Err(io::ErrorKind::BrokenPipe.into()) }
    }
}

fn drop_capabilities() {
    for capability in 0..CAPABILITIES {
        // SAFETY: PR_CAPBSET_DROP takes a number and touches no memory; a number that the kernel
        // does not know gives EINVAL, and one that may not be dropped is not held anyway.
        unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) };
    }
}

/// Writes the files that an instance sees in place of the system's, and says where they go.
///
/// # Errors
/// When one cannot be written, or the machine has no `/etc/resolv.conf` to lay one over.
pub fn write_files(directory: &Path, names: &Names<'_>) -> Result<Vec<(PathBuf, PathBuf)>> {
    for part in [directory.parent(), Some(directory)].into_iter().flatten() {
        // Nobody but root looks inside: what an instance may see is laid where it can.
        record::make_directory(part, 0o700)?;
    }
    let resolver = fs::canonicalize("/etc/resolv.conf").attempt(|| {
        "cannot find the file behind /etc/resolv.conf: create an empty one".to_owned()
    })?;
    let mut files = vec![("resolv.conf", resolver, names.resolver())];
    if let Ok(hosts) = fs::canonicalize("/etc/hosts") {
        files.push(("hosts", hosts, names.hosts()));
    }
    if let Ok(switch) = fs::canonicalize("/etc/nsswitch.conf")
        && let Ok(text) = fs::read_to_string(&switch)
    {
        files.push(("nsswitch.conf", switch, plain_lookup(&text)));
    }
    let mut pairs = Vec::new();
    for (name, onto, text) in files {
        let from = directory.join(name);
        record::write_atomically(&from, text.as_bytes(), 0o644)?;
        pairs.push((from, onto));
    }
    Ok(pairs)
}

/// What an instance knows by name without asking DNS, and whom it asks.
#[derive(Clone, Copy, Debug)]
pub struct Names<'a> {
    /// The instance's name, its host name.
    pub instance: &'a str,
    /// Its full names.
    pub full: &'a [String],
    /// Its namespace, searched first.
    pub namespace: &'a str,
    /// Its own addresses.
    pub addresses: crate::addresses::Addresses,
    /// The DNS server.
    pub server: std::net::IpAddr,
}

impl Names<'_> {
    fn resolver(&self) -> String {
        let Self { namespace, server, .. } = self;
        let domain = crate::dns::DOMAIN;
        format!(
            "nameserver {server}\nsearch {namespace}.svc.{domain} svc.{domain} {domain}\n\
             options ndots:5\n"
        )
    }

    fn hosts(&self) -> String {
        let mut text = "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n".to_owned();
        for address in self.addresses.iter() {
            let full = self.full.join(" ");
            text += format!("{address} {full} {}", self.instance).trim_end();
            text.push('\n');
        }
        text
    }
}

/// Has host names looked up in files and by DNS only: other sources (systemd-resolved, mDNS) run
/// outside of the instance's namespace and know nothing of the mesh.
fn plain_lookup(switch: &str) -> String {
    let plain = |line: &str| match line.trim_start().starts_with("hosts:") {
        true => "hosts: files dns\n".to_owned(),
        false => format!("{line}\n"),
    };
    switch.lines().map(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addresses::Subnet;

    #[test]
    fn lookups_stay_inside_the_mesh() {
        let text = "passwd: files systemd\nhosts: files resolve [!UNAVAIL=return] dns\n";
        assert_eq!(plain_lookup(text), "passwd: files systemd\nhosts: files dns\n");
    }

    #[test]
    fn an_instance_knows_itself_and_whom_to_ask() {
        let names = Names {
            instance: "web-0",
            full: &["web-0.web.shop.svc.cluster.local".into()],
            namespace: "shop",
            addresses: Subnet::workloads(true).addresses(2),
            server: Subnet::workloads(true).gateway().v4.into(),
        };
        assert_eq!(
            names.resolver(),
            "nameserver 10.89.0.1\n\
             search shop.svc.cluster.local svc.cluster.local cluster.local\noptions ndots:5\n"
        );
        let hosts = names.hosts();
        assert!(hosts.contains("10.89.0.2 web-0.web.shop.svc.cluster.local web-0\n"), "{hosts}");
        assert!(hosts.contains("fd89::2 web-0.web.shop.svc.cluster.local web-0\n"), "{hosts}");
        assert!(hosts.contains("127.0.0.1 localhost\n"), "{hosts}");
    }
}
