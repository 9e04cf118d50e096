//! The root file system of an instance: a directory of this machine that its processes see as `/`, for example the
//! output of `docker export`.
//!
//! Nothing is copied: files that a process writes stay in the directory. `/proc`, `/sys` and `/dev` are those of
//! this machine.

use std::ffi::CString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::unistd::{Gid, Uid, chdir, pivot_root};

use crate::error::{Attempt, Error, Result};
use crate::isolation::{ResolverNames, plain_lookup, text};
use crate::record;

/// This machine's directories that are mounted in the root file system, because programs need them.
const MOUNTED: [&str; 3] = ["proc", "sys", "dev"];
/// The default PATH in a root file system.
pub const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A root file system that a process can enter between fork and exec.
#[derive(Debug)]
pub struct Root {
    path: CString,
    /// Bind mounts of this machine's directories: source and mount point.
    mounts: Vec<(CString, CString)>,
}

/// A user in `/etc/passwd`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// The name.
    pub name: String,
    /// The user number.
    pub uid: Uid,
    /// The number of the user's group.
    pub gid: Gid,
    /// The home directory.
    pub home: PathBuf,
}

impl Root {
    /// Prepares to use the directory `path`.
    ///
    /// # Errors
    /// When it cannot be used as a root file system.
    pub fn new(path: &Path) -> Result<Self> {
        check(path).map_err(Error::Refused)?;
        let pair = |name: &&str| Ok((text(&Path::new("/").join(name))?, text(&path.join(name))?));
        Ok(Self { path: text(path)?, mounts: MOUNTED.iter().map(pair).collect::<Result<_>>()? })
    }

    /// Mounts the directory over itself, and this machine's directories inside it. Safe between fork and exec,
    /// like [`enter`](Self::enter).
    ///
    /// # Errors
    /// The system's reason.
    pub fn mount(&self) -> io::Result<()> {
        let own = (&self.path, &self.path);
        for (from, onto) in
            std::iter::once(own).chain(self.mounts.iter().map(|(from, onto)| (from, onto)))
        {
            let bind = MsFlags::MS_BIND | MsFlags::MS_REC;
            mount(Some(from.as_c_str()), onto.as_c_str(), None::<&str>, bind, None::<&str>)?;
        }
        Ok(())
    }

    /// Makes the directory the root of the calling process, and unmounts the old root (pivot_root(2),
    /// `pivot_root(".", ".")`).
    ///
    /// # Errors
    /// The system's reason.
    pub fn enter(&self) -> io::Result<()> {
        chdir(self.path.as_c_str())?;
        pivot_root(".", ".")?;
        umount2(".", MntFlags::MNT_DETACH)?;
        chdir("/")?;
        Ok(())
    }
}

/// Checks that a directory can be used as a root file system.
///
/// # Errors
/// What the directory lacks, and what to do.
pub fn check(root: &Path) -> std::result::Result<(), String> {
    let shown = root.display();
    if !root.is_dir() {
        return Err(format!(
            "{shown} is not a directory: unpack a root file system there, for example with docker export"
        ));
    }
    if root.join("oci-layout").exists() {
        return Err(format!("{shown} contains a packed image: unpack it, for example with umoci"));
    }
    let is_directory =
        |name: &&&str| fs::symlink_metadata(root.join(name)).is_ok_and(|it| it.is_dir());
    let missing: Vec<&str> =
        MOUNTED.iter().chain(&["etc"]).filter(|name| !is_directory(name)).copied().collect();
    if !missing.is_empty() {
        let names: Vec<String> =
            missing.iter().map(|name| root.join(name).display().to_string()).collect();
        return Err(format!(
            "{shown} is not a complete root file system: mkdir {}",
            names.join(" ")
        ));
    }
    for name in ["etc/resolv.conf", "etc/hosts"] {
        let file = root.join(name);
        if !fs::symlink_metadata(&file).is_ok_and(|it| it.is_file()) {
            let file = file.display();
            return Err(format!(
                "{file} is not a regular file, which the mesh needs to mount its own over it: rm \
                 -f {file}; touch {file}"
            ));
        }
    }
    Ok(())
}

/// Writes the files that an instance sees in its own root, and returns pairs of source and mount point.
///
/// # Errors
/// When a file cannot be written, or if the root file system has no file to mount it over.
pub fn write_files(
    directory: &Path,
    names: &ResolverNames<'_>,
    root: &Path,
) -> Result<Vec<(PathBuf, PathBuf)>> {
    check(root).map_err(Error::Refused)?;
    let etc = root.join("etc");
    let mut files = vec![("resolv.conf", names.resolver()), ("hosts", names.hosts())];
    let switch = etc.join("nsswitch.conf");
    if fs::symlink_metadata(&switch).is_ok_and(|it| it.is_file()) {
        let found = fs::read_to_string(&switch);
        let found = found.attempt(|| format!("cannot read {}", switch.display()))?;
        files.push(("nsswitch.conf", plain_lookup(&found)));
    }
    let mut pairs = Vec::new();
    for (name, text) in files {
        let from = directory.join(format!("root-{name}"));
        record::write_atomically(&from, text.as_bytes(), 0o644)?;
        pairs.push((from, etc.join(name)));
    }
    Ok(pairs)
}

/// The user with this name or number in the `/etc/passwd` of a root file system; `None` if there is none.
#[must_use]
pub fn user(root: &Path, wanted: &str) -> Option<User> {
    let text = fs::read_to_string(root.join("etc/passwd")).unwrap_or_default();
    // The fields in passwd(5): name, password, user, group, comment, home, shell.
    text.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let [name, _, uid, gid, _, home, ..] = fields[..] else { return None };
        (name == wanted || uid == wanted).then_some(())?;
        let (uid, gid) = (Uid::from_raw(uid.parse().ok()?), Gid::from_raw(gid.parse().ok()?));
        Some(User { name: name.to_owned(), uid, gid, home: PathBuf::from(home) })
    })
}

/// The groups in the `/etc/group` of a root file system that are named `wanted` or have the member `member`.
#[must_use]
pub fn groups(root: &Path, wanted: Option<&str>, member: Option<&str>) -> Vec<Gid> {
    let text = fs::read_to_string(root.join("etc/group")).unwrap_or_default();
    // The fields in group(5): name, password, group, members.
    let found = text.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let [name, _, gid, members, ..] = fields[..] else { return None };
        let is_member = member.is_some_and(|member| members.split(',').any(|one| one == member));
        (Some(name) == wanted || is_member).then_some(())?;
        Some(Gid::from_raw(gid.parse().ok()?))
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_directory_lacks_to_be_a_root_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("img");
        let shown = root.display().to_string();
        let refused = || check(&root).unwrap_err().replace(&shown, "img");
        assert_eq!(
            refused(),
            "img is not a directory: unpack a root file system there, for example with docker export"
        );
        fs::create_dir_all(root.join("etc")).unwrap();
        assert_eq!(
            refused(),
            "img is not a complete root file system: mkdir img/proc img/sys img/dev"
        );
        MOUNTED.iter().for_each(|name| fs::create_dir(root.join(name)).unwrap());
        // Such a symbolic link must not be followed, because it would lead to a file of this machine.
        std::os::unix::fs::symlink("/run/resolv.conf", root.join("etc/resolv.conf")).unwrap();
        assert_eq!(
            refused(),
            "img/etc/resolv.conf is not a regular file, which the mesh needs to mount its own over it: rm -f img/etc/resolv.conf; \
             touch img/etc/resolv.conf"
        );
        fs::remove_file(root.join("etc/resolv.conf")).unwrap();
        fs::write(root.join("etc/resolv.conf"), "").unwrap();
        fs::write(root.join("etc/hosts"), "").unwrap();
        assert_eq!(check(&root), Ok(()));
        fs::write(root.join("oci-layout"), "{}").unwrap();
        assert_eq!(refused(), "img contains a packed image: unpack it, for example with umoci");
    }

    #[test]
    fn accounts_are_those_of_the_root() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("etc")).unwrap();
        let write = |name: &str, text: &str| fs::write(root.path().join(name), text).unwrap();
        write("etc/passwd", "root:x:0:0:root:/root:/bin/sh\napp:x:70:71::/srv:/bin/sh\nbroken\n");
        write("etc/group", "root:x:0:\napp:x:71:\nlogs:x:72:app,other\n");
        let app = user(root.path(), "app").unwrap();
        assert_eq!((app.uid.as_raw(), app.gid.as_raw()), (70, 71));
        assert_eq!(
            (user(root.path(), "70"), app.home.as_path()),
            (Some(app.clone()), Path::new("/srv"))
        );
        assert_eq!(user(root.path(), "absent"), None);
        assert_eq!(groups(root.path(), None, Some("app")), [Gid::from_raw(72)]);
        assert_eq!(groups(root.path(), Some("logs"), None), [Gid::from_raw(72)]);
    }
}
