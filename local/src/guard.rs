//! Kills all processes of a mesh if its owner, `leno up`, is killed. The kernel kills only the owner's children,
//! not their descendants.
//!
//! ```text
//! leno up ──starts──► leno guard        holds the control group of the mesh open
//!    └── killed: the pipe ends ──► kills the processes left in the group, and ends
//! ```

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use crate::error::{Attempt, Error, Result};
use leno_supervise::{Backoff, Cgroup, after, describe};

/// The guard of a mesh. Dropping this makes the guard kill the mesh's remaining processes, and waits until it has.
#[derive(Debug)]
pub struct MeshGuard {
    group: Cgroup,
    process: RefCell<GuardProcess>,
}

/// The guard's process.
#[derive(Debug)]
struct GuardProcess {
    /// `None` between its end and its restart.
    child: Option<Child>,
    backoff: Backoff,
    /// The earliest time of the next restart.
    next: Instant,
}

impl MeshGuard {
    /// Starts a guard for the processes of a group.
    ///
    /// # Errors
    /// When the group is gone, or this program cannot be started again.
    pub fn start(group: &Cgroup) -> Result<Self> {
        let now = Instant::now();
        let child = Some(spawn(group)?);
        let process = GuardProcess { child, backoff: Backoff::eager(now), next: now };
        Ok(Self { group: group.clone(), process: RefCell::new(process) })
    }

    /// Restarts the process if it has ended, with a back-off. Returns a line to report; `None` while the process
    /// runs or the back-off lasts.
    pub fn revive(&self) -> Option<String> {
        let process = &mut *self.process.borrow_mut();
        let now = Instant::now();
        let mut report = None;
        if let Some(child) = &mut process.child {
            let how = match child.try_wait() {
                Ok(None) => return None,
                Ok(Some(status)) => describe(status),
                Err(error) => format!("is in an unknown state ({error})"),
            };
            process.child = None;
            let wait = process.backoff.ended(now);
            process.next = now + wait;
            report = Some(format!("the guard of the mesh {how}; restarting it {}", after(wait)));
        }
        if now >= process.next {
            process.backoff.started(now);
            match spawn(&self.group) {
                Ok(child) => process.child = Some(child),
                Err(error) => {
                    let wait = process.backoff.ended(now);
                    process.next = now + wait;
                    report = Some(format!("{}; retrying {}", error.chain(), after(wait)));
                }
            }
        }
        report
    }
}

fn spawn(group: &Cgroup) -> Result<Child> {
    // This path works even if the program's file was replaced in the meantime.
    let mut command = Command::new("/proc/self/exe");
    command.arg("guard").arg(group.path()).arg(group.id()?.to_string());
    command.env_clear().current_dir("/");
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().attempt(|| "cannot start the guard of the mesh".to_owned())
}

impl Drop for MeshGuard {
    fn drop(&mut self) {
        let Some(mut child) = self.process.get_mut().child.take() else { return };
        drop(child.stdin.take());
        // An error is ignored: closing standard input already makes the guard end, and the guard is only a safety
        // net.
        let _ = child.wait();
    }
}

/// Kills the processes of the control group at `path` once standard input ends. `number` is the group's ID, which
/// distinguishes it from the group of a later mesh of the same name.
///
/// # Errors
/// When there is no such group, or processes survive.
pub fn guard(path: &Path, number: u64) -> Result<()> {
    // In a session of its own, the guard does not receive signals that are sent to the terminal's or service's
    // processes.
    nix::unistd::setsid().attempt(|| "cannot leave the session of the terminal".to_owned())?;
    let what = || format!("cannot open {}", path.display());
    let group = File::open(path).attempt(what)?;
    if group.metadata().attempt(what)?.ino() != number {
        return Err(Error::Refused(format!(
            "{} is the control group of another mesh",
            path.display()
        )));
    }
    // Uses the open descriptor, because by then `path` may belong to a later mesh.
    let group = (PathBuf::from(format!("/proc/self/fd/{}", group.as_raw_fd())), group);
    let mut byte = [0];
    loop {
        match io::stdin().read(&mut byte) {
            Ok(0) => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error).attempt(|| "cannot read standard input".to_owned()),
            Ok(_) => {}
        }
    }
    Ok(Cgroup::at(group.0).kill()?)
}
