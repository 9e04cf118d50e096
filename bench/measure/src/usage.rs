//! CPU, memory and descriptors of processes and cgroups, from /proc and cgroup2.

use std::fs;
use std::ops::{AddAssign, Sub};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::time::{ClockId, clock_gettime};
use procfs::process::Process;
use serde::{Deserialize, Serialize};

/// CPU time used, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cpu {
    /// The time in user mode.
    pub user_us: u64,
    /// The time that the process spent in kernel mode.
    pub system_us: u64,
}

impl Cpu {
    /// User and system time together.
    #[must_use]
    pub fn total_us(self) -> u64 {
        self.user_us + self.system_us
    }
}

impl Sub for Cpu {
    type Output = Cpu;

    /// The difference of both sums is exact. The sum may be more precise than its parts: one part can shrink when the
    /// other advances by a clock tick.
    fn sub(self, earlier: Cpu) -> Cpu {
        let all = self.total_us().saturating_sub(earlier.total_us());
        let user_us = self.user_us.saturating_sub(earlier.user_us).min(all);
        Cpu { user_us, system_us: all - user_us }
    }
}

impl AddAssign for Cpu {
    fn add_assign(&mut self, other: Cpu) {
        self.user_us += other.user_us;
        self.system_us += other.system_us;
    }
}

/// The resources of a process at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// CPU time since its start.
    pub cpu: Cpu,
    /// Resident memory in KiB, including shared pages.
    pub rss_kib: u64,
    /// The private part of the resident memory: heap and stacks, but no pages of files.
    pub anonymous_kib: u64,
    /// The number of open file descriptors.
    pub descriptors: u64,
}

/// The usage of one process, all its threads together.
pub fn of_process(pid: u32) -> Result<Usage> {
    let process = process(pid)?;
    let status = process.status()?;
    Ok(Usage {
        cpu: cpu(&process)?,
        rss_kib: status.vmrss.unwrap_or(0),
        anonymous_kib: status.rssanon.unwrap_or(0),
        descriptors: process.fd_count()? as u64,
    })
}

/// The memory of a process, in KiB, by how it is shared with other processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Resident: every page that the process maps, even if other processes map it, too.
    pub rss_kib: u64,
    /// Proportional: a page that n processes map counts as 1/n, so that a sum over processes is the memory that the
    /// machine uses.
    pub pss_kib: u64,
    /// Private: pages that no other process maps at the moment, which would be free without this process.
    pub private_kib: u64,
}

impl AddAssign for Memory {
    fn add_assign(&mut self, other: Memory) {
        self.rss_kib += other.rss_kib;
        self.pss_kib += other.pss_kib;
        self.private_kib += other.private_kib;
    }
}

/// The memory of one process, from /proc/PID/smaps_rollup (Linux 4.14). The kernel walks all pages for it, so call this
/// only at single moments, and not regularly under load.
pub fn memory_of_process(pid: u32) -> Result<Memory> {
    let all = process(pid)?.smaps_rollup()?.memory_map_rollup;
    let kib = |name| all.iter().filter_map(|one| one.extension.map.get(name)).sum::<u64>() / 1024;
    let private_kib = kib("Private_Clean") + kib("Private_Dirty");
    Ok(Memory { rss_kib: kib("Rss"), pss_kib: kib("Pss"), private_kib })
}

/// The CPU time of all threads of a process. The sum is exact as long as no thread ends; user and system time alone are
/// as precise as the clock tick.
pub fn cpu_of_process(pid: u32) -> Result<Cpu> {
    cpu(&process(pid)?)
}

fn cpu(process: &Process) -> Result<Cpu> {
    let stat = process.stat()?;
    let tick_us = 1_000_000 / procfs::ticks_per_second();
    // The time that the running threads were on a CPU; 0 if the kernel does not count it.
    let run_times = process.tasks()?.flatten().filter_map(|thread| thread.schedstat().ok());
    let run_time_us = run_times.map(|thread| thread.sum_exec_runtime).sum::<u64>() / 1000;
    let (user_us, system_us) = (stat.utime * tick_us, stat.stime * tick_us);
    Ok(Cpu { user_us, system_us: system_us.max(run_time_us.saturating_sub(user_us)) })
}

fn process(pid: u32) -> Result<Process> {
    Process::new(pid.cast_signed()).with_context(|| format!("no process {pid}"))
}

/// The time that this thread was on a CPU.
pub fn cpu_of_this_thread() -> Result<Duration> {
    Ok(Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?))
}

/// The process ids in a cgroup directory and in all directories below it.
pub fn pids_of_cgroup(dir: &Path) -> Result<Vec<u32>> {
    let procs = fs::read_to_string(dir.join("cgroup.procs"))
        .with_context(|| format!("{} is not a cgroup", dir.display()))?;
    let mut pids: Vec<u32> = procs.lines().filter_map(|line| line.parse().ok()).collect();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            pids.extend(pids_of_cgroup(&entry.path())?);
        }
    }
    Ok(pids)
}

/// The CPU time of a cgroup2 directory and all directories below it, including processes that have ended.
pub fn cpu_of_cgroup(dir: &Path) -> Result<Cpu> {
    let path = dir.join("cpu.stat");
    let stat =
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let value = |name: &str| -> Result<u64> {
        let line = stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        Ok(line.with_context(|| format!("{} has no {name}", path.display()))?.parse()?)
    };
    Ok(Cpu { user_us: value("user_usec")?, system_us: value("system_usec")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_alive_and_its_cpu_time_grows() {
        let before = of_process(std::process::id()).unwrap();
        assert!(before.rss_kib > before.anonymous_kib && before.anonymous_kib > 0);
        assert!(before.descriptors > 2);
        let mut spin = 0_u64;
        while cpu_of_process(std::process::id()).unwrap().total_us() <= before.cpu.total_us() {
            spin = spin.wrapping_add(1);
        }
    }

    #[test]
    fn private_memory_is_part_of_the_proportional_and_that_of_the_resident() {
        let memory = memory_of_process(std::process::id()).unwrap();
        assert!(memory.private_kib > 0, "{memory:?}");
        assert!(memory.private_kib <= memory.pss_kib, "{memory:?}");
        assert!(memory.pss_kib <= memory.rss_kib, "{memory:?}");
        assert!(memory_of_process(u32::MAX).is_err());
    }

    #[test]
    fn usage_since_a_reading_is_no_more_than_the_sum_has_grown() {
        let at = |user_us, system_us| Cpu { user_us, system_us };
        // User time advances by a clock tick, and system time shrinks: 2 ms were used.
        assert_eq!(at(110_000, 45_200) - at(100_000, 53_200), at(2000, 0));
        assert_eq!(at(110_000, 65_200) - at(110_000, 45_200), at(0, 20_000));
        assert_eq!(at(250, 750) - at(50, 150), at(200, 600));
        // When a thread ends, the part of its time that is below a clock tick is lost.
        assert_eq!(at(100_000, 50_000) - at(100_000, 53_200), at(0, 0));
    }

    #[test]
    fn a_directory_that_is_no_cgroup_is_an_error() {
        let directory = Path::new("/proc/self");
        assert!(cpu_of_cgroup(directory).is_err() && pids_of_cgroup(directory).is_err());
    }
}
