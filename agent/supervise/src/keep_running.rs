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

/// How far the shutdown of a mesh or an instance has come. It only ever grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum StopStage {
    /// There is no shutdown.
    #[default]
    No,
    /// Applications are asked to end; proxies still finish open requests.
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
    /// It ended unexpectedly and will be started again after this time.
    Ended(ExitStatus, Duration),
    /// It ended unexpectedly and is not started again.
    Over(ExitStatus),
    /// It could not be started or waited for, and will be started again after this time.
    Failed(E, Duration),
    /// The caller has asked it to end.
    Stopping,
    /// It has ended after it was asked to, or was not running.
    Stopped,
}

/// How a process is kept running.
#[derive(Debug)]
pub struct RestartRules {
    /// The waits between its starts.
    pub backoff: Backoff,
    /// When it is started again.
    pub restart: RestartPolicy,
    /// The signal that asks it to end.
    pub signal: Signal,
    /// How long it may take to end.
    pub grace: Duration,
    /// The process that must be ended and started again, even if it exits successfully.
    pub condemned: watch::Receiver<Option<Condemned>>,
    /// Once it is set, the process is not started again when it ends: another one has taken over from it.
    pub retired: Rc<Cell<bool>>,
}

/// A process that must be ended and started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Condemned {
    /// Its process id.
    pub pid: i32,
    /// It hangs, so it is killed: it would not react to a signal that it can catch.
    pub hangs: bool,
}

impl RestartRules {
    /// For a part of the mesh: it is started again whenever it ends.
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

/// Starts a process with `start`, and again after waits whenever it ends, until `stop` reaches `until`. Then it asks
/// the process to end and waits for the grace period; [`StopStage::Now`] kills it. Returns how the process ended if it
/// ended before `stop` and the rules do not permit another start.
pub async fn keep_running<E: From<Error>>(
    mut start: impl FnMut() -> Result<RunningProcess, E>,
    mut rules: RestartRules,
    (stop, until): (watch::Receiver<StopStage>, StopStage),
    mut report: impl FnMut(LifeEvent<E>),
) -> Option<ExitStatus> {
    let reached = |level: StopStage| {
        let mut stop = stop.clone();
        async move {
            // If the sender is dropped, the mesh has ended.
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
                            // In both cases the process ends: if it still runs, dropping it kills it.
                            _ = process.end(signal, grace) => {}
                            () = reached(StopStage::Now) => {}
                        }
                        break;
                    }
                };
                // The event is sent after the last line of the output was printed.
                process.printed().await;
                if let Ok(status) = ended
                    // A condemned process counts as failed, whatever its exit code.
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

/// Returns when the process is condemned, with whether it hangs.
async fn is_condemned(condemned: &mut watch::Receiver<Option<Condemned>>, pid: i32) -> bool {
    let is_this = |condemned: &Option<Condemned>| condemned.is_some_and(|one| one.pid == pid);
    if let Ok(this) = condemned.wait_for(is_this).await {
        return this.is_some_and(|condemned| condemned.hangs);
    }
    // Without a sender no process is ever condemned.
    std::future::pending().await
}
