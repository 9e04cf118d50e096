//! Waits for a state of a cluster, with a time limit and reports of progress.

use std::time::Duration;

use anyhow::{Result, bail};
use tokio::time::Instant;

use crate::interrupt::Interrupt;

/// Time between two polls; each makes one request or a few.
const LOOK: Duration = Duration::from_millis(500);
/// Time between two reports of progress.
const WORD: Duration = Duration::from_secs(10);

/// How long an interrupt may go unnoticed during a poll.
const NOTICED: Duration = Duration::from_millis(100);

/// The result of a poll.
pub(super) enum PollResult<T> {
    /// The expected state.
    There(T),
    /// The state is not reached yet; the text describes the progress.
    NotYet(String),
}

/// Repeats a poll or a request until it has the expected result. Reports progress on standard error every 10 s.
///
/// # Errors
/// If the state is not reached in time, in which case the error has the last progress; if a poll fails; after an
/// interrupt.
pub(super) async fn repeated<T>(
    (what, limit): (&str, Duration),
    interrupt: &Interrupt,
    mut look: impl AsyncFnMut() -> Result<PollResult<T>>,
) -> Result<T> {
    let begin = Instant::now();
    let mut said = begin;
    loop {
        let seen = tokio::select! {
            seen = look() => seen?,
            error = raised(interrupt) => return Err(error),
        };
        let far = match seen {
            PollResult::There(found) => return Ok(found),
            PollResult::NotYet(far) => far,
        };
        if begin.elapsed() > limit {
            bail!("{what}: waited for {} s: {far}", limit.as_secs());
        }
        if said.elapsed() > WORD {
            said = Instant::now();
            eprintln!("  {what}: {far}");
        }
        interrupt.check()?;
        tokio::time::sleep(LOOK).await;
    }
}

/// Sleeps, but returns early after an interrupt.
pub(super) async fn pass(time: Duration, interrupt: &Interrupt) -> Result<()> {
    let end = Instant::now() + time;
    let left = || Some(end.duration_since(Instant::now())).filter(|left| !left.is_zero());
    while let Some(left) = left() {
        interrupt.check()?;
        tokio::time::sleep(left.min(LOOK)).await;
    }
    interrupt.check()?;
    Ok(())
}

/// The result of a future within a time limit.
///
/// # Errors
/// If the future does not complete in time, or fails, or after an interrupt.
pub(super) async fn within<T>(
    time: Duration,
    what: impl Future<Output = Result<T>>,
    interrupt: &Interrupt,
) -> Result<T> {
    tokio::select! {
        done = what => done,
        passed = pass(time, interrupt) => {
            passed?;
            bail!("no answer within {} s", time.as_secs())
        }
    }
}

/// Waits for an interrupt.
async fn raised(interrupt: &Interrupt) -> anyhow::Error {
    loop {
        if let Err(error) = interrupt.check() {
            return error.into();
        }
        tokio::time::sleep(NOTICED).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_wait_has_a_limit_and_reports_progress() {
        let interrupt = Interrupt::default();
        let pods = |limit| ("pods", limit);
        let mut looks = 0;
        let found = repeated(pods(Duration::from_secs(60)), &interrupt, async || {
            looks += 1;
            Ok(if looks == 2 {
                PollResult::There(looks)
            } else {
                PollResult::NotYet("1 of 2".into())
            })
        });
        assert_eq!(found.await.unwrap(), 2);
        let never = async || Ok(PollResult::<()>::NotYet("1 of 2 ready".into()));
        let error =
            repeated(pods(Duration::ZERO), &interrupt, never).await.unwrap_err().to_string();
        assert_eq!(error, "pods: waited for 0 s: 1 of 2 ready");
        interrupt.raise();
        let error = repeated(pods(Duration::from_secs(60)), &interrupt, never).await.unwrap_err();
        assert!(error.is::<crate::interrupt::Interrupted>());
    }

    #[tokio::test(start_paused = true)]
    async fn an_interrupt_or_the_limit_ends_a_poll_that_hangs() {
        let (interrupt, limit) = (Interrupt::default(), Duration::from_secs(10));
        let never = || std::future::pending::<Result<()>>();
        let late = within(limit, never(), &interrupt).await.unwrap_err().to_string();
        assert_eq!(late, "no answer within 10 s");
        within(limit, async { Ok(()) }, &interrupt).await.unwrap();
        interrupt.raise();
        let error = within(limit, never(), &interrupt).await.unwrap_err();
        assert!(error.is::<crate::interrupt::Interrupted>(), "{error}");
        let look = async || std::future::pending::<Result<PollResult<()>>>().await;
        let error = repeated(("pods", limit), &interrupt, look).await.unwrap_err();
        assert!(error.is::<crate::interrupt::Interrupted>(), "{error}");
    }
}
