//! Killing containers, and seeing the program of one run again.
//!
//! ```text
//! kill ── kubelet, runtime ── runc ── exec of the same program ── first request served
//!                                     seen here                  seen by the station
//! ```
//! Both are moments of CLOCK_MONOTONIC, which the pods of a node have in common.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::Signal;
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use super::containers::{cgroups, pids, places};
use super::look::program;
use crate::counters::processes;

/// How long a container may take to be there again: kubelets wait 10 s before the second time.
pub(super) const LIMIT: Duration = Duration::from_secs(30);
/// Between two looks: to this, and what a look at all processes takes, a start is known.
const LOOK: Duration = Duration::from_millis(2);

/// What became of a start that was asked for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Start {
    /// There is none of this ID.
    #[default]
    Unknown,
    /// The container was killed, and the program does not run yet.
    Waiting,
    /// When the look began that saw it run, in nanoseconds of CLOCK_MONOTONIC.
    Seen(u64),
    /// It was not, and why.
    Failed(String),
}

/// Kills every process of these containers, now.
///
/// # Errors
/// When one of them has no process: none is killed then.
pub(super) fn kill(containers: &[String]) -> Result<()> {
    let found = pids(containers.iter().map(String::as_str));
    if let Some(none) = containers.iter().find(|id| !found.contains_key(*id)) {
        bail!("no process of container {none} is here");
    }
    for pid in found.into_values().flatten() {
        // One that has ended meanwhile is dead.
        let _gone = nix::sys::signal::kill(Pid::from_raw(i32::try_from(pid)?), Signal::SIGKILL);
    }
    Ok(())
}

/// A container that was just killed.
pub(super) struct Killed {
    id: String,
    /// The cgroups of its pod.
    pods: BTreeSet<String>,
    /// What ran in it, by path and size: runc, which runs first in a container, is another.
    programs: BTreeSet<(PathBuf, u64)>,
    /// The processes that were there before, and still are.
    before: BTreeSet<u32>,
}

impl Killed {
    /// Kills a container, having looked at what runs in it.
    ///
    /// # Errors
    /// When it has no process.
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
        kill(&[id.to_owned()])?;
        Ok(killed)
    }

    /// Waits until one of its programs runs in another container of the pod.
    pub(super) fn follow(mut self, limit: Duration) -> Start {
        let begun = Instant::now();
        while begun.elapsed() < limit {
            // What the look itself takes would be missing from the start.
            let at = match clock_gettime(ClockId::CLOCK_MONOTONIC) {
                Ok(now) => Duration::from(now).as_nanos() as u64,
                Err(error) => return Start::Failed(error.to_string()),
            };
            if self.runs_again() {
                return Start::Seen(at);
            }
            thread::sleep(LOOK);
        }
        Start::Failed(format!("no program of container {} ran again within {limit:?}", self.id))
    }

    fn runs_again(&mut self) -> bool {
        let now: BTreeSet<u32> = processes().collect();
        // An ID that has become free may be given to whom is waited for.
        self.before.retain(|pid| now.contains(pid));
        // Each look again: a process becomes another program when it executes one.
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
    fn the_id_of_a_process_that_has_ended_is_not_taken_for_that_of_one_of_before() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let (child_id, own) = (child.id(), std::process::id());
        let mut killed = Killed {
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
