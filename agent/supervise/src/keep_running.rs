//! Keeps one process running until it is told to stop.

use std::cell::Cell;
use std::process::ExitStatus;
use std::rc::Rc;
use std::time::{Duration, Instant};

use leno_resources::RestartPolicy;
use nix::sys::signal::Signal;
use tokio::sync::watch;

use crate::backoff::Backoff;
use crate::error::Error;
use crate::process::RunningProcess;

/// How far the end of a mesh or an instance has come. It only ever grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum StopStage {
    /// Not at all.
    #[default]
    No,
    /// Applications are asked to end; proxies still serve what is under way.
    Applications,
    /// Proxies drain and end as well.
    All,
    /// Everything is killed.
    Now,
}

/// What happened to a process.
#[derive(Debug)]
pub enum LifeEvent<E> {
    /// It was started, with this process id.
    Started(i32),
    /// It ended by itself and will be started again after this time.
    Ended(ExitStatus, Duration),
    /// It ended by itself and is not started again.
    Over(ExitStatus),
    /// It could not be started or waited for, and will be started again after this time.
    Failed(E, Duration),
    /// It was asked to end.
    Stopping,
    /// It has ended as it was asked to, or was not running.
    Stopped,
}

/// How a process is kept running.
#[derive(Debug)]
pub struct RestartRules {
    /// The waits between its starts.
    pub backoff: Backoff,
    /// When it is started again.
    pub restart: RestartPolicy,
    /// What asks it to end.
    pub signal: Signal,
    /// How long it may take to end.
    pub grace: Duration,
    /// The process that is to be ended and started again, although nothing is wrong with its end.
    pub condemned: watch::Receiver<Option<Condemned>>,
    /// Once it is set, the process is not started again when it ends: another one has taken over from it.
    pub retired: Rc<Cell<bool>>,
}

/// A process that is to be ended and started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Condemned {
    /// Its process id.
    pub pid: i32,
    /// It is killed: it would not obey a signal that it can catch.
    pub hangs: bool,
}

impl RestartRules {
    /// For a part of the mesh: started again whenever it ends.
    #[must_use]
    pub fn always(backoff: Backoff, grace: Duration) -> Self {
        let condemned = watch::channel(None).1;
        let (restart, signal, retired) = (RestartPolicy::Always, Signal::SIGTERM, Rc::default());
        Self { backoff, restart, signal, grace, condemned, retired }
    }

    fn is_over(&self, status: ExitStatus) -> bool {
        match self.restart {
            _ if self.retired.get() => true,
            RestartPolicy::Always => false,
            RestartPolicy::OnFailure => status.success(),
            RestartPolicy::Never => true,
        }
    }
}

/// Starts a process with `start`, and again with waits whenever it ends, until `stop` reaches
/// `until`; then asks it to end and gives it its grace. [`StopStage::Now`] kills it. Returns how it ended
/// where the rules have it not started again, before `stop` was reached.
pub async fn keep_running<E: From<Error>>(
    mut start: impl FnMut() -> Result<RunningProcess, E>,
    mut rules: RestartRules,
    (stop, until): (watch::Receiver<StopStage>, StopStage),
    mut report: impl FnMut(LifeEvent<E>),
) -> Option<ExitStatus> {
    let reached = |level: StopStage| {
        let mut stop = stop.clone();
        async move {
            // A sender that is gone is the end of the mesh.
            let _ = stop.wait_for(|now| *now >= level).await;
        }
    };
    while *stop.borrow() < until && !rules.retired.get() {
        rules.backoff.started(Instant::now());
        let wait = match start() {
            Err(error) => {
                let wait = rules.backoff.ended(Instant::now());
                report(LifeEvent::Failed(error, wait));
                wait
            }
            Ok(mut process) => {
                let pid = process.pid();
                report(LifeEvent::Started(pid));
                let (signal, grace) = (rules.signal, rules.grace);
                let (ended, condemned) = tokio::select! {
                    ended = process.ended() => (ended, false),
                    hangs = is_condemned(&mut rules.condemned, pid) => {
                        let grace = if hangs { Duration::ZERO } else { grace };
                        let ended = tokio::select! {
                            ended = process.end(signal, grace) => ended,
                            () = reached(StopStage::Now) => break,
                        };
                        (ended, true)
                    }
                    () = reached(until) => {
                        report(LifeEvent::Stopping);
                        tokio::select! {
                            // Either way it is over; a process that is left is killed by the drop.
                            _ = process.end(signal, grace) => {}
                            () = reached(StopStage::Now) => {}
                        }
                        break;
                    }
                };
                // What is reported has the last line.
                process.printed().await;
                if let Ok(status) = ended
                    // A process that was ended because it did not live has failed, whatever it says.
                    && (rules.restart == RestartPolicy::Never || !condemned)
                    && rules.is_over(status)
                {
                    report(LifeEvent::Over(status));
                    return Some(status);
                }
                let wait = rules.backoff.ended(Instant::now());
                match ended {
                    Ok(status) => report(LifeEvent::Ended(status, wait)),
                    Err(error) => report(LifeEvent::Failed(error.into(), wait)),
                }
                wait
            }
        };
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = reached(until) => break,
        }
    }
    report(LifeEvent::Stopped);
    None
}

/// Comes back when the process is condemned; whether it hangs.
async fn is_condemned(condemned: &mut watch::Receiver<Option<Condemned>>, pid: i32) -> bool {
    let is_this = |condemned: &Option<Condemned>| condemned.is_some_and(|one| one.pid == pid);
    if let Ok(this) = condemned.wait_for(is_this).await {
        return this.is_some_and(|condemned| condemned.hangs);
    }
    // Without a sender no process is.
    std::future::pending().await
}
