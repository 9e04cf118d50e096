//! Processes of a bench: pinned to CPUs, awaited until they listen, and stopped with the bench.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leno_testkit::command::Running;
use leno_testkit::{usage, wait};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

/// How long a server may take to listen.
const START_LIMIT: Duration = Duration::from_secs(20);

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
    running: Running,
    name: String,
}

impl Process {
    /// Starts `command` at `place` and waits until it accepts connections on `address`.
    pub(crate) fn start(mut command: Command, place: Pinning, address: SocketAddr) -> Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        let running = Running::start(&mut command)?;
        place.apply(i32::try_from(running.pid())?)?;
        let running = until_it_listens(running, &name, || TcpStream::connect(address).is_ok())?;
        Ok(Process { running, name })
    }

    /// The process and its children: nginx works in a child.
    pub(crate) fn pids(&self) -> Result<Vec<u32>> {
        let id = self.running.pid();
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

/// Waits until a program listens; the error has its output.
pub(crate) fn until_it_listens(
    running: Running,
    what: &str,
    mut listens: impl FnMut() -> bool,
) -> Result<Running> {
    let pid = running.pid();
    let waited = wait::until(&format!("{what} to listen"), START_LIMIT, || {
        // The kernel removes the tables of a process together with the process.
        ensure!(Path::new(&format!("/proc/{pid}/net/tcp")).exists(), "it has ended");
        Ok(listens().then_some(()))
    });
    match waited {
        Ok(()) => Ok(running),
        Err(error) => {
            let said = running.finish(Duration::ZERO);
            Err(error.context(format!("{what}: {said:?}")))
        }
    }
}

/// A free port of 127.0.0.1. Another process could bind it before the server does; then the server
/// reports the error.
pub(crate) fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}
