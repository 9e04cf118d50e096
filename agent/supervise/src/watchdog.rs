//! Makes a process that hangs be killed, so that [`crate::keep_running`] restarts it. Counts such processes.

use std::sync::atomic::{AtomicU64, Ordering};

use leno_handover::MemberState;
use tokio::sync::watch;
use tokio::time::{Interval, MissedTickBehavior, interval};

use crate::heartbeat::{Hang, Heartbeat, LOOK};
use crate::keep_running::Condemned;

/// Watches a process that [`crate::keep_running`] keeps running.
#[derive(Debug)]
pub struct Watchdog {
    /// The state of the process's heartbeat; `None` while no process runs.
    heartbeat: Option<Heartbeat>,
    /// How the process hangs, if it is being killed for that.
    hung: Option<Hang>,
    condemned: watch::Sender<Option<Condemned>>,
}

impl Default for Watchdog {
    fn default() -> Self {
        Self { heartbeat: None, hung: None, condemned: watch::Sender::new(None) }
    }
}

impl Watchdog {
    /// Ticks whenever the process must be checked.
    #[must_use]
    pub fn looks() -> Interval {
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        looks
    }

    /// Names the process that must be killed, for [`crate::RestartRules`].
    #[must_use]
    pub fn condemned(&self) -> watch::Receiver<Option<Condemned>> {
        self.condemned.subscribe()
    }

    /// Records that a process was started.
    pub fn started(&mut self, pid: i32) {
        self.heartbeat = Some(Heartbeat::of(pid));
    }

    /// Records that the process has sent a report.
    pub fn heard(&mut self, state: MemberState) {
        if let Some(heartbeat) = &mut self.heartbeat {
            heartbeat.heard(state == MemberState::Alive);
        }
    }

    /// Checks the process, and has it killed if it hangs. Returns, once, its id and how it hangs.
    pub fn look(&mut self) -> Option<(i32, Hang)> {
        let heartbeat = self.heartbeat.as_mut().filter(|_| self.hung.is_none())?;
        let (how, pid) = (heartbeat.look()?, heartbeat.pid());
        Some(self.condemn(pid, how))
    }

    /// Has the process killed if it receives no messages, unless a debugger holds it. Returns once: the process's
    /// ID, and how it hangs.
    pub fn is_deaf(&mut self) -> Option<(i32, Hang)> {
        let heartbeat = self.heartbeat.as_ref().filter(|_| self.hung.is_none())?;
        let (how, pid) = (heartbeat.deaf()?, heartbeat.pid());
        Some(self.condemn(pid, how))
    }

    fn condemn(&mut self, pid: i32, how: Hang) -> (i32, Hang) {
        self.hung = Some(how);
        self.condemned.send_replace(Some(Condemned { pid, hangs: true }));
        (pid, how)
    }

    /// Records that the process has ended. Returns how it hung, if it was killed for that.
    pub fn ended(&mut self) -> Option<Hang> {
        self.heartbeat = None;
        // A later process may have the same id.
        self.condemned.send_replace(None);
        self.hung.take()
    }
}

/// Counts proxies or brokers that were replaced because they hung.
#[derive(Debug, Default)]
pub struct HungProcesses(AtomicU64);

impl HungProcesses {
    /// Counts one process.
    pub fn count(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds the series with this name to a page of metrics. `whose` describes the processes that were replaced.
    pub fn put(&self, page: &mut String, name: &str, whose: &str) {
        let why = "because a signal had stopped them, or they reported nothing";
        self.put_as(page, name, &format!("{whose} that were replaced {why}."));
    }

    /// As [`put`](Self::put), for brokers, which send no reports.
    pub fn put_brokers(&self, page: &mut String, name: &str) {
        let help = "Brokers that were replaced because they received no messages for 5 s.";
        self.put_as(page, name, help);
    }

    fn put_as(&self, page: &mut String, name: &str, help: &str) {
        let count = self.0.load(Ordering::Relaxed);
        leno_program::Family::counter(page, name, help).sample(&[], count);
    }
}
