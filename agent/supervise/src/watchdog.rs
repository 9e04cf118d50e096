//! Has a process that hangs killed, so that what keeps it running starts it again; and counts such processes.

use std::sync::atomic::{AtomicU64, Ordering};

use leno_handover::MemberState;
use tokio::sync::watch;
use tokio::time::{Interval, MissedTickBehavior, interval};

use crate::heartbeat::{Hang, Heartbeat, LOOK};
use crate::keep_running::Condemned;

/// Watches the process that is kept running ([`crate::keep_running`]).
#[derive(Debug)]
pub struct Watchdog {
    /// What was seen of the process; `None` while none runs.
    heartbeat: Option<Heartbeat>,
    /// How the process hangs, which is killed for that.
    hung: Option<Hang>,
    condemned: watch::Sender<Option<Condemned>>,
}

impl Default for Watchdog {
    fn default() -> Self {
        Self { heartbeat: None, hung: None, condemned: watch::Sender::new(None) }
    }
}

impl Watchdog {
    /// When to look.
    #[must_use]
    pub fn looks() -> Interval {
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        looks
    }

    /// The process that is killed, for the rules by which it is kept running.
    #[must_use]
    pub fn condemned(&self) -> watch::Receiver<Option<Condemned>> {
        self.condemned.subscribe()
    }

    /// A process was started.
    pub fn started(&mut self, pid: i32) {
        self.heartbeat = Some(Heartbeat::of(pid));
    }

    /// The process has reported something.
    pub fn heard(&mut self, state: MemberState) {
        if let Some(heartbeat) = &mut self.heartbeat {
            heartbeat.heard(state == MemberState::Alive);
        }
    }

    /// Looks at the process, and condemns it if it hangs; which one that is and how it hangs, once.
    pub fn look(&mut self) -> Option<(i32, Hang)> {
        let heartbeat = self.heartbeat.as_mut().filter(|_| self.hung.is_none())?;
        let (how, pid) = (heartbeat.look()?, heartbeat.pid());
        Some(self.condemn(pid, how))
    }

    /// Condemns the process, which receives no messages, unless a debugger holds it up; which one that is and how it
    /// hangs, once.
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

    /// The process has ended; how it hung, if it was killed for that.
    pub fn ended(&mut self) -> Option<Hang> {
        self.heartbeat = None;
        // A later process may have the same number.
        self.condemned.send_replace(None);
        self.hung.take()
    }
}

/// How many processes of proxies, or of brokers, were replaced because they hung.
#[derive(Debug, Default)]
pub struct HungProcesses(AtomicU64);

impl HungProcesses {
    /// Counts one.
    pub fn count(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds the series of this name to a page of metrics; `whose`: what was replaced.
    pub fn put(&self, page: &mut String, name: &str, whose: &str) {
        let why = "because a signal had stopped them, or they reported nothing";
        self.put_as(page, name, &format!("{whose} that were replaced {why}."));
    }

    /// The same for brokers, which report nothing.
    pub fn put_brokers(&self, page: &mut String, name: &str) {
        let help = "Brokers that were replaced because they received no messages for 5 s.";
        self.put_as(page, name, help);
    }

    fn put_as(&self, page: &mut String, name: &str, help: &str) {
        let count = self.0.load(Ordering::Relaxed);
        leno_program::Family::counter(page, name, help).sample(&[], count);
    }
}
