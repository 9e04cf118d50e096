//! Starting and ending the processes of a mesh.

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

use futures_util::future::join_all;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::{Pid, chdir};
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;

use crate::credentials::Credentials;
use crate::descriptors::Descriptors;
use crate::error::{Attempt, Error, Result};
use crate::isolation::{Isolation, Tether};
use crate::output::{self, Origin, Output};

/// How long the last lines of a command that has ended may take.
const LAST_LINES: Duration = Duration::from_millis(50);

/// How long the output of a process that has ended may take to be printed.
const PRINTED: Duration = Duration::from_millis(250);

/// A command line with its surroundings.
#[derive(Debug)]
pub struct Task {
    /// Program and arguments; the program is looked up in the PATH of `environment`.
    pub command: Vec<OsString>,
    /// Its whole environment; nothing of this process's is passed on.
    pub environment: BTreeMap<OsString, OsString>,
    /// Where it starts.
    pub directory: Option<PathBuf>,
    /// What it enters.
    pub isolation: Isolation,
    /// The user and groups that it runs as.
    pub credentials: Credentials,
    /// How many descriptors it may have, where that is not as many as this process.
    pub descriptors: Option<Descriptors>,
    /// Its standard input, where that is not empty.
    pub stdin: Option<OwnedFd>,
}

/// A running process whose output is being printed. Killed when dropped.
#[derive(Debug)]
pub struct Running {
    child: Child,
    pid: Pid,
    /// Tasks that print its output until the pipes end.
    readers: Vec<JoinHandle<()>>,
}

impl Task {
    /// Starts the process. Must be called by a thread that lives as long as the mesh, which is
    /// when the kernel ends the process at the latest.
    ///
    /// # Errors
    /// When it cannot be started: no such program, or its surroundings refuse it.
    pub fn start(self, output: &Output, origin: &Origin) -> Result<Running> {
        self.start_with(output, output, origin)
    }

    /// The same, with standard output and standard error going different ways.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_with(self, stdout: &Output, stderr: &Output, origin: &Origin) -> Result<Running> {
        let (to_stdout, to_stderr) = (stdout, stderr);
        let mut running = self.spawn()?;
        if let Some(stdout) = running.child.stdout.take() {
            let (output, origin) = (to_stdout.clone(), origin.clone());
            running.readers.push(tokio::spawn(async move { output.copy(&origin, stdout).await }));
        }
        if let Some(stderr) = running.child.stderr.take() {
            let (output, origin) = (to_stderr.clone(), origin.clone());
            running.readers.push(tokio::spawn(async move { output.copy(&origin, stderr).await }));
        }
        Ok(running)
    }

    /// Runs the process to its end and prints nothing: how it ended, and the last line that it printed.
    /// Dropping the future kills it and its children, unless those left its process group.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn finish(self) -> Result<(ExitStatus, String)> {
        let mut running = self.spawn()?;
        let group = ProcessGroup(running.pid);
        let last = Arc::new(Mutex::new(String::new()));
        let (stdout, stderr) = (running.child.stdout.take(), running.child.stderr.take());
        running.readers.push(tokio::spawn(output::last_line(stdout, last.clone())));
        running.readers.push(tokio::spawn(output::last_line(stderr, last.clone())));
        let status = running.ended().await;
        // It was reaped: its number may be another group's from here on.
        std::mem::forget(group);
        for reader in running.read_out(LAST_LINES).await {
            reader.abort();
        }
        let line = last.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Ok((status?, line))
    }

    fn spawn(self) -> Result<Running> {
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
            .stderr(Stdio::piped())
            // Ctrl-C in the terminal is for leno, which ends the mesh in order.
            .process_group(0)
            .kill_on_drop(true);
        let Self { isolation, credentials, descriptors, .. } = self;
        let outside = isolation.outside(&directory);
        let tether = Tether::to_this_process();
        let start = CString::new(directory.as_os_str().as_bytes())
            .map_err(|_| Error::Refused("a path holds a NUL byte".into()))?;
        let prepare = move || {
            isolation.enter()?;
            // It may be in a volume.
            chdir(start.as_c_str())?;
            descriptors.map_or(Ok(()), Descriptors::set)?;
            credentials.assume()?;
            tether.tie()
        };
        // SAFETY: `prepare` makes system calls on descriptors and strings that were made before the
        // fork; it neither allocates nor takes a lock.
        unsafe { command.pre_exec(prepare) };
        let child = command.spawn().map_err(|reason| not_started(&program, &outside, reason))?;
        let id = child.id().and_then(|id| id.try_into().ok());
        let pid = Pid::from_raw(id.expect("a child that was not waited for has an id"));
        Ok(Running { child, pid, readers: Vec::new() })
    }
}

impl Running {
    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid.as_raw()
    }

    /// Waits for its end. Cancel safe.
    ///
    /// # Errors
    /// When the system cannot wait for it.
    pub async fn ended(&mut self) -> Result<ExitStatus> {
        let pid = self.pid;
        self.child.wait().await.attempt(|| format!("cannot wait for process {pid}"))
    }

    /// After its end: waits until its last lines are printed. Those of a child that it left in the
    /// background are printed all the same.
    pub(crate) async fn printed(&mut self) {
        self.read_out(PRINTED).await;
    }

    /// After its end: waits until its output is read, up to `limit`, because a child that it left in the
    /// background may hold the pipes open. Returns the tasks that still read.
    async fn read_out(&mut self, limit: Duration) -> Vec<JoinHandle<()>> {
        let mut readers = std::mem::take(&mut self.readers);
        // A reader's own error is the end of the runtime, or a panic that is logged.
        let _ = tokio::time::timeout(limit, join_all(&mut readers)).await;
        readers.retain(|reader| !reader.is_finished());
        readers
    }

    /// Asks it to end with `signal` and waits up to `grace`, then kills it.
    ///
    /// # Errors
    /// When the system cannot wait for it.
    pub async fn end(&mut self, signal: Signal, grace: Duration) -> Result<ExitStatus> {
        if self.child.id().is_some() {
            // It is not reaped yet, so the number is still its own.
            let _ = kill(self.pid, signal);
        }
        if let Ok(status) = tokio::time::timeout(grace, self.ended()).await {
            return status;
        }
        self.child.start_kill().attempt(|| format!("cannot kill process {}", self.pid))?;
        self.ended().await
    }
}

/// The processes that a command started, killed when it is dropped.
struct ProcessGroup(Pid);

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        // A group without members is gone.
        let _ = killpg(self.0, Signal::SIGKILL);
    }
}

/// Why a program could not be started, and what to do: the system says as little of a directory
/// that is missing as of a program.
pub(crate) fn not_started(program: &OsStr, directory: &Path, reason: io::Error) -> Error {
    let (name, place) = (program.display(), directory.display());
    let searched = !program.as_bytes().contains(&b'/');
    let what = match reason.kind() {
        io::ErrorKind::NotFound if !directory.is_dir() => {
            format!("cannot start {name}: its workingDir {place} does not exist")
        }
        io::ErrorKind::NotFound if searched => format!(
            "cannot start {name}: PATH has no such program (name it with its directory; under \
             sudo, `sudo env PATH=$PATH leno ...` keeps your PATH)"
        ),
        io::ErrorKind::PermissionDenied => format!(
            "cannot start {name} in {place}: the user of the workload, the one who runs leno up where \
             it names none, must be able to run the one and to enter the other"
        ),
        _ => format!("cannot start {name} in {place}"),
    };
    Error::Os { what, source: reason }
}

/// How a process ended, in words.
#[must_use]
pub fn describe(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt as _;

    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exited with {code}"),
        (None, Some(number)) => match Signal::try_from(number) {
            Ok(signal) => format!("was ended by {signal}"),
            Err(_) => format!("was ended by signal {number}"),
        },
        (None, None) => "ended".to_owned(),
    }
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
        assert!(said("shop", "/", missing).contains("PATH has no such program"));
        assert_eq!(
            said("sleep", "/no/where", missing),
            "cannot start sleep: its workingDir /no/where does not exist"
        );
        assert_eq!(said("/bin/absent", "/", missing), "cannot start /bin/absent in /");
        let denied = said("run", "/root", io::ErrorKind::PermissionDenied);
        assert!(denied.contains("cannot start run in /root: the user of the workload"), "{denied}");
    }
}
