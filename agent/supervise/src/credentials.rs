//! The users that the processes of a mesh run as.

#![expect(unsafe_code, reason = "prctl(PR_CAPBSET_DROP) has no safe wrapper")]

use std::ffi::{CString, OsStr};
use std::io;
use std::path::PathBuf;

use nix::sys::prctl;
use nix::unistd::{Gid, Uid, User, getgrouplist, setgid, setgroups, setuid};

use crate::descriptors::DescriptorLimit;

/// An upper bound of the kernel's capability numbers, which start at 0 and fit into a set of 64 bits.
const CAPABILITIES: libc::c_ulong = 64;

/// The user that a process runs as, and its privileges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessCredentials {
    /// The user.
    pub uid: Uid,
    /// Its group.
    pub gid: Gid,
    /// All of its groups.
    pub groups: Vec<Gid>,
    /// Whether it is a process of the mesh. Such a process can never gain a capability, not even through a
    /// set-user-ID program, and may open as many descriptors as the system permits.
    pub confined: bool,
    /// Home directory, for the environment.
    pub home: Option<PathBuf>,
    /// The user's name, for the environment.
    pub name: Option<String>,
}

impl ProcessCredentials {
    /// The user who has called `leno`: the user behind sudo, or else the user of this process.
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

    /// A user for processes of the mesh. It is only in its own group, and cannot gain any privilege.
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

    /// Root without capabilities. It owns the mesh's files.
    #[must_use]
    pub fn powerless_root() -> Self {
        Self::confined(0)
    }

    /// The user id.
    #[must_use]
    pub fn uid(&self) -> u32 {
        self.uid.as_raw()
    }

    /// The group id.
    #[must_use]
    pub fn gid(&self) -> u32 {
        self.gid.as_raw()
    }

    /// The environment variables that describe the user, if it is another user than that of this process.
    pub fn environment(&self) -> impl Iterator<Item = (&'static str, &OsStr)> {
        let home = self.home.as_deref().map(|home| ("HOME", home.as_os_str()));
        let name = self.name.as_deref().map(OsStr::new);
        let user = name.map(|name| ("USER", name));
        let logname = name.map(|name| ("LOGNAME", name));
        [home, user, logname].into_iter().flatten()
    }

    /// The credentials of a user of this machine. The user need not be in the machine's database.
    #[must_use]
    pub fn of_user(uid: Uid, gid: Gid) -> Self {
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
            DescriptorLimit::raise()?;
            drop_capabilities();
        }
        // A process that is not root keeps its credentials. `leno up` refuses to run as such a user before it
        // reaches this point.
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

fn drop_capabilities() {
    for capability in 0..CAPABILITIES {
        // SAFETY: PR_CAPBSET_DROP takes a number and does not access memory. A number that the kernel does not
        // have gives EINVAL. A capability that the process may not drop is one that it does not have.
        unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) };
    }
}
