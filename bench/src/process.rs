//! Processes of a bench: pinned to CPUs, awaited until they listen, and stopped with the bench.

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
/// How long a server may take to exit before it is killed.
const END_LIMIT: Duration = Duration::from_secs(5);

/// The CPUs that a process may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pinning {
    /// The CPU of the proxy under test.
    Proxy,
    /// All other CPUs.
    Rest,
    /// No pinning.
    Anywhere,
}

impl Pinning {
    /// Pins process `pid` to these CPUs; 0 is this thread and everything that it starts.
    pub(crate) fn apply(self, pid: i32) -> Result<()> {
        let cpus = std::thread::available_parallelism()?.get();
        let wanted: Vec<usize> = match self {
            Pinning::Anywhere => return Ok(()),
            _ if cpus < 2 => return Ok(()),
            Pinning::Proxy => vec![0],
            Pinning::Rest => (1..cpus).collect(),
        };
        let mut set = CpuSet::new();
        for cpu in wanted {
            set.set(cpu)?;
        }
        sched_setaffinity(Pid::from_raw(pid), &set).context("cannot pin a process to a CPU")
    }
}

/// A server that the bench started; dropping it stops it.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    name: String,
}

impl Process {
    /// Starts `command` at `place` and waits until it accepts connections on `address`.
    pub(crate) fn start(mut command: Command, place: Pinning, address: SocketAddr) -> Result<Self> {
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

    /// The process and its children: nginx works in a child.
    pub(crate) fn pids(&self) -> Result<Vec<u32>> {
        let id = self.child.id();
        let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children"))
            .with_context(|| format!("{} has ended", self.name))?;
        Ok(std::iter::once(id)
            .chain(children.split_whitespace().filter_map(|pid| pid.parse().ok()))
            .collect())
    }

    /// The memory of the process and its children together.
    pub(crate) fn memory(&self) -> Result<usage::Memory> {
        let mut sum = usage::Memory::default();
        for pid in self.pids()? {
            sum += usage::memory_of_process(pid)?;
        }
        Ok(sum)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let Ok(pid) = i32::try_from(self.child.id()) else { return };
        // SIGQUIT would drain, which a bench does not need.
        let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
        let ended = wait::until("its end", END_LIMIT, || Ok(self.child.try_wait()?));
        if ended.is_err() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// A free port of 127.0.0.1. Another process could bind it before the server does; then the server
/// reports the error.
pub(crate) fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

fn read(mut log: std::fs::File) -> String {
    use std::io::{Read, Seek, SeekFrom};
    let mut text = String::new();
    // The text only adds to an error message, so a log that cannot be read counts as empty.
    let _ = log.seek(SeekFrom::Start(0)).and_then(|_| log.read_to_string(&mut text));
    text.trim().to_string()
}
