//! Starts and ends the processes of a mesh.

#![expect(unsafe_code, reason = "pre_exec runs between fork and exec")]

use std::collections::BTreeMap;
use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leno_supervise::{DescriptorLimit, ProcessCredentials, RunningProcess, Tether};
use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::{Pid, chdir};
use tokio::process::Command;

use crate::error::{Error, Result};
use crate::isolation::Isolation;
use crate::output::{self, LineOrigin, LineOutput};

/// How long to wait for the last lines of output of a command that has ended.
const LAST_LINES: Duration = Duration::from_millis(50);

/// An event in the life of a mesh's process.
pub type Event = leno_supervise::LifeEvent<Error>;

/// A command with its environment and isolation.
#[derive(Debug)]
pub struct ProcessCommand {
    /// Program and arguments; the program is looked up in the PATH of `environment`.
    pub command: Vec<OsString>,
    /// The complete environment. The process inherits no variable from this process.
    pub environment: BTreeMap<OsString, OsString>,
    /// Its working directory.
    pub directory: Option<PathBuf>,
    /// The isolation that the process enters before it executes the program.
    pub isolation: Isolation,
    /// The user and groups that it runs as.
    pub credentials: ProcessCredentials,
    /// How many descriptors the process may open; `None` for the limit of this process.
    pub descriptors: Option<DescriptorLimit>,
    /// Its standard input; `None` for an empty one.
    pub stdin: Option<OwnedFd>,
}

impl ProcessCommand {
    /// Starts the process. Must be called by a thread that lives as long as the mesh, because the kernel kills the
    /// process when that thread ends.
    ///
    /// # Errors
    /// When it cannot be started: the program is missing, or its isolation fails.
    pub fn start(self, output: &LineOutput, origin: &LineOrigin) -> Result<RunningProcess> {
        self.start_with(output, output, origin)
    }

    /// Starts the process with different outputs for standard output and standard error.
    ///
    /// # Errors
    /// The errors of [`start`](Self::start).
    pub fn start_with(
        self,
        stdout: &LineOutput,
        stderr: &LineOutput,
        origin: &LineOrigin,
    ) -> Result<RunningProcess> {
        let (to_stdout, to_stderr) = (stdout, stderr);
        let mut running = self.spawn()?;
        if let Some(stdout) = running.take_stdout() {
            let (output, origin) = (to_stdout.clone(), origin.clone());
            running.read_by(tokio::spawn(async move { output.copy(&origin, stdout).await }));
        }
        if let Some(stderr) = running.take_stderr() {
            let (output, origin) = (to_stderr.clone(), origin.clone());
            running.read_by(tokio::spawn(async move { output.copy(&origin, stderr).await }));
        }
        Ok(running)
    }

    /// Runs the process to its end without printing. Returns its exit status and the last line of its output.
    /// Dropping the future kills the process and its children, unless they have left its process group.
    ///
    /// # Errors
    /// The errors of [`start`](Self::start).
    pub async fn finish(self) -> Result<(ExitStatus, String)> {
        let mut running = self.spawn()?;
        let group = ProcessGroup(Pid::from_raw(running.pid()));
        let last = Arc::new(Mutex::new(String::new()));
        let (stdout, stderr) = (running.take_stdout(), running.take_stderr());
        running.read_by(tokio::spawn(output::last_line(stdout, last.clone())));
        running.read_by(tokio::spawn(output::last_line(stderr, last.clone())));
        let status = running.ended().await;
        // The process was reaped, so its number may now belong to another process group, which must not be killed.
        std::mem::forget(group);
        for reader in running.read_out(LAST_LINES).await {
            reader.abort();
        }
        let line = last.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Ok((status?, line))
    }

    fn spawn(self) -> Result<RunningProcess> {
        let program = self
            .command
            .first()
            .ok_or_else(|| Error::Refused("the command is empty".into()))?
            .clone();
        let mut command = Command::new(&program);
        command.args(&self.command[1..]);
        command.env_clear();
        command.envs(&self.environment);
        let directory = self.directory.clone().unwrap_or_else(|| PathBuf::from("/"));
        command
            .stdin(self.stdin.map_or_else(Stdio::null, Stdio::from))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let Self { isolation, credentials, descriptors, .. } = self;
        let outside = isolation.outside(&directory);
        let tether = Tether::to_this_process();
        let start = CString::new(directory.as_os_str().as_bytes())
            .map_err(|_| Error::Refused("a path holds a NUL byte".into()))?;
        let prepare = move || {
            leave_other_descriptors()?;
            isolation.enter()?;
            // Changes the directory last, because the directory may be in a volume.
            chdir(start.as_c_str())?;
            descriptors.map_or(Ok(()), DescriptorLimit::set)?;
            credentials.assume()?;
            tether.tie()
        };
        // SAFETY: between fork and exec, `prepare` only makes system calls, on descriptors and strings that were
        // created before. It neither allocates nor takes a lock.
        let running = unsafe { RunningProcess::spawn(command, prepare) };
        running.map_err(|reason| not_started(&program, &outside, reason))
    }
}

/// Makes the executed program inherit only its standard input and outputs. Descriptors that `leno up` opens are
/// not inherited anyway. But its caller may have passed on descriptors, for example of a file that only root can
/// read, which workloads and proxies must not get.
fn leave_other_descriptors() -> io::Result<()> {
    const FIRST: libc::c_uint = 3;
    // SAFETY: the call only sets a flag on descriptors. It closes none and does not access memory.
    let marked = unsafe {
        libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC)
    };
    match Errno::result(marked) {
        // Linux before 5.11 does not support the flag.
        Ok(_) | Err(Errno::ENOSYS | Errno::EINVAL) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The processes that a command has started; dropping this kills them.
struct ProcessGroup(Pid);

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        // Fails if the group has no processes any more.
        let _ = killpg(self.0, Signal::SIGKILL);
    }
}

/// Adds to the error of a program that could not be started what to do about it. The system reports the same error
/// for a missing directory as for a missing program, so this distinguishes them.
pub(crate) fn not_started(program: &OsStr, directory: &Path, reason: io::Error) -> Error {
    let (name, place) = (program.display(), directory.display());
    let searched = !program.as_bytes().contains(&b'/');
    let what = match reason.kind() {
        io::ErrorKind::NotFound if !directory.is_dir() => {
            format!("cannot start {name}: its workingDir {place} does not exist")
        }
        io::ErrorKind::NotFound if searched => format!(
            "cannot start {name}: no directory of PATH has this program: write its full path, or \
             start leno with `sudo env PATH=$PATH`, which keeps your PATH"
        ),
        io::ErrorKind::PermissionDenied => format!(
            "cannot start {name} in {place}: the user of the workload (by default the one that \
             runs leno up) must be permitted to execute the program and to enter the directory"
        ),
        _ => format!("cannot start {name} in {place}"),
    };
    Error::Os { what, source: reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(program: &str, directory: &str, kind: io::ErrorKind) -> String {
        not_started(program.as_ref(), directory.as_ref(), kind.into()).to_string()
    }

    #[test]
    fn what_is_missing_is_named() {
        let missing = io::ErrorKind::NotFound;
        assert!(said("shop", "/", missing).contains("no directory of PATH has this program"));
        assert_eq!(
            said("sleep", "/no/where", missing),
            "cannot start sleep: its workingDir /no/where does not exist"
        );
        assert_eq!(said("/bin/absent", "/", missing), "cannot start /bin/absent in /");
        let denied = said("run", "/root", io::ErrorKind::PermissionDenied);
        assert!(denied.contains("cannot start run in /root: the user of the workload"), "{denied}");
    }
}
