//! Run times of BPF programs, of some workloads or of the whole machine. The kernel measures them while a
//! [`RunTimeCounting`] exists.
#![expect(unsafe_code, reason = "bpf_enable_stats has no safe wrapper")]

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use libbpf_rs::Link;
use libbpf_rs::query::{ProgInfoIter, ProgramInfo};

use crate::{Error, PinRoot, flows, pins};

/// Makes the kernel measure the run time of every BPF program of the machine until this is dropped. The kernel then
/// reads the clock twice for each run of a program.
#[derive(Debug)]
pub struct RunTimeCounting {
    /// The kernel measures as long as any such descriptor is open.
    _descriptor: OwnedFd,
}

impl RunTimeCounting {
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

/// Measured runs of programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunTime {
    /// How often the programs ran.
    pub runs: u64,
    /// The time of all runs together.
    pub took: Duration,
}

impl RunTime {
    fn add(&mut self, program: &ProgramInfo) {
        self.runs += program.run_cnt;
        self.took += Duration::from_nanos(program.run_time_ns);
    }
}

/// The run time of these owners' programs, in total over all measured periods. Owners without programs add nothing.
///
/// # Errors
/// When the directory of a workload cannot be listed.
pub fn run_time(root: &PinRoot, owners: &[String]) -> Result<RunTime, Error> {
    let directories = owners.iter().map(|owner| root.of(owner)).collect::<Result<Vec<_>, _>>()?;
    let mut sum = RunTime::default();
    loaded(&directories)?.iter().for_each(|program| sum.add(program));
    Ok(sum)
}

/// The run time of the programs that are pinned in a directory, by their names in the kernel, which are cut after 15
/// bytes.
pub(crate) fn by_name(directory: &Path) -> Result<BTreeMap<String, RunTime>, Error> {
    let mut all: BTreeMap<String, RunTime> = BTreeMap::new();
    for program in loaded(std::slice::from_ref(&directory.to_owned()))? {
        let of = all.entry(program.name.to_string_lossy().into_owned()).or_default();
        of.add(&program);
    }
    Ok(all)
}

/// The kernel's information on the programs that are pinned in these directories.
fn loaded(directories: &[PathBuf]) -> Result<Vec<ProgramInfo>, Error> {
    let mut programs = BTreeSet::new();
    for directory in directories {
        for path in pins::programs(directory)? {
            // A link that was removed meanwhile is left out.
            let Ok(info) = Link::open(&path).and_then(|link| link.info()) else { continue };
            programs.insert(info.prog_id);
        }
        programs.extend(flows::filtered(directory)?.iter().map(|(_, _, id)| *id));
    }
    if programs.is_empty() {
        return Ok(Vec::new());
    }
    Ok(ProgInfoIter::default().filter(|program| programs.contains(&program.id)).collect())
}

/// The run time of each program of the kernel by its id, in total over all measured periods; empty
/// if this process may not list programs.
#[must_use]
pub fn run_times() -> BTreeMap<u32, RunTime> {
    let of = |runs, ns| RunTime { runs, took: Duration::from_nanos(ns) };
    ProgInfoIter::default().map(|one| (one.id, of(one.run_cnt, one.run_time_ns))).collect()
}
