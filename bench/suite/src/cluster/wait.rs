//! Waits until a cluster is in a certain state, with a time limit and reports of progress.

use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use leno_program::note;
use tokio::time::{Instant, timeout};

/// The time between two polls. A poll makes one request or a few.
const LOOK: Duration = Duration::from_millis(500);
/// Time between two reports of progress.
const WORD: Duration = Duration::from_secs(10);

pub(super) enum PollResult<T> {
    /// The expected state.
    There(T),
    /// The state is not reached yet; the text describes the progress.
    NotYet(String),
}

/// Repeats a poll or a request until it has the expected result. Reports progress on standard error every 10 s.
///
/// # Errors
/// If the state is not reached in time, in which case the error has the last progress; if a poll fails.
pub(super) async fn repeated<T>(
    (what, limit): (&str, Duration),
    mut look: impl AsyncFnMut() -> Result<PollResult<T>>,
) -> Result<T> {
    let begin = Instant::now();
    let mut said = begin;
    loop {
        let far = match look().await? {
            PollResult::There(found) => return Ok(found),
            PollResult::NotYet(far) => far,
        };
        ensure!(begin.elapsed() <= limit, "{what}: waited for {} s: {far}", limit.as_secs());
        if said.elapsed() > WORD {
            said = Instant::now();
            note!("  {what}: {far}");
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// The result of a future that must complete within a time limit.
pub(super) async fn within<T>(time: Duration, what: impl Future<Output = Result<T>>) -> Result<T> {
    timeout(time, what).await.unwrap_or_else(|_| Err(late(time)))
}

pub(super) fn late(limit: Duration) -> anyhow::Error {
    anyhow!("no answer within {} s", limit.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_wait_has_a_limit_and_reports_progress() {
        let mut looks = 0;
        let found = repeated(("pods", Duration::from_secs(60)), async || {
            looks += 1;
            Ok(if looks == 2 {
                PollResult::There(looks)
            } else {
                PollResult::NotYet("1 of 2".into())
            })
        });
        assert_eq!(found.await.unwrap(), 2);
        let never = async || Ok(PollResult::<()>::NotYet("1 of 2 ready".into()));
        let error = repeated(("pods", Duration::ZERO), never).await.unwrap_err().to_string();
        assert_eq!(error, "pods: waited for 0 s: 1 of 2 ready");
        let hangs = std::future::pending::<Result<()>>();
        let late = within(Duration::from_secs(10), hangs).await.unwrap_err().to_string();
        assert_eq!(late, "no answer within 10 s");
    }
}
