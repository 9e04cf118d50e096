//! Keeps one process running until it is told to stop.

use std::process::ExitStatus;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::backoff::Backoff;
use crate::error::{Error, Result};
use crate::process::Running;

/// How far the end of a mesh or an instance has come. It only ever grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stop {
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
pub enum Event {
    /// It was started, with this process id.
    Started(i32),
    /// It ended by itself and will be started again after this time.
    Ended(ExitStatus, Duration),
    /// It could not be started or waited for, and will be started again after this time.
    Failed(Error, Duration),
    /// It was asked to end.
    Stopping,
    /// It has ended as it was asked to, or was not running.
    Stopped,
}

/// Starts a process with `start`, and again with waits whenever it ends, until `stop` reaches
/// `until`; then asks it to end and gives it `grace`. [`Stop::Now`] kills it.
pub async fn keep_running(
    mut start: impl FnMut() -> Result<Running>,
    mut backoff: Backoff,
    (stop, until): (watch::Receiver<Stop>, Stop),
    grace: Duration,
    mut report: impl FnMut(Event),
) {
    let reached = |level: Stop| {
        let mut stop = stop.clone();
        async move {
            // A sender that is gone is the end of the mesh.
            let _ = stop.wait_for(|now| *now >= level).await;
        }
    };
    while *stop.borrow() < until {
        backoff.started(Instant::now());
        let wait = match start() {
            Err(error) => {
                let wait = backoff.ended(Instant::now());
                report(Event::Failed(error, wait));
                wait
            }
            Ok(mut process) => {
                report(Event::Started(process.pid()));
                let ended = tokio::select! {
                    ended = process.ended() => ended,
                    () = reached(until) => {
                        report(Event::Stopping);
                        tokio::select! {
                            // Either way it is over; a process that is left is killed by the drop.
                            _ = process.end(grace) => {}
                            () = reached(Stop::Now) => {}
                        }
                        break;
                    }
                };
                let wait = backoff.ended(Instant::now());
                match ended {
                    Ok(status) => report(Event::Ended(status, wait)),
                    Err(error) => report(Event::Failed(error, wait)),
                }
                wait
            }
        };
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = reached(until) => break,
        }
    }
    report(Event::Stopped);
}
