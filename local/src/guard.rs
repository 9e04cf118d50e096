//! Ends all processes of a mesh when its owner is killed: the kernel ends the owner's children by itself,
//! but not what those have started.
//!
//! ```text
//! leno up ──starts──► leno guard        holds the control group of the mesh open
//!    └── killed: the pipe ends ──► kills what is left in the group, and ends
//! ```

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::cgroup::Cgroup;
use crate::error::{Attempt, Error, Result};

/// The guard of a mesh. Dropping it has it end what is left, and waits for that.
#[derive(Debug)]
pub struct Guard(Child);

impl Guard {
    /// Starts one for the processes of a group.
    ///
    /// # Errors
    /// When the group is gone, or this program cannot be started again.
    pub fn start(group: &Cgroup) -> Result<Self> {
        // Also where the file of this program was replaced meanwhile.
        let mut command = Command::new("/proc/self/exe");
        command.arg("guard").arg(group.path()).arg(group.id()?.to_string());
        command.env_clear().current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().map(Self).attempt(|| "cannot start the guard of the mesh".to_owned())
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        // It ends by itself, and was no more than a help.
        let _ = self.0.wait();
    }
}

/// Kills the processes of the group at `path` once standard input ends. `number` is the group's own: a
/// later mesh of the same name has another group.
///
/// # Errors
/// When there is no such group, or processes survive.
pub fn guard(path: &Path, number: u64) -> Result<()> {
    // A signal for the terminal's or the service's processes is not for this one.
    nix::unistd::setsid().attempt(|| "cannot leave the session of the terminal".to_owned())?;
    let what = || format!("cannot open {}", path.display());
    let group = File::open(path).attempt(what)?;
    if group.metadata().attempt(what)?.ino() != number {
        return Err(Error::Refused(format!("{} is the group of another mesh", path.display())));
    }
    // By way of the descriptor: the path may be another mesh's by then.
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
    Cgroup::at(group.0).kill()
}
