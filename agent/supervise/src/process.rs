//! Starts and ends a process.

#![expect(unsafe_code, reason = "pre_exec runs between fork and exec")]

use std::io;
use std::process::ExitStatus;
use std::time::Duration;

use futures_util::future::join_all;
use nix::sys::prctl;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getppid};
use tokio::process::{Child, ChildStderr, ChildStdout, Command};
use tokio::task::JoinHandle;

use crate::error::{Error, Result};

/// How long to wait until the output of a process that has ended is printed.
const PRINTED: Duration = Duration::from_millis(250);

/// A running process. Dropping this kills it.
#[derive(Debug)]
pub struct RunningProcess {
    child: Child,
    pid: Pid,
    /// Tasks that read its output until the pipes are closed.
    readers: Vec<JoinHandle<()>>,
}

/// Makes the kernel kill a process when its parent ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tether(Pid);

impl RunningProcess {
    /// Starts a process in a new process group. `prepare` runs in it between fork and exec. If `prepare` ties the
    /// process to its parent ([`Tether`]), the calling thread must exist as long as the process.
    ///
    /// # Safety
    /// `prepare` must only make system calls on objects that were created before the fork. It must not allocate or take
    /// a lock.
    ///
    /// # Errors
    /// The system's reason, or the error of `prepare`.
    pub unsafe fn spawn(
        mut command: Command,
        prepare: impl FnMut() -> io::Result<()> + Send + Sync + 'static,
    ) -> io::Result<Self> {
        // Ctrl-C in the terminal must only reach this process, which ends its children in the right order.
        command.process_group(0).kill_on_drop(true);
        // SAFETY: the caller guarantees it.
        unsafe { command.pre_exec(prepare) };
        let child = command.spawn()?;
        let id = child.id().and_then(|id| id.try_into().ok());
        let pid = Pid::from_raw(id.expect("a child that was not waited for has an id"));
        Ok(Self { child, pid, readers: Vec::new() })
    }

    /// Its standard output, if that is a pipe and was not taken before.
    pub fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// Its standard error, if that is a pipe and was not taken before.
    pub fn take_stderr(&mut self) -> Option<ChildStderr> {
        self.child.stderr.take()
    }

    /// Adds a task that reads its output; see [`read_out`](Self::read_out).
    pub fn read_by(&mut self, reader: JoinHandle<()>) {
        self.readers.push(reader);
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid.as_raw()
    }

    /// Waits until the process has ended. Cancel safe.
    ///
    /// # Errors
    /// When the system cannot wait for it.
    pub async fn ended(&mut self) -> Result<ExitStatus> {
        let pid = self.pid;
        self.child.wait().await.map_err(Error::os(|| format!("cannot wait for process {pid}")))
    }

    /// Waits until the last lines of the process are printed. Must be called after its end. Lines of a child that
    /// it has left in the background are printed later.
    pub(crate) async fn printed(&mut self) {
        self.read_out(PRINTED).await;
    }

    /// Waits up to `limit` until the output of the process is read. Must be called after its end. The wait is
    /// limited because a child that it has left in the background may keep the pipes open. Returns the tasks that
    /// still read.
    pub async fn read_out(&mut self, limit: Duration) -> Vec<JoinHandle<()>> {
        let mut readers = std::mem::take(&mut self.readers);
        // A reader fails only if the runtime ends, or if it panics, which is logged.
        let _ = tokio::time::timeout(limit, join_all(&mut readers)).await;
        readers.retain(|reader| !reader.is_finished());
        readers
    }

    /// Requests the process to end with `signal`, waits up to `grace`, and then kills it.
    ///
    /// # Errors
    /// When the system cannot wait for it.
    pub async fn end(&mut self, signal: Signal, grace: Duration) -> Result<ExitStatus> {
        if self.child.id().is_some() {
            // The process was not reaped yet, so no other process can have its number.
            let _ = kill(self.pid, signal);
        }
        if let Ok(status) = tokio::time::timeout(grace, self.ended()).await {
            return status;
        }
        let pid = self.pid;
        self.child.start_kill().map_err(Error::os(|| format!("cannot kill process {pid}")))?;
        self.ended().await
    }
}

impl Tether {
    /// A tether to the calling process. Must be created before the fork.
    #[must_use]
    pub fn to_this_process() -> Self {
        Self(nix::unistd::getpid())
    }

    /// Makes the kernel kill the calling process when the parent *thread* ends. So children must be started by a
    /// thread that exists as long as the mesh. Safe between fork and exec. A change of user undoes this, so it
    /// must be done last.
    ///
    /// # Errors
    /// When the parent has already ended.
    pub fn tie(self) -> io::Result<()> {
        prctl::set_pdeathsig(Signal::SIGKILL)?;
        if getppid() == self.0 { Ok(()) } else { Err(io::ErrorKind::BrokenPipe.into()) }
    }
}

/// Describes how a process has ended.
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

/// Describes when a process will be restarted.
#[must_use]
pub fn after(wait: Duration) -> String {
    match wait.as_secs() {
        0 => "at once".to_owned(),
        seconds => format!("in {seconds} s"),
    }
}

/// The value of a field in the text of `/proc/PID/status` (proc_pid_status(5)).
#[must_use]
pub fn status_field<'t>(status: &'t str, name: &str) -> Option<&'t str> {
    let mut fields = status.lines().filter_map(|line| line.split_once(":\t"));
    fields.find(|(of, _)| *of == name).map(|(_, value)| value.trim())
}
