//! Kills processes that a proxy has started and that outlive it. The control group cannot be killed as a whole,
//! because two proxy processes run in it while one takes over from the other.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs;

use leno_supervise::{Cgroup, LifeEvent, status_field};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Most ancestors of a process that are examined. Real process trees are not as deep.
const MAX_ANCESTORS: usize = 64;

/// The running processes of an instance's proxy and of its broker.
#[derive(Debug, Default)]
pub(super) struct ProxyProcesses(RefCell<BTreeSet<i32>>);

/// One of these processes. It is in the set from its start to its end, and again after each restart.
#[derive(Debug)]
pub(super) struct ProxyRun<'p> {
    all: &'p ProxyProcesses,
    cgroup: &'p Cgroup,
    pid: Option<i32>,
}

impl ProxyProcesses {
    /// Follows a process that will run in the control group `cgroup`.
    pub(super) fn run<'p>(&'p self, cgroup: &'p Cgroup) -> ProxyRun<'p> {
        ProxyRun { all: self, cgroup, pid: None }
    }

    /// The processes of the group that are neither a proxy, a broker, nor a descendant of one.
    fn left_behind(&self, cgroup: &Cgroup) -> Vec<Pid> {
        let known = self.0.borrow();
        let comes_from_one = |pid: &Pid| {
            let ancestors = std::iter::successors(Some(pid.as_raw()), |pid| parent(*pid));
            ancestors.take(MAX_ANCESTORS).any(|pid| known.contains(&pid))
        };
        cgroup.processes().into_iter().filter(|pid| !comes_from_one(pid)).collect()
    }
}

impl ProxyRun<'_> {
    /// Updates the set at an event of the process.
    pub(super) fn follow<E>(&mut self, event: &LifeEvent<E>) {
        match event {
            LifeEvent::Started(pid) => {
                self.all.0.borrow_mut().insert(*pid);
                self.pid = Some(*pid);
            }
            LifeEvent::Stopping => {}
            LifeEvent::Ended(..)
            | LifeEvent::Over(_)
            | LifeEvent::Failed(..)
            | LifeEvent::Stopped => {
                self.end();
            }
        }
    }

    /// Handles the end of the process: kills the processes that it has left behind. A process that is forked at
    /// this moment may be missed; it is killed when the instance or its next proxy process ends.
    fn end(&mut self) {
        let Some(pid) = self.pid.take() else { return };
        self.all.0.borrow_mut().remove(&pid);
        for left in self.all.left_behind(self.cgroup) {
            // The process may have ended since it was listed.
            let _ended = kill(left, Signal::SIGKILL);
        }
    }
}

impl Drop for ProxyRun<'_> {
    fn drop(&mut self) {
        self.end();
    }
}

/// The parent of a process; `None` if the process has ended or has no parent.
fn parent(pid: i32) -> Option<i32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status_field(&status, "PPid")?.parse().ok().filter(|parent| *parent > 0)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};
    use std::process::{Command, Stdio};

    use super::*;

    /// Whether the process has ended, even if it was not reaped.
    fn has_ended(pid: i32) -> bool {
        let status = fs::read_to_string(format!("/proc/{pid}/status"));
        status.map_or(true, |status| status.contains("State:\tZ"))
    }

    /// The test uses a plain folder that lists processes like a control group.
    #[test]
    fn processes_left_behind_by_a_proxy_are_killed_and_those_of_others_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let cgroup = Cgroup::at(folder.path().to_owned());
        let shell = |script: &str| {
            let mut shell = Command::new("sh");
            let mut shell = shell.args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
            let mut line = String::new();
            BufReader::new(shell.stdout.take().unwrap()).read_line(&mut line).unwrap();
            (shell, line.trim().parse::<i32>().unwrap())
        };
        let (mut runs, of_running) = shell("sleep 600 & echo $!; wait");
        let (mut ends, left) = shell("sleep 600 & echo $!");
        let id = |child: &std::process::Child| i32::try_from(child.id()).unwrap();
        let (runs_id, ends_id) = (id(&runs), id(&ends));
        ends.wait().unwrap();
        fs::write(folder.path().join("cgroup.procs"), format!("{runs_id}\n{of_running}\n{left}\n"))
            .unwrap();
        let all = ProxyProcesses::default();
        let (mut first, mut second) = (all.run(&cgroup), all.run(&cgroup));
        first.follow::<()>(&LifeEvent::Started(runs_id));
        second.follow::<()>(&LifeEvent::Started(ends_id));
        assert_eq!(all.left_behind(&cgroup), [Pid::from_raw(left)]);
        second.follow::<()>(&LifeEvent::Stopped);
        while !has_ended(left) {
            std::thread::yield_now();
        }
        assert_eq!(parent(of_running), Some(runs_id));
        // Dropping a `ProxyRun` counts as the end of its process.
        drop(first);
        while !has_ended(of_running) {
            std::thread::yield_now();
        }
        runs.wait().unwrap();
    }
}
