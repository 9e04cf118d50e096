//! Gives one CPU to the measured proxies, and the others to everything else.

use anyhow::{Context, Result};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use procfs::process::Process;

/// Which CPUs a process may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pinning {
    /// CPU 0.
    Proxies,
    /// All CPUs but CPU 0.
    Rest,
    /// The kernel chooses.
    Anywhere,
}

impl Pinning {
    pub(super) fn proxies(pinned: bool) -> Self {
        if pinned { Self::Proxies } else { Self::Anywhere }
    }

    pub(super) fn rest(pinned: bool) -> Self {
        if pinned { Self::Rest } else { Self::Anywhere }
    }

    /// Pins this thread, and every process that it starts. Has no effect on a machine with one CPU.
    pub(super) fn apply(self) -> Result<()> {
        self.pin(0)
    }

    /// Runs `work` on these CPUs. Programs that it starts stay on them. Afterwards this thread is pinned to the CPUs
    /// that the proxies do not use.
    pub(super) fn within<T>(self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.apply()?;
        let done = work();
        Self::rest(self != Self::Anywhere).apply()?;
        done
    }

    /// Applies this to every thread of a process.
    pub(super) fn apply_to(self, pid: u32) -> Result<()> {
        Process::new(pid.cast_signed())?.tasks()?.try_for_each(|thread| self.pin(thread?.tid))
    }

    fn pin(self, thread: i32) -> Result<()> {
        // `available_parallelism` would count only the CPUs to which this thread is pinned.
        let cpus = nix::unistd::sysconf(nix::unistd::SysconfVar::_NPROCESSORS_ONLN)?.unwrap_or(1);
        let cpus = usize::try_from(cpus)?;
        let wanted = match self {
            _ if cpus < 2 => return Ok(()),
            Self::Anywhere => return Ok(()),
            Self::Proxies => 0..1,
            Self::Rest => 1..cpus,
        };
        let mut set = CpuSet::new();
        for cpu in wanted {
            set.set(cpu)?;
        }
        sched_setaffinity(Pid::from_raw(thread), &set).context("cannot pin a process to a CPU")
    }
}
