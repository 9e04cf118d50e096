//! Finds a mounted pseudo file system, or mounts one in Leno's own directory.

use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use nix::mount::{MsFlags, mount, umount};

use crate::Error;

/// The directory in which Leno mounts file systems that the machine has not mounted.
pub const PRIVATE: &str = "/run/leno";

/// The mode of the lock's file. A process that can open it can hold the lock, so only this user may.
const LOCK_MODE: u32 = 0o600;

/// The file in [`PRIVATE`] that [`turn`] locks.
const LOCK: &str = "mount.lock";

/// One line of mountinfo, with only the fields that are used here (proc(5)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// The device number of the file system: major, minor.
    pub device: (u32, u32),
    /// The directory of the file system that is mounted; `/` if all of it is.
    pub root: PathBuf,
    /// The mount point.
    pub at: PathBuf,
    /// The type, for example `cgroup2`.
    pub kind: String,
    /// Whether this mount allows writing.
    pub writable: bool,
}

/// The mounts that this process sees.
///
/// # Errors
/// When `/proc/self/mountinfo` cannot be read.
pub fn mounts() -> io::Result<Vec<MountEntry>> {
    Ok(fs::read("/proc/self/mountinfo")?.split(|b| *b == b'\n').filter_map(parse).collect())
}

/// Finds a writable mount of a whole file system of this type that no other mount hides: the first of `preferred` for
/// which that is true, otherwise any.
///
/// # Errors
/// When `/proc/self/mountinfo` cannot be read.
pub fn find(kind: &str, preferred: &[&str]) -> io::Result<Option<PathBuf>> {
    let whole =
        |m: &MountEntry| m.kind == kind && m.writable && m.root == Path::new("/") && m.is_visible();
    let found: Vec<PathBuf> = mounts()?.into_iter().filter(whole).map(|m| m.at).collect();
    let best = preferred.iter().map(Path::new).find(|path| found.iter().any(|at| at == path));
    Ok(best.map(Path::to_path_buf).or_else(|| found.into_iter().next()))
}

/// Takes the lock for mounting and unmounting in [`PRIVATE`], until the result is dropped. Unmounting removes the
/// lock's file as well, so if the locked file was removed, the lock is taken again on the new one.
fn turn() -> io::Result<Flock<File>> {
    let path = Path::new(PRIVATE).join(LOCK);
    loop {
        fs::create_dir_all(PRIVATE)?;
        let mut options = File::options();
        let file = match options.write(true).create(true).mode(LOCK_MODE).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            other => other?,
        };
        let lock = Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, errno)| errno)?;
        let there = fs::metadata(&path).map(|found| found.ino());
        if there.is_ok_and(|ino| lock.metadata().is_ok_and(|own| own.ino() == ino)) {
            return Ok(lock);
        }
    }
}

/// Mounts `kind` at `PRIVATE/<name>` unless it is mounted there. Only one process does this at a time, because a second
/// mount would hide the first.
///
/// # Errors
/// When the directory cannot be made or the kernel refuses the mount (no such file system, no
/// privilege).
pub fn mount_privately(kind: &str, name: &str) -> Result<PathBuf, Error> {
    let at = Path::new(PRIVATE).join(name);
    let action = || format!("mount {kind} at {}", at.display());
    let _turn = turn().map_err(Error::io(action()))?;
    fs::create_dir_all(&at).map_err(Error::io(action()))?;
    let mounted = mounts().map_err(Error::io("read /proc/self/mountinfo"))?;
    if mounted.iter().any(|m| m.at == at && m.kind == kind && m.is_visible()) {
        return Ok(at);
    }
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    // By default any user may create entries in a bpffs.
    let options = (kind == "bpf").then_some("mode=0700");
    mount(Some(kind), &at, Some(kind), flags, options)
        .map_err(|errno| Error::io(action())(errno.into()))?;
    Ok(at)
}

/// Undoes [`mount_privately`], unless `needed` returns true, and removes [`PRIVATE`] if it is empty then.
pub fn unmount_private(needed: impl FnOnce() -> bool) {
    let root = Path::new(PRIVATE);
    if root.join(LOCK).exists() {
        let Ok(_turn) = turn() else { return };
        if needed() {
            return;
        }
        for mounted in ["bpf", "cgroup2"].map(|name| root.join(name)) {
            // Fails if it is in use or was never mounted; it then stays.
            let _ = fs::remove_dir(mounted.join("leno"));
            let _ = umount(&mounted);
            let _ = fs::remove_dir(&mounted);
        }
        let _ = fs::remove_file(root.join(LOCK));
    }
    // Fails if there are files of other programs.
    let _ = fs::remove_dir(root);
}

impl MountEntry {
    /// Whether the path of the mount point leads to this mount: another mount at the same path, or at a parent
    /// directory, may hide it.
    #[must_use]
    pub fn is_visible(&self) -> bool {
        let seen = fs::metadata(&self.at).map(|found| found.dev());
        seen.is_ok_and(|dev| (libc::major(dev), libc::minor(dev)) == self.device)
    }
}

/// Parses `36 35 98:0 /root /at rw,noatime shared:1 - kind source rw`.
fn parse(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|b| *b == b' ').skip(2);
    let (major, minor) = std::str::from_utf8(fields.next()?).ok()?.split_once(':')?;
    let device = (major.parse().ok()?, minor.parse().ok()?);
    let root = unescape(fields.next()?);
    let at = unescape(fields.next()?);
    let writable = fields.next()?.split(|b| *b == b',').any(|option| option == b"rw");
    let kind = fields.skip_while(|field| *field != b"-").nth(1)?;
    Some(MountEntry {
        device,
        root,
        at,
        kind: String::from_utf8_lossy(kind).into_owned(),
        writable,
    })
}

/// Decodes mountinfo's escapes: space, tab, newline and backslash are written as `\` and three
/// octal digits.
fn unescape(field: &[u8]) -> PathBuf {
    let mut path = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        let octal = tail.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) if first == b'\\' => {
                path.push(byte);
                rest = &tail[3..];
            }
            _ => {
                path.push(first);
                rest = tail;
            }
        }
    }
    std::ffi::OsString::from_vec(path).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_mountinfo() {
        let line =
            b"41 31 0:38 / /a\\040b rw,relatime shared:7 master:1 - cgroup2 none rw,nsdelegate";
        let expected = MountEntry {
            device: (0, 38),
            root: "/".into(),
            at: "/a b".into(),
            kind: "cgroup2".into(),
            writable: true,
        };
        assert_eq!(parse(line), Some(expected));
        let bare = b"41 31 0:38 /sub /x ro - bpf bpf rw";
        let mount = parse(bare).unwrap();
        assert_eq!((mount.kind.as_str(), mount.writable), ("bpf", false));
        assert_eq!(parse(b""), None);
    }

    #[test]
    fn mounting_and_unmounting_at_once_never_fails() {
        if !crate::tests::has_root() {
            return;
        }
        std::thread::scope(|scope| {
            // In a mount namespace of these threads' own, with an empty `/run`.
            let unmounted = scope.spawn(|| {
                nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
                let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
                mount(None::<&str>, "/", None::<&str>, private, None::<&str>).unwrap();
                let empty = Some("tmpfs");
                mount(empty, "/run", empty, MsFlags::empty(), None::<&str>).unwrap();
                std::thread::scope(|scope| {
                    let mounting = scope.spawn(|| {
                        (0..500).try_for_each(|_| mount_privately("bpf", "bpf").map(drop))
                    });
                    let mut times = 0;
                    while !mounting.is_finished() {
                        unmount_private(|| false);
                        times += 1;
                    }
                    mounting.join().unwrap().unwrap();
                    times
                })
            });
            assert!(unmounted.join().unwrap() > 1);
        });
    }
}
