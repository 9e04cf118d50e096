//! Run times of kernel programs, of some workloads or of the whole machine; the kernel measures
//! them while [`Counting`] lives.
#![expect(unsafe_code, reason = "bpf_enable_stats has no safe wrapper")]

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use libbpf_rs::Link;
use libbpf_rs::query::ProgInfoIter;

use crate::{Error, PinRoot, pins};

/// Has the kernel measure the run time of every program of the machine until this is dropped. The
/// kernel then reads the clock twice for each run of a program.
#[derive(Debug)]
pub struct Counting {
    /// The kernel measures as long as any such descriptor is open.
    _descriptor: OwnedFd,
}

impl Counting {
    /// Starts the measurement; needs Linux 5.8.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn start() -> Result<Self, Error> {
        // SAFETY: the call takes and returns plain numbers.
        let descriptor = unsafe { libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME) };
        if descriptor < 0 {
            let error = io::Error::from_raw_os_error(-descriptor);
            return Err(Error::io("have kernel programs timed")(error));
        }
        // SAFETY: the kernel has just made this descriptor for this call, so no other code owns it.
        Ok(Self { _descriptor: unsafe { OwnedFd::from_raw_fd(descriptor) } })
    }
}

/// The measured runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunTime {
    /// How often the programs ran.
    pub runs: u64,
    /// The time of all runs together.
    pub took: Duration,
}

/// The run time of these workloads' programs, in total over all measured periods. Workloads without
/// programs add nothing.
///
/// # Errors
/// When the directory of a workload cannot be listed.
pub fn run_time(root: &PinRoot, owners: &[String]) -> Result<RunTime, Error> {
    let directories = owners.iter().map(|owner| root.of(owner)).collect::<Result<Vec<_>, _>>()?;
    in_directories(&directories)
}

/// The same by the directories of pins.
pub(crate) fn in_directories(directories: &[PathBuf]) -> Result<RunTime, Error> {
    let mut programs = BTreeSet::new();
    for directory in directories {
        for path in pins::programs(directory)? {
            // A link that was removed meanwhile is left out.
            let Ok(info) = Link::open(&path).and_then(|link| link.info()) else { continue };
            programs.insert(info.prog_id);
        }
    }
    let mut sum = RunTime::default();
    if programs.is_empty() {
        return Ok(sum);
    }
    for program in ProgInfoIter::default().filter(|program| programs.contains(&program.id)) {
        sum.runs += program.run_cnt;
        sum.took += Duration::from_nanos(program.run_time_ns);
    }
    Ok(sum)
}

/// The run time of each program of the kernel by its id, in total over all measured periods; empty
/// if this process may not list programs.
#[must_use]
pub fn run_times() -> BTreeMap<u32, RunTime> {
    let of = |runs, ns| RunTime { runs, took: Duration::from_nanos(ns) };
    ProgInfoIter::default().map(|one| (one.id, of(one.run_cnt, one.run_time_ns))).collect()
}
