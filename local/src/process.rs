//! Starting and ending the processes of a mesh.

#![expect(unsafe_code, reason = "pre_exec runs between fork and exec")]

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, Command};

use crate::descriptors::Descriptors;
use crate::enclosure::{Credentials, Enclosure, Tether};
use crate::error::{Attempt, Error, Result};
use crate::output::{Origin, Output};

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
    pub enclosure: Enclosure,
    /// Whom it runs as.
    pub credentials: Credentials,
    /// How many descriptors it may have, where that is not as many as this process.
    pub descriptors: Option<Descriptors>,
}

/// A running process whose output is being printed. Killed when dropped.
#[derive(Debug)]
pub struct Running {
    child: Child,
    pid: Pid,
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
        let program = self
            .command
            .first()
            .ok_or_else(|| Error::Refused("the command is empty".into()))?
            .clone();
        let mut command = Command::new(&program);
        command.args(&self.command[1..]);
        command.env_clear();
        command.envs(&self.environment);
        let directory = self.directory.clone();
        if let Some(directory) = &directory {
            command.current_dir(directory);
        }
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Ctrl-C in the terminal is for leno, which ends the mesh in order.
            .process_group(0)
            .kill_on_drop(true);
        let Self { enclosure, credentials, descriptors, .. } = self;
        let tether = Tether::to_this_process();
        let prepare = move || {
            enclosure.enter()?;
            descriptors.map_or(Ok(()), Descriptors::set)?;
            credentials.assume()?;
            tether.tie()
        };
        // SAFETY: `prepare` makes system calls on descriptors and strings that were made before the
        // fork; it neither allocates nor takes a lock.
        unsafe { command.pre_exec(prepare) };
        let directory = directory.unwrap_or_else(|| PathBuf::from("/"));
        let mut child =
            command.spawn().map_err(|reason| not_started(&program, &directory, reason))?;
        let id = child.id().and_then(|id| id.try_into().ok());
        let pid = Pid::from_raw(id.expect("a child that was not waited for has an id"));
        if let Some(stdout) = child.stdout.take() {
            let (output, origin) = (to_stdout.clone(), origin.clone());
            tokio::spawn(async move { output.copy(&origin, stdout).await });
        }
        if let Some(stderr) = child.stderr.take() {
            let (output, origin) = (to_stderr.clone(), origin.clone());
            tokio::spawn(async move { output.copy(&origin, stderr).await });
        }
        Ok(Running { child, pid })
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

    /// Asks it to end and waits up to `grace`, then kills it.
    ///
    /// # Errors
    /// When the system cannot wait for it.
    pub async fn end(&mut self, grace: Duration) -> Result<ExitStatus> {
        if self.child.id().is_some() {
            // It is not reaped yet, so the number is still its own.
            let _ = kill(self.pid, Signal::SIGTERM);
        }
        if let Ok(status) = tokio::time::timeout(grace, self.ended()).await {
            return status;
        }
        self.child.start_kill().attempt(|| format!("cannot kill process {}", self.pid))?;
        self.ended().await
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
            "cannot start {name} in {place}: the user who runs leno up must be able to run the \
             one and to enter the other"
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
        assert!(denied.contains("cannot start run in /root: the user"), "{denied}");
    }
}
