//! How long kernel programs have run, those of workloads or all, which the kernel counts while it is asked to.
#![expect(unsafe_code, reason = "bpf_enable_stats has no safe wrapper")]

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::time::Duration;

use libbpf_rs::Link;
use libbpf_rs::query::ProgInfoIter;

use crate::{Error, PinRoot, pins};

/// Has the kernel count, for every program of the machine, until it is dropped. That costs each run
/// of a program two looks at a clock.
#[derive(Debug)]
pub struct Counting {
    /// The kernel counts as long as anybody holds one of these.
    _descriptor: OwnedFd,
}

impl Counting {
    /// Begins; Linux 5.8 can.
    ///
    /// # Errors
    /// When the kernel does not.
    pub fn start() -> Result<Self, Error> {
        // SAFETY: a number goes in and a number comes out.
        let descriptor = unsafe { libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME) };
        if descriptor < 0 {
            let error = io::Error::from_raw_os_error(-descriptor);
            return Err(Error::io("have kernel programs timed")(error));
        }
        // SAFETY: the kernel has just made it for this call, so that nobody else closes it.
        Ok(Self { _descriptor: unsafe { OwnedFd::from_raw_fd(descriptor) } })
    }
}

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunTime {
    /// Runs of a program.
    pub runs: u64,
    /// All of them together.
    pub took: Duration,
}

/// What the programs of these workloads have run in all, while that was counted. Workloads that
/// have none add nothing.
///
/// # Errors
/// When the directory of a workload cannot be listed.
pub fn run_time(root: &PinRoot, owners: &[String]) -> Result<RunTime, Error> {
    let mut programs = BTreeSet::new();
    for owner in owners {
        for path in pins::links(&root.of(owner)?)? {
            // One that was removed meanwhile counts no more.
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

/// What each program of the kernel has run, by its ID, while that was counted; empty where this process may not
/// look at programs.
#[must_use]
pub fn run_times() -> BTreeMap<u32, RunTime> {
    let of = |runs, ns| RunTime { runs, took: Duration::from_nanos(ns) };
    ProgInfoIter::default().map(|one| (one.id, of(one.run_cnt, one.run_time_ns))).collect()
}
