//! Kills containers. Also measures when a killed container's program runs again, which is the begin of a start-up
//! measurement:
//!
//! ```text
//! kill ── kubelet, runtime ── runc ── exec of the same program ── first request served
//!                                     this module                 probe in the client's pod
//! ```
//! Both take the time from CLOCK_MONOTONIC, which is the same for all pods of a node.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::Signal;
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;

use super::containers::{cgroups, pids, places};
use crate::kernel_counters::{processes, program};

/// The pause between two scans of all processes. The delay until a start is detected is at most this pause plus the
/// duration of one scan.
const LOOK: Duration = Duration::from_millis(2);

/// Kills every process of these containers. If one of the containers has no process, kills nothing and returns a text
/// that says so.
pub(super) fn kill(containers: &[String]) -> Result<Option<String>> {
    let found = pids(containers.iter().map(String::as_str));
    if let Some(none) = containers.iter().find(|id| !found.contains_key(*id)) {
        return Ok(Some(format!("no process of container {none} is here")));
    }
    for pid in found.into_values().flatten() {
        // A process that has ended meanwhile does not need the signal.
        let _gone = nix::sys::signal::kill(Pid::from_raw(i32::try_from(pid)?), Signal::SIGKILL);
    }
    Ok(None)
}

pub(super) struct KilledContainer {
    id: String,
    pods: BTreeSet<String>,
    /// The programs that ran in the container, by path and size. By these, the container's program is distinguished
    /// from runc, which runs first in a container.
    programs: BTreeSet<(PathBuf, u64)>,
    /// The processes that existed before the kill and still exist.
    before: BTreeSet<u32>,
}

impl KilledContainer {
    /// Records the programs of a container, then kills it.
    pub(super) fn now(id: &str) -> Result<Self> {
        let own = pids([id]).remove(id);
        let own = own.with_context(|| format!("no process of container {id} is here"))?;
        let cgroups: Vec<String> = own.iter().filter_map(|pid| cgroups(*pid)).collect();
        let pods = cgroups.iter().flat_map(|all| places(all)).filter(|(_, of)| *of == id);
        let killed = Self {
            id: id.to_owned(),
            pods: pods.map(|(pod, _)| pod.to_owned()).collect(),
            programs: own.iter().filter_map(|pid| program(*pid)).collect(),
            before: processes().collect(),
        };
        match kill(&[id.to_owned()])? {
            None => Ok(killed),
            Some(why) => bail!("{why}"),
        }
    }

    /// Waits until one of the programs runs in another container of the pod. Returns the start of the scan that found
    /// it, in nanoseconds of CLOCK_MONOTONIC; `None` after the limit.
    pub(super) fn follow(mut self, limit: Duration) -> Result<Option<u64>> {
        let begun = Instant::now();
        while begun.elapsed() < limit {
            // The time is taken before the scan. If it were taken afterwards, the duration of the scan would count as
            // part of the start.
            let at = Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC)?);
            if self.runs_again() {
                return Ok(Some(u64::try_from(at.as_nanos())?));
            }
            thread::sleep(LOOK);
        }
        Ok(None)
    }

    fn runs_again(&mut self) -> bool {
        let now: BTreeSet<u32> = processes().collect();
        // Processes that have ended are forgotten, because the kernel may give their ID to the expected process.
        self.before.retain(|pid| now.contains(pid));
        // Each scan checks all new processes again, because a process runs another program after exec.
        now.difference(&self.before).any(|pid| self.is_again(*pid))
    }

    fn is_again(&self, pid: u32) -> bool {
        let Some(cgroups) = cgroups(pid) else { return false };
        let mut places = places(&cgroups);
        places.any(|(pod, id)| id != self.id && self.pods.contains(pod))
            && program(pid).is_some_and(|program| self.programs.contains(&program))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_ended_processes_are_forgotten_as_they_may_be_reused() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let (child_id, own) = (child.id(), std::process::id());
        let mut killed = KilledContainer {
            id: String::new(),
            pods: BTreeSet::new(),
            programs: BTreeSet::new(),
            before: BTreeSet::from([child_id, own]),
        };
        assert!(!killed.runs_again() && killed.before.contains(&child_id));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!killed.runs_again());
        assert_eq!(killed.before, BTreeSet::from([own]));
    }
}
