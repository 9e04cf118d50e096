//! The users that the processes of a mesh run as.

#![expect(unsafe_code, reason = "prctl(PR_CAPBSET_DROP) has no safe wrapper")]

use std::ffi::{CString, OsStr};
use std::io;
use std::path::{Path, PathBuf};

use nix::sys::prctl;
use nix::unistd::{Gid, Group, Uid, User, getgrouplist, setgid, setgroups, setuid};

use crate::descriptors::Descriptors;
use crate::plan::RunAs;
use crate::root;

/// The kernel numbers capabilities from 0; this is above the highest there may be (a 64-bit set).
const CAPABILITIES: libc::c_ulong = 64;

/// The user that a process runs as, and what it may do.
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

impl Credentials {
    /// Those of the caller of `leno`: the user behind sudo, or the user of this process.
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

    /// The group id.
    #[must_use]
    pub fn gid(&self) -> u32 {
        self.gid.as_raw()
    }

    /// What the environment says about the user, where it differs from this process's.
    pub fn environment(&self) -> impl Iterator<Item = (&'static str, &OsStr)> {
        let home = self.home.as_deref().map(|home| ("HOME", home.as_os_str()));
        let name = self.name.as_deref().map(OsStr::new);
        let user = name.map(|name| ("USER", name));
        let logname = name.map(|name| ("LOGNAME", name));
        [home, user, logname].into_iter().flatten()
    }

    /// Those of a user and a group of this machine or of a root file system, and of the caller where they are
    /// not named.
    ///
    /// # Errors
    /// The field at fault, `user` or `group`, and why.
    pub fn of(account: &RunAs) -> Result<Self, (&'static str, String)> {
        if let Some(root) = &account.root {
            return Self::within(root, account);
        }
        let mut credentials = match &account.user {
            None => Self::invoking(),
            Some(wanted) => {
                let (uid, user) = find_user(wanted).map_err(|reason| ("user", reason))?;
                // A number that no user has comes with the group of the same number.
                let gid = user.map_or(Gid::from_raw(uid.as_raw()), |user| user.gid);
                Self::of_user(uid, gid)
            }
        };
        if let Some(wanted) = &account.group {
            credentials.gid = find_group(wanted).map_err(|reason| ("group", reason))?;
            if !credentials.groups.contains(&credentials.gid) {
                credentials.groups.push(credentials.gid);
            }
        }
        Ok(credentials)
    }

    /// Those of a root file system's own accounts.
    fn within(root: &Path, account: &RunAs) -> Result<Self, (&'static str, String)> {
        let missing = |what: &'static str, wanted: &str| {
            let root = root.display();
            (what, format!("{root} has no {what} {wanted:?}: write one that it has, or a number"))
        };
        let mut credentials = match &account.user {
            // Homes of this machine are not there.
            None => Self { home: Some("/".into()), ..Self::invoking() },
            Some(wanted) => match (root::user(root, wanted), wanted.parse()) {
                (Some(user), _) => {
                    let groups = root::groups(root, None, Some(&user.name));
                    Self {
                        uid: user.uid,
                        gid: user.gid,
                        groups: groups.into_iter().chain([user.gid]).collect(),
                        confined: false,
                        home: Some(user.home),
                        name: Some(user.name),
                    }
                }
                // A number that no user has comes with the group of the same number.
                (None, Ok(number)) => Self {
                    uid: Uid::from_raw(number),
                    gid: Gid::from_raw(number),
                    groups: vec![Gid::from_raw(number)],
                    confined: false,
                    home: Some("/".into()),
                    name: None,
                },
                (None, Err(_)) => return Err(missing("user", wanted)),
            },
        };
        if let Some(wanted) = &account.group {
            let number = wanted.parse().map(Gid::from_raw).ok();
            let named = || root::groups(root, Some(wanted), None).first().copied();
            let gid = number.or_else(named).ok_or_else(|| missing("group", wanted))?;
            credentials.gid = gid;
            if !credentials.groups.contains(&gid) {
                credentials.groups.push(gid);
            }
        }
        Ok(credentials)
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

/// A user by name or number. A number need not be a user's.
fn find_user(wanted: &str) -> Result<(Uid, Option<User>), String> {
    let failed = |errno| format!("the user {wanted:?} cannot be looked up: {errno}");
    if let Ok(number) = wanted.parse() {
        let uid = Uid::from_raw(number);
        return Ok((uid, User::from_uid(uid).map_err(failed)?));
    }
    let missing = || format!("this machine has no user {wanted:?}: make one, or write a number");
    let user = User::from_name(wanted).map_err(failed)?.ok_or_else(missing)?;
    Ok((user.uid, Some(user)))
}

/// A group by name or number.
fn find_group(wanted: &str) -> Result<Gid, String> {
    if let Ok(number) = wanted.parse() {
        return Ok(Gid::from_raw(number));
    }
    let group = Group::from_name(wanted)
        .map_err(|errno| format!("the group {wanted:?} cannot be looked up: {errno}"))?;
    let missing = || format!("this machine has no group {wanted:?}: make one, or write a number");
    Ok(group.ok_or_else(missing)?.gid)
}

fn drop_capabilities() {
    for capability in 0..CAPABILITIES {
        // SAFETY: PR_CAPBSET_DROP takes a number and touches no memory; a number that the kernel
        // does not know gives EINVAL, and one that may not be dropped is not held anyway.
        unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_are_found_by_name_and_by_number() {
        let account = |user: Option<&str>, group: Option<&str>| {
            let text = |text: Option<&str>| text.map(str::to_owned);
            Credentials::of(&RunAs { user: text(user), group: text(group), root: None })
        };
        assert_eq!(account(None, None), Ok(Credentials::invoking()));
        let root = account(Some("root"), None).unwrap();
        assert_eq!((root.uid(), root.gid.as_raw()), (0, 0));
        let unknown = account(Some("424242"), Some("0")).unwrap();
        assert_eq!((unknown.uid(), unknown.gid.as_raw()), (424_242, 0));
        assert_eq!(
            account(Some("no-such-user"), None),
            Err((
                "user",
                "this machine has no user \"no-such-user\": make one, or write a number".to_owned()
            ))
        );
        assert_eq!(account(None, Some("no-such-group")).unwrap_err().0, "group");
    }
}
