//! Processes of a bench: pinned, awaited, ended with it.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use leno_testkit::{usage, wait};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// How long a server may take to listen.
const START_LIMIT: Duration = Duration::from_secs(10);
/// How long a server may take to end before it is killed.
const END_LIMIT: Duration = Duration::from_secs(5);

/// Where a process may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The CPU of the proxy under test.
    Proxy,
    /// Everything else.
    Rest,
    /// Wherever the kernel likes.
    Anywhere,
}

impl Place {
    /// Moves process `pid` (0 is this thread and what it starts) there.
    pub(crate) fn apply(self, pid: i32) -> Result<()> {
        let cpus = std::thread::available_parallelism()?.get();
        let wanted: Vec<usize> = match self {
            Place::Anywhere => return Ok(()),
            _ if cpus < 2 => return Ok(()),
            Place::Proxy => vec![0],
            Place::Rest => (1..cpus).collect(),
        };
        let mut set = CpuSet::new();
        for cpu in wanted {
            set.set(cpu)?;
        }
        sched_setaffinity(Pid::from_raw(pid), &set).context("cannot pin a process to a CPU")
    }
}

/// A server that this bench started; dropping it ends it.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    name: String,
}

impl Process {
    /// Starts `command` at `place` and waits until it accepts on `address`.
    pub(crate) fn start(mut command: Command, place: Place, address: SocketAddr) -> Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        let log = tempfile::tempfile()?;
        let child = command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log.try_clone()?)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let mut process = Process { child, name };
        place.apply(i32::try_from(process.child.id())?)?;
        wait::until(&format!("{} to listen on {address}", process.name), START_LIMIT, || {
            if let Some(status) = process.child.try_wait()? {
                bail!("{} ended ({status}): {}", process.name, read(log.try_clone()?));
            }
            Ok(TcpStream::connect(address).ok())
        })?;
        Ok(process)
    }

    /// The process and its children: nginx works in one.
    pub(crate) fn pids(&self) -> Result<Vec<u32>> {
        let id = self.child.id();
        let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children"))
            .with_context(|| format!("{} has ended", self.name))?;
        Ok(std::iter::once(id)
            .chain(children.split_whitespace().filter_map(|pid| pid.parse().ok()))
            .collect())
    }

    /// What all its processes use together.
    pub(crate) fn usage(&self) -> Result<usage::Usage> {
        let mut sum = usage::Usage::default();
        for pid in self.pids()? {
            sum += usage::of_process(pid)?;
        }
        Ok(sum)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let Ok(pid) = i32::try_from(self.child.id()) else { return };
        // SIGQUIT would drain; a bench has nothing to lose.
        let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
        let ended = wait::until("its end", END_LIMIT, || Ok(self.child.try_wait()?));
        if ended.is_err() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// A free port of 127.0.0.1. Another process could take it before its server does; then that
/// server says so.
pub(crate) fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

fn read(mut log: std::fs::File) -> String {
    use std::io::{Read, Seek, SeekFrom};
    let mut text = String::new();
    // The message is the point; a log that cannot be read leaves it empty.
    let _ = log.seek(SeekFrom::Start(0)).and_then(|_| log.read_to_string(&mut text));
    text.trim().to_string()
}
