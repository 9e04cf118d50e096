//! Reads the counters of containers, and of the kernel that they share.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
use leno_measure::usage::{self, Cpu};
use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::containers;
use crate::kernel_counters::{self, Machine};
use crate::record::ContextSwitches;

/// The counters to read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Question {
    /// IDs of containers.
    pub(crate) containers: Vec<String>,
    /// The container whose connections to others are counted.
    pub(crate) connections_of: Option<String>,
    /// Whether to read the counters of the whole kernel as well, and to time its programs from now
    /// on.
    pub(crate) whole: bool,
}

/// The counters at one moment.
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
    /// Context switches of the living threads.
    pub(crate) switches: ContextSwitches,
    pub(crate) rss_kib: u64,
    /// The size of its program in bytes; 0 if it cannot be read.
    pub(crate) program_bytes: u64,
}

/// The counters of a whole kernel.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct KernelCounters {
    pub(crate) machine: Machine,
    /// `None` if kernel threads are not visible.
    pub(crate) kernel_threads_ms: Option<f64>,
    /// Every kernel program by its ID: number of runs, and total nanoseconds.
    pub(crate) programs: BTreeMap<u32, (u64, u64)>,
}

/// Reads the counters.
///
/// # Errors
/// If the kernel's boot ID or its counters cannot be read.
pub(super) fn read(question: &Question) -> Result<NodeCounters> {
    let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    let boot_id = boot_id.context("cannot read the boot's ID")?.trim().to_owned();
    let asked = question.containers.iter().chain(&question.connections_of);
    let pids = containers::pids(asked.map(String::as_str));
    let at_us = Duration::from(clock_gettime(ClockId::CLOCK_BOOTTIME)?).as_micros() as u64;
    let wanted = pids.iter().filter(|(id, _)| question.containers.contains(id));
    let of = |(id, pids): (&String, &Vec<u32>)| {
        (id.clone(), pids.iter().filter_map(|pid| process(*pid)).collect())
    };
    let containers = wanted.map(of).filter(|(_, all): &(_, Vec<_>)| !all.is_empty()).collect();
    let client = question.connections_of.as_ref().and_then(|id| pids.get(id)?.first());
    Ok(NodeCounters {
        boot_id,
        at_us,
        containers,
        connections: client.map(|pid| kernel_counters::crossing_of(*pid)),
        whole: question.whole.then(whole).transpose()?,
    })
}

/// `None` if the process has ended.
fn process(pid: u32) -> Option<Process> {
    let began_us = kernel_counters::began_us(pid)?;
    Some(Process {
        pid,
        began_us,
        cpu: usage::cpu_of_process(pid).ok()?,
        switches: kernel_counters::switches(pid),
        rss_kib: usage::rss_of_process(pid).ok()?,
        program_bytes: program(pid).map_or(0, |(_, bytes)| bytes),
    })
}

/// The path and the size of a process's program; `None` if the process has ended or its program is
/// not accessible.
pub(super) fn program(pid: u32) -> Option<(std::path::PathBuf, u64)> {
    let link = format!("/proc/{pid}/exe");
    Some((fs::read_link(&link).ok()?, fs::metadata(&link).ok()?.len()))
}

fn whole() -> Result<KernelCounters> {
    let programs = leno_bpf::run_times().into_iter();
    let nanos = |took: Duration| u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
    Ok(KernelCounters {
        machine: Machine::read()?,
        kernel_threads_ms: kernel_counters::kernel_threads_ms(),
        programs: programs.map(|(id, one)| (id, (one.runs, nanos(one.took)))).collect(),
    })
}
