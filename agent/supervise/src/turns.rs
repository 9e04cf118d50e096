//! Limits how many workloads of a machine move to another process at the same time.

use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;

use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;

/// Most workloads that move to another process at the same time, on a machine with many CPUs.
const AT_ONCE: usize = 8;
/// How long other workloads have to wait for a new process that does not serve.
const LONGEST: Duration = Duration::from_secs(10);

/// Limits how many workloads move to another process at the same time. A new process uses CPU time before it
/// serves, while all messages of open connections still pass through the earlier process. So at most half of the
/// CPUs are used for moves. Because of the limit, only a few workloads try a new program that never serves, while
/// the others wait.
#[derive(Clone, Debug)]
pub struct SuccessionTurns(Arc<Semaphore>);

/// The turn of one workload to move. It lasts until this is dropped.
#[derive(Debug)]
pub struct SuccessionTurn(
    #[expect(dead_code, reason = "the turn ends when it is dropped")] oneshot::Sender<()>,
);

impl Default for SuccessionTurns {
    fn default() -> Self {
        // If the number of CPUs is not known, one is assumed.
        let cpus = available_parallelism().map_or(1, usize::from);
        Self::of(cpus.checked_div(2).unwrap_or_default().clamp(1, AT_ONCE))
    }
}

impl SuccessionTurns {
    pub(crate) fn of(at_once: usize) -> Self {
        Self(Arc::new(Semaphore::new(at_once)))
    }

    /// Waits until it is a workload's turn to move. Needs a runtime's `LocalSet`. Cancel safe.
    pub async fn turn(&self) -> SuccessionTurn {
        // Acquiring cannot fail, because the semaphore is never closed.
        let permit = Arc::clone(&self.0).acquire_owned().await.ok();
        let (turn, dropped) = oneshot::channel();
        // Frees the permit when the turn is dropped, or after `LONGEST`.
        tokio::task::spawn_local(async move {
            let _late = timeout(LONGEST, dropped).await;
            drop(permit);
        });
        SuccessionTurn(turn)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use tokio::task::LocalSet;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_few_take_over_at_once_and_one_that_never_serves_keeps_others_waiting_for_a_while() {
        let of_all = async {
            let all = SuccessionTurns::of(AT_ONCE);
            let mut turns = Vec::new();
            for _ in 0..AT_ONCE {
                turns.push(all.turn().await);
            }
            assert!(all.turn().now_or_never().is_none());
            turns.pop();
            turns.push(timeout(Duration::from_secs(1), all.turn()).await.unwrap());
            let waited = tokio::time::Instant::now();
            let _next = all.turn().await;
            assert_eq!(waited.elapsed(), LONGEST);
        };
        LocalSet::new().run_until(of_all).await;
    }
}
