//! Counters of the kernel: for the machine, for kernel threads, for a process or a control group, and
//! for the connections of a network namespace.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use leno_bpf::RunTime;
use leno_measure::usage::{self, Cpu};
use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::record::ContextSwitches;

/// The flag of every kernel thread (`PF_KTHREAD` of include/linux/sched.h).
const KERNEL_THREAD: u64 = 0x0020_0000;

/// CPU time of a machine since its boot, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct MachineTime {
    /// Everything but idle time.
    pub(crate) busy_ms: f64,
    /// The part of it that hard and soft interrupts took.
    pub(crate) interrupts_ms: f64,
    /// Time that the hypervisor gave to other guests.
    pub(crate) steal_ms: f64,
    pub(crate) processors: usize,
}

impl MachineTime {
    /// Reads the counters of this machine (proc(5): user, nice, system, idle, iowait, irq, softirq,
    /// steal).
    pub(crate) fn read() -> Result<Self> {
        let stat = fs::read_to_string("/proc/stat").context("cannot read /proc/stat")?;
        let first = stat.lines().next().unwrap_or_default();
        let ticks: Vec<f64> =
            first.split_whitespace().skip(1).filter_map(|t| t.parse().ok()).collect();
        let [user, nice, system, _idle, _wait, irq, softirq, steal, ..] = ticks[..] else {
            return Err(anyhow!("/proc/stat begins with {first:?}"));
        };
        let ms = tick_ms();
        let interrupts_ms = (irq + softirq) * ms;
        let of_one = |line: &&str| {
            let number = line.strip_prefix("cpu");
            number.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
        };
        Ok(Self {
            busy_ms: (user + nice + system) * ms + interrupts_ms,
            interrupts_ms,
            steal_ms: steal * ms,
            processors: stat.lines().filter(of_one).count(),
        })
    }
}

/// CPU time of kernel threads, in milliseconds; `None` if none is visible, as in the PID namespace
/// of a container that serves as a node.
fn kernel_threads_ms() -> Option<f64> {
    let stats = processes().filter_map(|pid| usage::stat_of_process(pid).ok());
    let stats = stats.filter(|stat| is_of_the_kernel(stat));
    let ticks = stats.map(|stat| stat[11] + stat[12]).reduce(|sum, one| sum + one);
    ticks.map(|ticks| ticks as f64 * tick_ms())
}

/// The counters of a kernel and of processes that it runs, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct NodeCounters {
    /// The boot ID of the kernel; two looks with the same ID share the kernel's counters.
    pub(crate) boot_id: String,
    /// The time, in microseconds since boot.
    pub(crate) at_us: u64,
    /// The processes of each container that has any.
    pub(crate) containers: BTreeMap<String, Vec<Process>>,
    /// Established connections that leave a container's network namespace; `None` if they were not
    /// requested, or the container has ended.
    pub(crate) connections: Option<u64>,
    /// `None` if it was not requested.
    pub(crate) whole: Option<KernelCounters>,
}

/// A process. Process IDs are reused, so it is identified by its start time as well.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    /// The start time, in microseconds since boot.
    pub(crate) began_us: u64,
    /// CPU time since then, including threads that have ended.
    pub(crate) cpu: Cpu,
    pub(crate) switches: ContextSwitches,
    pub(crate) rss_kib: u64,
    /// The size of its program in bytes; 0 if it cannot be read.
    pub(crate) program_bytes: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct KernelCounters {
    pub(crate) machine: MachineTime,
    /// `None` if kernel threads are not visible.
    pub(crate) kernel_threads_ms: Option<f64>,
    /// Every kernel program by its ID: number of runs, and total nanoseconds.
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
    /// `None` if the process has ended.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        Some(Self {
            pid,
            began_us: began_us(pid)?,
            cpu: usage::cpu_of_process(pid).ok()?,
            ..Self::now(pid)?
        })
    }

    /// The processes of a control group as one, which began with the kernel. Its CPU time includes
    /// that of processes that have ended; all else is of those that live.
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

    /// What the kernel tells of a living process besides its CPU time.
    fn now(pid: u32) -> Option<Self> {
        Some(Self {
            switches: switches(pid),
            rss_kib: usage::rss_of_process(pid).ok()?,
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

/// The number of runs, and total nanoseconds.
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

/// When a process started, in microseconds since boot, with the precision of a clock tick; `None`
/// if it has ended.
fn began_us(pid: u32) -> Option<u64> {
    let stat = usage::stat_of_process(pid).ok()?;
    Some((*stat.get(19)? as f64 * tick_ms() * 1000.0) as u64)
}

fn switches(pid: u32) -> ContextSwitches {
    let mut sum = ContextSwitches::default();
    // The counters of a process or thread that ends meanwhile are lost.
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten();
    for thread in threads.flatten() {
        let status = fs::read_to_string(thread.path().join("status")).unwrap_or_default();
        sum.voluntary += field(&status, "voluntary_ctxt_switches:");
        sum.involuntary += field(&status, "nonvoluntary_ctxt_switches:");
    }
    sum
}

/// Established connections that leave the network namespace of a process; 0 if the process has
/// ended.
pub(crate) fn crossing_of(pid: u32) -> u64 {
    let table =
        |family: &str| fs::read_to_string(format!("/proc/{pid}/net/{family}")).unwrap_or_default();
    crossing(&[table("tcp"), table("tcp6")])
}

/// Established connections to other hosts in the tables of proc(5): the second and third field are
/// the addresses, the fourth is the state, and 01 is established.
///
/// A connection within the namespace has both of its ends in the tables. If packets are redirected,
/// the two ends share only one address.
fn crossing(tables: &[String]) -> u64 {
    // An IPv4-mapped IPv6 address counts as the IPv4 address.
    let plain = |end: &str| end.strip_prefix("0000000000000000FFFF0000").unwrap_or(end).to_owned();
    let ends: Vec<(String, String)> = tables
        .iter()
        .flat_map(|table| table.lines().skip(1))
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_ascii_whitespace().collect();
            let (local, remote) = (fields.get(1)?, fields.get(2)?);
            (fields.get(3) == Some(&"01")).then(|| (plain(local), plain(remote)))
        })
        .collect();
    let locals: HashSet<&str> = ends.iter().map(|(local, _)| local.as_str()).collect();
    let remotes: HashSet<&str> = ends.iter().map(|(_, remote)| remote.as_str()).collect();
    let crosses = |(local, remote): &&(String, String)| {
        let address = remote.split(':').next().unwrap_or_default();
        // 127.0.0.0/8 and ::1, as the kernel prints them.
        let loopback = (address.len() == 8 && address.ends_with("7F"))
            || address == "00000000000000000000000001000000";
        !loopback && !locals.contains(remote.as_str()) && !remotes.contains(local.as_str())
    };
    ends.iter().filter(crosses).count() as u64
}

/// Whether this is a kernel thread, by its flags. Its parent's ID is no proof: in the PID namespace of a
/// container that ID may belong to another process.
fn is_of_the_kernel(stat: &[u64]) -> bool {
    stat.get(6).is_some_and(|flags| flags & KERNEL_THREAD != 0)
}

fn tick_ms() -> f64 {
    usage::tick_us().map_or(10.0, |us| us as f64 / 1000.0)
}

fn field(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_the_kernel_are_known_by_their_flags_and_not_by_their_parent() {
        let of = |line| usage::stat_after_the_name(line).unwrap();
        let kthreadd = of("2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0 0 3 4 0 0 20 0 1 0 24 0 0");
        assert!(is_of_the_kernel(&kthreadd) && kthreadd[11] + kthreadd[12] == 7);
        let worker =
            of("9 (kworker/0:1 (x)) I 2 0 0 0 -1 69238880 0 0 0 0 0 5 0 0 20 0 1 0 24 0 0");
        assert!(is_of_the_kernel(&worker) && worker[12] == 5);
        // In the PID namespace of a container, process 2 may be any program.
        let child = of("31 (kubelet) S 2 31 31 0 -1 4194560 9 0 0 0 80 40 0 0 20 0 1 0 24 0 0");
        assert!(!is_of_the_kernel(&child));
    }

    fn counted(lines: &[(&str, &str, &str)]) -> u64 {
        let mut table = "  sl  local_address rem_address   st tx_queue rx_queue\n".to_owned();
        for (nth, (local, remote, state)) in lines.iter().enumerate() {
            table += &format!("{nth:4}: {local} {remote} {state} 00000000:00000000\n");
        }
        crossing(&[table])
    }

    #[test]
    fn connections_that_leave_the_namespace_are_counted() {
        let lines = [
            ("0300590A:9C40", "0400590A:1F90", "01"),
            ("0100007F:9C40", "0100007F:3A99", "01"),
            ("0300590A:9C42", "0400590A:1F90", "06"),
            ("00000000:3A99", "00000000:0000", "0A"),
        ];
        assert_eq!(counted(&lines), 1);
        let (mapped, six) = ("0000000000000000FFFF0000", "000000FD0000000000000000");
        let lines = [
            ("00000000000000000000000001000000:1", "00000000000000000000000001000000:2", "01"),
            (&format!("{mapped}0100007F:1"), &format!("{mapped}0100007F:2"), "01"),
            (&format!("{mapped}0300590A:1"), &format!("{mapped}0400590A:2"), "01"),
            (&format!("{six}01000000:1"), &format!("{six}02000000:2"), "01"),
        ];
        assert_eq!(counted(&lines), 2);
    }

    #[test]
    fn a_connection_that_is_redirected_to_the_proxy_stays_within() {
        let lines = [
            // The application sees the service's address as its remote end; the proxy sees its own
            // address and the application's.
            ("0300590A:9C40", "0100600A:1F90", "01"),
            ("0100007F:3A99", "0300590A:9C40", "01"),
            // The proxy's own connection to the service.
            ("0300590A:9C50", "0400590A:1F90", "01"),
        ];
        assert_eq!(counted(&lines), 1);
    }
}
