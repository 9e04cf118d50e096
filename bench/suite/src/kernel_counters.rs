//! Counters of the kernel: for the machine, for kernel threads, for a process or a control group, and for the
//! connections of a network namespace.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use leno_bpf::RunTime;
use leno_measure::usage::{self, Cpu};
use nix::time::{ClockId, clock_gettime};
use procfs::net::TcpState;
use procfs::process::{self, StatFlags};
use procfs::{CurrentSI as _, KernelStats, ticks_per_second};
use serde::{Deserialize, Serialize};

use crate::record::ContextSwitches;

/// CPU time of a machine since its boot, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct MachineTime {
    /// All time except idle time.
    pub(crate) busy_ms: f64,
    /// The part of the busy time that hard and soft interrupts took.
    pub(crate) interrupts_ms: f64,
    /// The time that the hypervisor gave to other virtual machines.
    pub(crate) steal_ms: f64,
    pub(crate) processors: usize,
}

impl MachineTime {
    /// Reads the counters of this machine.
    pub(crate) fn read() -> Result<Self> {
        let stat = KernelStats::current()?;
        let all = &stat.total;
        let interrupts = all.irq.unwrap_or(0) + all.softirq.unwrap_or(0);
        Ok(Self {
            busy_ms: ms(all.user + all.nice + all.system + interrupts),
            interrupts_ms: ms(interrupts),
            steal_ms: ms(all.steal.unwrap_or(0)),
            processors: stat.cpu_time.len(),
        })
    }
}

/// CPU time of kernel threads, in milliseconds. `None` if no kernel thread is visible, for example in the PID namespace
/// of a container that serves as a node. Threads are not recognised by the ID of their parent, because in such a
/// namespace this ID may belong to another process.
fn kernel_threads_ms() -> Option<f64> {
    let stats = process::all_processes().ok()?.flatten().filter_map(|one| one.stat().ok());
    let of_kernel = stats.filter(|stat| stat.flags & StatFlags::PF_KTHREAD.bits() != 0);
    of_kernel.map(|stat| stat.utime + stat.stime).reduce(|sum, one| sum + one).map(ms)
}

/// Converts clock ticks to milliseconds.
fn ms(ticks: u64) -> f64 {
    ticks as f64 * 1000.0 / ticks_per_second() as f64
}

/// The counters of a kernel and of processes that it runs, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct NodeCounters {
    /// The boot ID of the kernel. Two readings with the same ID are from the same kernel and share its counters.
    pub(crate) boot_id: String,
    /// The time, in microseconds since boot.
    pub(crate) at_us: u64,
    /// The processes of each container that has any process.
    pub(crate) containers: BTreeMap<String, Vec<Process>>,
    /// The number of established connections from a container's network namespace to other hosts; `None` if they were
    /// not requested, or the container has ended.
    pub(crate) connections: Option<u64>,
    /// The counters of the whole kernel; `None` if they were not requested.
    pub(crate) whole: Option<KernelCounters>,
}

/// A process. It is identified by its ID and its start time, because process IDs are reused.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    /// The start time, in microseconds since boot.
    pub(crate) began_us: u64,
    /// The CPU time of the process since its start, including threads that have ended.
    pub(crate) cpu: Cpu,
    pub(crate) switches: ContextSwitches,
    pub(crate) rss_kib: u64,
    /// The size of the process's program in bytes; 0 if it cannot be read.
    pub(crate) program_bytes: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct KernelCounters {
    pub(crate) machine: MachineTime,
    /// CPU time of kernel threads; `None` if they are not visible.
    pub(crate) kernel_threads_ms: Option<f64>,
    /// For each kernel program, by its ID: the number of its runs, and their total time in nanoseconds.
    pub(crate) programs: BTreeMap<u32, (u64, u64)>,
}

impl NodeCounters {
    /// The kernel and the time, without any counter.
    pub(crate) fn now() -> Result<Self> {
        let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id");
        let boot_id = boot_id.context("cannot read the boot's ID")?.trim().to_owned();
        let at_us = Duration::from(clock_gettime(ClockId::CLOCK_BOOTTIME)?).as_micros() as u64;
        Ok(Self { boot_id, at_us, ..Self::default() })
    }
}

impl Process {
    /// The counters of a process; `None` if it has ended.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        let stat = process::Process::new(pid.cast_signed()).ok()?.stat().ok()?;
        let began_us = stat.starttime * (1_000_000 / ticks_per_second());
        Some(Self { pid, began_us, cpu: usage::cpu_of_process(pid).ok()?, ..Self::now(pid)? })
    }

    /// The processes of a control group as if they were one process, which began with the kernel. The CPU time includes
    /// processes that have ended; all other counters are those of running processes.
    pub(crate) fn of_cgroup(directory: &Path) -> Result<Self> {
        let mut sum = Self { cpu: usage::cpu_of_cgroup(directory)?, ..Self::default() };
        for one in usage::pids_of_cgroup(directory)?.into_iter().filter_map(Self::now) {
            sum.rss_kib += one.rss_kib;
            sum.switches.voluntary += one.switches.voluntary;
            sum.switches.involuntary += one.switches.involuntary;
            sum.program_bytes = sum.program_bytes.max(one.program_bytes);
        }
        Ok(sum)
    }

    /// The counters of a running process except its CPU time.
    fn now(pid: u32) -> Option<Self> {
        let process = process::Process::new(pid.cast_signed()).ok()?;
        let mut switches = ContextSwitches::default();
        // If a thread ends meanwhile, its counters are lost.
        let threads = process.tasks().ok()?.flatten();
        for thread in threads.filter_map(|thread| thread.status().ok()) {
            switches.voluntary += thread.voluntary_ctxt_switches.unwrap_or(0);
            switches.involuntary += thread.nonvoluntary_ctxt_switches.unwrap_or(0);
        }
        Some(Self {
            switches,
            rss_kib: process.status().ok()?.vmrss.unwrap_or(0),
            program_bytes: program(pid).map_or(0, |(_, bytes)| bytes),
            ..Self::default()
        })
    }
}

impl KernelCounters {
    /// Reads the counters of this machine's kernel.
    pub(crate) fn read() -> Result<Self> {
        let programs = leno_bpf::run_times().into_iter();
        Ok(Self {
            machine: MachineTime::read()?,
            kernel_threads_ms: kernel_threads_ms(),
            programs: programs.map(|(id, one)| (id, runs_and_nanos(one))).collect(),
        })
    }
}

/// The number of runs, and their total time in nanoseconds.
pub(crate) fn runs_and_nanos(one: RunTime) -> (u64, u64) {
    (one.runs, u64::try_from(one.took.as_nanos()).unwrap_or(u64::MAX))
}

/// The path and the size of a process's program; `None` if the process has ended or its program is
/// not accessible.
pub(crate) fn program(pid: u32) -> Option<(PathBuf, u64)> {
    let link = format!("/proc/{pid}/exe");
    Some((fs::read_link(&link).ok()?, fs::metadata(&link).ok()?.len()))
}

pub(crate) fn processes() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The number of established connections from the network namespace of a process to other hosts; 0 if the process has
/// ended.
pub(crate) fn crossing_of(pid: u32) -> u64 {
    let tables = process::Process::new(pid.cast_signed()).map(|one| [one.tcp(), one.tcp6()]);
    let sockets = tables.into_iter().flatten().flatten().flatten();
    let open = sockets.filter(|one| one.state == TcpState::Established);
    crossing(&open.map(|one| (one.local_address, one.remote_address)).collect::<Vec<_>>())
}

/// How many of the connections with these local and remote addresses lead to other hosts.
///
/// If a connection stays within the namespace, both of its ends are in the tables. If its packets are redirected, the
/// two ends have only one address in common.
fn crossing(ends: &[(SocketAddr, SocketAddr)]) -> u64 {
    // An IPv4-mapped IPv6 address counts as the IPv4 address.
    let plain = |end: &SocketAddr| SocketAddr::new(end.ip().to_canonical(), end.port());
    let locals: HashSet<SocketAddr> = ends.iter().map(|(local, _)| plain(local)).collect();
    let remotes: HashSet<SocketAddr> = ends.iter().map(|(_, remote)| plain(remote)).collect();
    let crosses = |(local, remote): &&(SocketAddr, SocketAddr)| {
        let (local, remote) = (plain(local), plain(remote));
        !remote.ip().is_loopback() && !locals.contains(&remote) && !remotes.contains(&local)
    };
    ends.iter().filter(crosses).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_that_leave_the_namespace_are_counted() {
        let counted = |ends: &[(&str, &str)]| {
            let end = |text: &str| text.parse().unwrap();
            let ends = ends.iter().map(|(local, remote)| (end(local), end(remote)));
            crossing(&ends.collect::<Vec<_>>())
        };
        let within = [("127.0.0.1:1", "127.0.0.1:2"), ("[::1]:1", "[::1]:2")];
        assert_eq!(counted(&within), 0);
        let mapped = [("[::ffff:127.0.0.1]:1", "[::ffff:127.0.0.1]:2")];
        assert_eq!(counted(&mapped), 0);
        assert_eq!(counted(&[("10.89.0.3:1", "10.89.0.4:2"), ("[fd00::1]:1", "[fd00::2]:2")]), 2);
        // The application sees the service's address as its remote end; the proxy sees its own address and the
        // application's. The last connection is the proxy's own one to the service.
        let redirected = [
            ("10.89.0.3:40000", "10.96.0.1:8080"),
            ("127.0.0.1:15001", "10.89.0.3:40000"),
            ("10.89.0.3:40016", "[::ffff:10.89.0.4]:8080"),
        ];
        assert_eq!(counted(&redirected), 1);
    }

    #[test]
    fn counters_of_this_machine_and_of_this_process_are_read() {
        let own = std::process::id();
        let (machine, process) = (MachineTime::read().unwrap(), Process::of(own).unwrap());
        assert!(machine.busy_ms > machine.interrupts_ms && machine.processors > 0, "{machine:?}");
        assert!(process.began_us > 0 && process.rss_kib > 0 && process.program_bytes > 0);
        // A PID namespace may hide the threads of the kernel.
        let seen = fs::read_to_string("/proc/2/comm").is_ok_and(|name| name.trim() == "kthreadd");
        assert!(!seen || kernel_threads_ms().is_some_and(|ms| ms > 0.0));
        assert_eq!((Process::of(u32::MAX), crossing_of(u32::MAX)), (None, 0));
    }
}
