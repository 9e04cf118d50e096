//! Starting and ending one process.

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

/// How long to wait until the output of an ended process is printed.
const PRINTED: Duration = Duration::from_millis(250);

/// A running process. Killed when dropped.
#[derive(Debug)]
pub struct RunningProcess {
    child: Child,
    pid: Pid,
    /// Tasks that read its output until the pipes end.
    readers: Vec<JoinHandle<()>>,
}

/// Ends a process together with its parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tether(Pid);

impl RunningProcess {
    /// Starts a process in a process group of its own; `prepare` runs in it between fork and exec. If `prepare` ties
    /// the process to its parent ([`Tether`]), the calling thread must live as long as the process.
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
        // Ctrl-C in the terminal must only reach this process, which ends its children in order.
        command.process_group(0).kill_on_drop(true);
        // SAFETY: guaranteed by the caller.
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

    /// Waits for its end. Cancel safe.
    ///
    /// # Errors
    /// When the system cannot wait for it.
    pub async fn ended(&mut self) -> Result<ExitStatus> {
        let pid = self.pid;
        self.child.wait().await.map_err(Error::os(|| format!("cannot wait for process {pid}")))
    }

    /// To be called after its end: waits until its last lines are printed. Lines of a child that it left in the
    /// background are printed later.
    pub(crate) async fn printed(&mut self) {
        self.read_out(PRINTED).await;
    }

    /// To be called after its end: waits up to `limit` until its output is read, because a child that it left in the
    /// background may keep the pipes open. Returns the tasks that still read.
    pub async fn read_out(&mut self, limit: Duration) -> Vec<JoinHandle<()>> {
        let mut readers = std::mem::take(&mut self.readers);
        // A reader fails only if the runtime ends, or by a panic, which is logged.
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
            // The process is not reaped, so no other process can have its number.
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
    /// Ties to the calling process; must be called before the fork.
    #[must_use]
    pub fn to_this_process() -> Self {
        Self(nix::unistd::getpid())
    }

    /// Has the kernel kill the calling process when the parent *thread* ends, so children must be
    /// started by a thread that lives as long as the mesh. Safe between fork and exec; a change of
    /// user undoes it, so it comes last.
    ///
    /// # Errors
    /// When the parent has ended already.
    pub fn tie(self) -> io::Result<()> {
        prctl::set_pdeathsig(Signal::SIGKILL)?;
        if getppid() == self.0 { Ok(()) } else { Err(io::ErrorKind::BrokenPipe.into()) }
    }
}

/// Describes how a process ended.
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

/// Describes when a process is started again.
#[must_use]
pub fn after(wait: Duration) -> String {
    match wait.as_secs() {
        0 => "at once".to_owned(),
        seconds => format!("in {seconds} s"),
    }
}

/// A field of the text of `/proc/PID/status` (proc_pid_status(5)).
#[must_use]
pub fn status_field<'t>(status: &'t str, name: &str) -> Option<&'t str> {
    let mut fields = status.lines().filter_map(|line| line.split_once(":\t"));
    fields.find(|(of, _)| *of == name).map(|(_, value)| value.trim())
}
