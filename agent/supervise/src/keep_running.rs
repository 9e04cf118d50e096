//! Keeps a process running until it is requested to stop.

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

/// How far the shutdown of a mesh or an instance has come. The value never decreases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum StopStage {
    /// No shutdown was requested.
    #[default]
    No,
    /// Applications are requested to end. Proxies still finish open requests.
    Applications,
    /// Proxies drain and end as well.
    All,
    /// Everything is killed.
    Now,
}

/// What happened to a process.
#[derive(Debug)]
pub enum LifeEvent<E> {
    /// The process was started, with this process id.
    Started(i32),
    /// The process has ended, although no stop was requested, by itself or because it was condemned. It will be
    /// restarted after this time.
    Ended(ExitStatus, Duration),
    /// The process has ended before a stop was requested, and is not restarted, because of its restart policy or
    /// because it is retired.
    Over(ExitStatus),
    /// The process could not be started or waited for, and will be started after this time.
    Failed(E, Duration),
    /// The process was requested to end.
    Stopping,
    /// The process has ended after it was requested to, or was not running.
    Stopped,
}

/// How a process is kept running.
#[derive(Debug)]
pub struct RestartRules {
    /// The waits between its starts.
    pub backoff: Backoff,
    /// Whether it is restarted after it has ended.
    pub restart: RestartPolicy,
    /// The signal that requests it to end.
    pub signal: Signal,
    /// How long it may take to end.
    pub grace: Duration,
    /// Names a process that must be ended. It then counts as failed, whatever its exit status, so it is restarted
    /// unless `restart` is `Never`.
    pub condemned: watch::Receiver<Option<Condemned>>,
    /// Once this is true, the process is not restarted when it ends, because another one has taken over from it.
    pub retired: Rc<Cell<bool>>,
}

/// A process that must be ended, and restarted unless its restart policy is `Never`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Condemned {
    /// Its process id.
    pub pid: i32,
    /// Whether it hangs. Then it is killed, because it would not react to a signal that it can catch.
    pub hangs: bool,
}

impl RestartRules {
    /// The rules for a part of the mesh, which is restarted whenever it ends.
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

/// Starts a process with `start`, and restarts it after waits whenever it ends, until `stop` reaches `until`. Then
/// requests the process to end, and waits for at most the grace period; [`StopStage::Now`] kills it. Returns how
/// the process ended if it ended before `stop` and the rules do not permit another start.
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
                            // In both cases the process ends: if it still runs, it is dropped, which kills it.
                            _ = process.end(signal, grace) => {}
                            () = reached(StopStage::Now) => {}
                        }
                        break;
                    }
                };
                // The event is sent after the last line of the output was printed.
                process.printed().await;
                if let Ok(status) = ended
                    // A condemned process counts as failed, whatever its exit code, so it is restarted unless the
                    // policy is `Never`.
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

/// Returns when the process with this id is condemned. The result is whether it hangs.
async fn is_condemned(condemned: &mut watch::Receiver<Option<Condemned>>, pid: i32) -> bool {
    let is_this = |condemned: &Option<Condemned>| condemned.is_some_and(|one| one.pid == pid);
    if let Ok(this) = condemned.wait_for(is_this).await {
        return this.is_some_and(|condemned| condemned.hangs);
    }
    // If the sender is dropped, no process will ever be condemned.
    std::future::pending().await
}
