//! Checks whether an application takes traffic and is alive, by its ports and its probes.

use std::cell::RefCell;
use std::time::Duration;

use leno_supervise::Condemned;

use super::application::ApplicationState;
use super::{InstanceChange, InstanceResources, InstanceTask};
use crate::forward::ForwardTarget;
use crate::listening::{self, Listeners, OneFamily};
use crate::plan::InstanceProbe;
use crate::probe::Prober;

/// How long to wait until an application without a readiness probe listens on its declared ports. After that it
/// counts as running, even though connections to a closed port fail.
const LISTEN_BOUND: Duration = Duration::from_secs(5);
/// First interval between readiness probes of an application that has not been ready yet. The interval doubles up
/// to the probe's period, so that an application that starts quickly is used at once.
const FIRST_WAIT: Duration = Duration::from_millis(50);
/// How often the ports of an application are checked, because it may close a port later.
const PORTS_POLL: Duration = Duration::from_secs(5);
/// How often the ports are checked if the application has no proxy. It may open a port in the second address
/// family later, and clients must not use that family before.
const FAMILIES_POLL: Duration = Duration::from_secs(1);
/// How long an application may take to become ready before a line with the reason is printed.
const PATIENCE: Duration = Duration::from_secs(10);

/// What was last reported about the ports of a process. At the start no port counts as closed.
#[derive(Default)]
struct ReportedPorts {
    closed: Vec<u16>,
    families: Option<OneFamily>,
}

impl InstanceTask {
    /// Reports whether the process takes traffic. Ends the process if its liveness probe fails.
    pub(super) async fn follow(
        &self,
        place: &InstanceResources,
        pid: i32,
        watched: &ApplicationState,
    ) {
        let known = RefCell::default();
        tokio::join!(
            self.readiness(place, pid, &known),
            self.liveness(place, pid, watched),
            self.watch_ports(pid, &known)
        );
    }

    async fn watch_ports(&self, pid: i32, known: &RefCell<ReportedPorts>) {
        if self.instance.listening.is_empty() {
            return;
        }
        let poll = if self.instance.launch.meshed { PORTS_POLL } else { FAMILIES_POLL };
        // The first check comes after an interval: a new process needs time to open its ports.
        loop {
            tokio::time::sleep(poll).await;
            self.report_ports(pid, known).await;
        }
    }

    /// Reports changes: which ports are closed and, for an application without a proxy, which are open in only one
    /// address family.
    async fn report_ports(&self, pid: i32, known: &RefCell<ReportedPorts>) {
        let ports = &self.instance.listening;
        if ports.is_empty() {
            return;
        }
        let listeners = Listeners::of(pid);
        if !self.instance.launch.meshed {
            let families = listeners.one_family(ports);
            if known.borrow_mut().families.replace(families.clone()).as_ref() != Some(&families) {
                self.report(InstanceChange::Families(families)).await;
            }
        }
        let closed = listeners.closed(ports);
        if std::mem::replace(&mut known.borrow_mut().closed, closed.clone()) != closed {
            self.report(InstanceChange::Closed(closed)).await;
        }
    }

    /// Reports that the application takes traffic. The state of its ports is reported before, so that no client
    /// uses an address family in which they are closed.
    async fn running(&self, pid: i32, known: &RefCell<ReportedPorts>) {
        self.report_ports(pid, known).await;
        self.report(InstanceChange::Running).await;
    }

    async fn readiness(&self, place: &InstanceResources, pid: i32, known: &RefCell<ReportedPorts>) {
        let Some(probe) = &self.instance.launch.readiness else {
            self.until_listening(pid).await;
            return self.running(pid, known).await;
        };
        let label = &self.instance.label;
        tokio::time::sleep(probe.delay).await;
        let begun = tokio::time::Instant::now();
        let (mut was_ready, mut ready, mut complained) = (false, false, false);
        let (mut successes, mut failures) = (0, 0);
        let mut wait = FIRST_WAIT.min(probe.period);
        loop {
            match self.ask(place, pid, probe).await {
                Ok(()) => {
                    (successes, failures) = (successes + 1, 0);
                    if !ready && successes >= probe.successes {
                        if was_ready {
                            self.say(&format!("{label} is ready again"));
                        }
                        (ready, was_ready) = (true, true);
                        self.running(pid, known).await;
                    }
                }
                Err(reason) => {
                    (successes, failures) = (0, failures + 1);
                    if ready && failures >= probe.failures {
                        ready = false;
                        let times = times_in_a_row(failures);
                        self.say(&format!(
                            "{label} is no longer ready: {reason}{times}; it gets no traffic until \
                             it is ready again"
                        ));
                    }
                    if !ready {
                        let times = times_in_a_row(failures);
                        self.report(InstanceChange::NotReady(format!(
                            "not ready: {reason}{times}"
                        )))
                        .await;
                    }
                    if !was_ready && !complained && begun.elapsed() >= PATIENCE {
                        complained = true;
                        self.say(&format!("{label} is not ready: {reason}"));
                    }
                }
            }
            tokio::time::sleep(if was_ready { probe.period } else { wait }).await;
            wait = (wait * 2).min(probe.period);
        }
    }

    async fn liveness(&self, place: &InstanceResources, pid: i32, watched: &ApplicationState) {
        let Some(probe) = &self.instance.launch.liveness else { return };
        tokio::time::sleep(probe.delay).await;
        let mut failures = 0;
        loop {
            match self.ask(place, pid, probe).await {
                Ok(()) => failures = 0,
                Err(reason) => {
                    failures += 1;
                    if failures >= probe.failures {
                        let reason = format!("{reason}{}", times_in_a_row(failures));
                        self.say(&format!(
                            "{} is not alive: {reason}; ending it",
                            self.instance.label
                        ));
                        self.report(InstanceChange::NotReady(format!("not alive: {reason}"))).await;
                        watched.reason.replace(Some(reason));
                        watched.condemned.send_replace(Some(Condemned { pid, hangs: false }));
                        return;
                    }
                }
            }
            tokio::time::sleep(probe.period).await;
        }
    }

    async fn ask(
        &self,
        place: &InstanceResources,
        pid: i32,
        probe: &InstanceProbe,
    ) -> Result<(), String> {
        let target = ForwardTarget {
            instance: self.instance.name.to_string(),
            netns: place.netns.name().to_owned(),
            addresses: self.instance.addresses.iter().collect(),
            port: 0,
        };
        let task = |command: &[String]| self.task(place, command);
        Prober { probe, target, pid, task }.ask().await
    }

    /// Returns when the application listens on its declared ports, or when [`LISTEN_BOUND`] has passed.
    async fn until_listening(&self, pid: i32) {
        let closed = listening::until(pid, &self.instance.listening, LISTEN_BOUND).await;
        if !closed.is_empty() {
            let label = &self.instance.label;
            let seconds = LISTEN_BOUND.as_secs();
            let ports = listening::shown(&closed);
            self.say(&format!(
                "{label} does not listen on {ports} after {seconds} s; it gets traffic nevertheless"
            ));
        }
    }
}

fn times_in_a_row(number: u32) -> String {
    match number {
        0 | 1 => String::new(),
        _ => format!(", {number} times in a row"),
    }
}
