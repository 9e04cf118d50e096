//! Named network namespaces, like those of `ip netns`: bind mounts in `/run/netns`.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};

use crate::error::{Attempt, Error, Result};

/// The directory in which `ip netns` keeps the namespaces.
pub const DIRECTORY: &str = "/run/netns";

/// An open named network namespace. Dropping it closes the descriptor, but does not remove the namespace.
#[derive(Debug)]
pub struct Netns {
    name: String,
    file: File,
}

impl Netns {
    /// Creates a namespace with this name.
    ///
    /// # Errors
    /// When the name is in use or the process is not privileged.
    pub fn create(name: &str) -> Result<Self> {
        prepare_directory()?;
        let path = path(name);
        File::create_new(&path).attempt(|| format!("cannot create {}", path.display()))?;
        let target = path.clone();
        let made = on_own_thread(move || {
            unshare(CloneFlags::CLONE_NEWNET)?;
            let own = Path::new("/proc/thread-self/ns/net");
            mount(Some(own), &target, None::<&str>, MsFlags::MS_BIND, None::<&str>)
        });
        if let Err(errno) = made {
            // An error here is ignored; the caller gets the error of the failed creation.
            let _ = fs::remove_file(&path);
            return Err(Error::Os {
                what: format!("cannot create network namespace {name}"),
                source: errno.into(),
            });
        }
        Self::open(name)
    }

    /// Opens an existing namespace.
    ///
    /// # Errors
    /// When there is no namespace with this name.
    pub fn open(name: &str) -> Result<Self> {
        let file =
            File::open(path(name)).attempt(|| format!("cannot open network namespace {name}"))?;
        Ok(Self { name: name.to_owned(), file })
    }

    /// Its name in `/run/netns`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its mount point.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        path(&self.name)
    }

    /// Runs `work` inside the namespace, on a new thread, and waits for it. Sockets that are created there stay in the
    /// namespace even if they are used elsewhere.
    ///
    /// # Errors
    /// When the namespace cannot be entered; otherwise the error of `work`.
    pub fn within<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        on_own_thread(|| {
            setns(&self.file, CloneFlags::CLONE_NEWNET)
                .attempt(|| format!("cannot enter network namespace {}", self.name))?;
            work()
        })
    }
}

impl AsFd for Netns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Removes the name of a namespace; the kernel frees the namespace with its last process and socket. Succeeds if the
/// name does not exist.
///
/// # Errors
/// When the name cannot be unmounted or removed.
pub fn remove(name: &str) -> Result<()> {
    let path = path(name);
    match umount2(&path, MntFlags::MNT_DETACH) {
        Ok(()) | Err(Errno::EINVAL | Errno::ENOENT) => {}
        Err(errno) => {
            return Err(errno).attempt(|| format!("cannot unmount {}", path.display()));
        }
    }
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).attempt(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// Undoes the mount of `/run/netns` by [`Netns::create`], unless it still contains a namespace. A file system that
/// another program has mounted there stays. The directory below it may contain mounts of another mount namespace,
/// and removing it would remove these.
pub fn remove_directory() {
    let empty = fs::read_dir(DIRECTORY).is_ok_and(|mut entries| entries.next().is_none());
    if empty && !is_a_file_system_of_its_own() && umount2(DIRECTORY, MntFlags::empty()).is_ok() {
        // If another program has just put something there, the removal fails, and the directory stays.
        let _ = fs::remove_dir(DIRECTORY);
    }
}

/// Whether `/run/netns` is on another file system than `/run`. The mount of [`prepare_directory`] is on the same
/// one, because it binds the directory onto itself.
fn is_a_file_system_of_its_own() -> bool {
    let device = |path: &Path| fs::metadata(path).map(|found| found.dev()).ok();
    let directory = Path::new(DIRECTORY);
    device(directory) != directory.parent().and_then(device)
}

fn path(name: &str) -> PathBuf {
    Path::new(DIRECTORY).join(name)
}

/// Makes `/run/netns` a shared mount, so that unmounting a namespace removes its references in all mount namespaces.
fn prepare_directory() -> Result<()> {
    fs::create_dir_all(DIRECTORY).attempt(|| format!("cannot create {DIRECTORY}"))?;
    let share = || {
        let flags = MsFlags::MS_SHARED | MsFlags::MS_REC;
        mount(None::<&str>, DIRECTORY, None::<&str>, flags, None::<&str>)
    };
    match share() {
        Err(Errno::EINVAL) => {
            let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
            mount(Some(DIRECTORY), DIRECTORY, None::<&str>, flags, None::<&str>)
                .and_then(|()| share())
        }
        other => other,
    }
    .attempt(|| format!("cannot make {DIRECTORY} a shared mount: run leno as root"))
}

/// Runs `work` on a new thread. A thread that enters a namespace stays in it, so that is only safe on a thread
/// that ends afterwards.
pub(crate) fn on_own_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| match scope.spawn(work).join() {
        Ok(value) => value,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}
