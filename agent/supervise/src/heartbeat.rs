//! Detects that the process of a group hangs as a whole.
//!
//! ```text
//!  process ── alive, each second ──► supervisor, which checks each second whether anything was reported
//! ```
//! The supervisor counts checks instead of measuring time. So it does not mistake a process for hung when it was
//! itself paused: because the machine was suspended, the container was frozen, or all threads waited for a CPU.

use std::fmt;
use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::process::status_field;

/// Where procfs is.
const PROC: &str = "/proc";
/// How often the supervisor checks: each check wakes its thread.
pub(crate) const LOOK: Duration = Duration::from_secs(1);
/// How many checks in a row must find a process stopped by a signal before it is replaced. So a process that is
/// continued soon is not replaced.
const STOPPED_LOOKS: u32 = 3;
/// How many checks in a row without a report replace a process. The thread that reports has little work, and gets
/// a CPU much sooner even on a busy machine.
const SILENT_LOOKS: u32 = 10;

/// How a process hangs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hang {
    /// A signal (SIGSTOP) has stopped it.
    Stopped,
    /// The process reports nothing.
    Silent,
    /// The process receives no messages.
    Deaf,
}

/// The state of a process's heartbeat, as the supervisor has observed it.
#[derive(Debug)]
pub(crate) struct Heartbeat {
    pid: i32,
    /// Whether the process sends [`MemberState::Alive`](leno_handover::MemberState::Alive). A process of an earlier
    /// version does not.
    reports: bool,
    /// The number of checks in a row without a report, and of checks that found the process stopped.
    silent: u32,
    stopped: u32,
}

/// The state of a process in the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ProcessState {
    is_stopped: bool,
    /// Whether a debugger is attached, or the process waits for the reader of its output. Both may delay it
    /// without limit.
    is_held: bool,
}

/// Whether a signal (SIGSTOP) has stopped a process.
#[must_use]
pub fn is_stopped(pid: i32) -> bool {
    ProcessState::of(pid).is_stopped
}

/// How a process that receives no messages hangs. `None` if a debugger has stopped it, or if it waits for the reader of
/// its output. `proc` is the path of procfs.
#[must_use]
pub fn deaf(proc: &Path, pid: i32) -> Option<Hang> {
    let state = ProcessState::within(proc, pid);
    let how = if state.is_stopped { Hang::Stopped } else { Hang::Deaf };
    (!state.is_held).then_some(how)
}

impl Heartbeat {
    pub(crate) fn of(pid: i32) -> Self {
        Self { pid, reports: false, silent: 0, stopped: 0 }
    }

    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    /// Records that the process has sent a report. `is_beat` is whether it is the report that it is alive.
    pub(crate) fn heard(&mut self, is_beat: bool) {
        self.reports |= is_beat;
        self.silent = 0;
    }

    /// Checks the process. Returns how it hangs, if it does.
    pub(crate) fn look(&mut self) -> Option<Hang> {
        let state = ProcessState::of(self.pid);
        let how = self.judge(state);
        // In a sidecar that prints, a thread may wait for the reader of the output, and then the process does not
        // report.
        if how == Some(Hang::Silent) && a_thread_prints(self.pid) {
            self.silent = 0;
            return None;
        }
        how
    }

    /// How the process, which receives no messages, hangs; see [`deaf`].
    pub(crate) fn deaf(&self) -> Option<Hang> {
        deaf(Path::new(PROC), self.pid)
    }

    fn judge(&mut self, state: ProcessState) -> Option<Hang> {
        if state.is_held {
            (self.silent, self.stopped) = (0, 0);
            return None;
        }
        self.silent = self.silent.saturating_add(1);
        self.stopped = if state.is_stopped { self.stopped.saturating_add(1) } else { 0 };
        if self.stopped >= STOPPED_LOOKS {
            return Some(Hang::Stopped);
        }
        (self.reports && self.silent >= SILENT_LOOKS).then_some(Hang::Silent)
    }
}

impl ProcessState {
    /// The state of a process that was not reaped. If it cannot be read, the process counts as running, because a
    /// missing report is noticed in any case.
    fn of(pid: i32) -> Self {
        Self::within(Path::new(PROC), pid)
    }

    fn within(proc: &Path, pid: i32) -> Self {
        let process = proc.join(pid.to_string());
        let read = |file: &str| fs::read_to_string(process.join(file)).unwrap_or_default();
        Self::read(&read("status"), &read("syscall"))
    }

    /// Parses the files with these names in `/proc/PID`.
    fn read(status: &str, syscall: &str) -> Self {
        let field = |name: &str| status_field(status, name);
        let is_traced = field("TracerPid").is_some_and(|tracer| tracer != "0");
        Self {
            is_stopped: field("State").is_some_and(|state| state.starts_with('T')),
            is_held: is_traced || prints(syscall),
        }
    }
}

/// Whether a thread is printing, according to its file `syscall`.
fn prints(syscall: &str) -> bool {
    // The file begins with the number of the system call and its first argument, which is a descriptor.
    let mut call = syscall.split(' ');
    let writes = libc::SYS_write.to_string();
    call.next() == Some(writes.as_str())
        && call.next().is_some_and(|to| matches!(to, "0x1" | "0x2"))
}

/// Whether any thread of a process is printing. A thread whose file cannot be read does not count.
fn a_thread_prints(pid: i32) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut calls = threads.filter_map(|one| fs::read_to_string(one.path().join("syscall")).ok());
    calls.any(|call| prints(&call))
}

impl fmt::Display for Hang {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stopped => "was stopped by a signal",
            Self::Silent => "reported nothing for 10 s",
            Self::Deaf => "received no message for 5 s",
        })
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;

    use super::*;

    const RUNS: ProcessState = ProcessState { is_stopped: false, is_held: false };
    const STOPPED: ProcessState = ProcessState { is_stopped: true, is_held: false };

    #[test]
    fn a_process_hangs_once_it_has_reported_nothing_for_ten_checks() {
        let mut beat = Heartbeat::of(1);
        beat.heard(true);
        for _ in 0..2 {
            assert!((1..SILENT_LOOKS).all(|_| beat.judge(RUNS).is_none()));
            beat.heard(false);
        }
        assert!((1..SILENT_LOOKS).all(|_| beat.judge(RUNS).is_none()));
        // A debugger was attached for a moment, which resets the count.
        assert_eq!(beat.judge(ProcessState { is_stopped: true, is_held: true }), None);
        assert!((1..SILENT_LOOKS).all(|_| beat.judge(RUNS).is_none()));
        assert_eq!(beat.judge(RUNS), Some(Hang::Silent));
        assert_eq!(Hang::Silent.to_string(), format!("reported nothing for {SILENT_LOOKS} s"));
    }

    #[test]
    fn a_process_of_an_earlier_version_reports_no_beats_and_is_not_replaced_for_that() {
        let mut beat = Heartbeat::of(1);
        beat.heard(false);
        assert!((0..10 * SILENT_LOOKS).all(|_| beat.judge(RUNS).is_none()));
        assert!((1..STOPPED_LOOKS).all(|_| beat.judge(STOPPED).is_none()));
        assert_eq!(beat.judge(RUNS), None, "it was continued");
        assert!((1..STOPPED_LOOKS).all(|_| beat.judge(STOPPED).is_none()));
        assert_eq!(beat.judge(STOPPED), Some(Hang::Stopped));
    }

    #[test]
    fn a_thread_that_waits_for_the_reader_of_what_it_prints_is_seen() {
        let mut yes = Command::new("yes");
        let mut blocked = yes.stdout(std::process::Stdio::piped()).spawn().unwrap();
        let pid = i32::try_from(blocked.id()).unwrap();
        let began = std::time::Instant::now();
        // Only root may read which system call another process is in.
        while nix::unistd::geteuid().is_root() && !a_thread_prints(pid) {
            assert!(began.elapsed() < Duration::from_secs(60), "it does not wait");
            std::thread::yield_now();
        }
        // The process ends when its output has no reader any more.
        drop(blocked.stdout.take());
        blocked.wait().unwrap();
        assert!(!a_thread_prints(std::process::id().cast_signed()));
    }

    #[test]
    fn what_the_kernel_says_of_a_process_is_read() {
        let status = "Name:\tleno-proxy\nState:\tT (stopped)\nTracerPid:\t0\n";
        assert_eq!(ProcessState::read(status, ""), STOPPED);
        assert!(ProcessState::read(&status.replace("\t0", "\t12"), "").is_held);
        let prints = format!("{} 0x2 0x7f00 0x40\n", libc::SYS_write);
        assert!(ProcessState::read(status, &prints).is_held);
        for other in [prints.replace(" 0x2", " 0x5"), "running\n".to_owned()] {
            assert!(!ProcessState::read(status, &other).is_held, "{other}");
        }
    }

    #[test]
    fn a_stopped_process_is_detected() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let id = i32::try_from(child.id()).unwrap();
        assert_eq!(ProcessState::of(id), RUNS);
        assert!(!is_stopped(id));
        kill(Pid::from_raw(id), Signal::SIGSTOP).unwrap();
        while !is_stopped(id) {
            std::thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(ProcessState::of(id), RUNS, "a process that does not exist counts as running");
    }
}
