//! How many proxies are replaced at once by `leno upgrade --proxies`.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;

/// How many instances start a new proxy process at the same time. Until the new process serves, it uses
/// CPU and memory in addition to the old one, and it requests a certificate. The limit also means that
/// only a few instances try a new program that never serves, while the others wait.
const AT_ONCE: usize = 8;
/// How long a new process that does not serve makes other instances wait.
const LONGEST: Duration = Duration::from_secs(30);

/// Limits how many instances replace their proxy at the same time.
#[derive(Debug)]
pub struct UpgradeTurns(Arc<Semaphore>);

/// The turn of one instance, until it is dropped.
#[derive(Debug)]
pub(super) struct UpgradeTurn(
    #[expect(dead_code, reason = "the turn ends when it is dropped")] oneshot::Sender<()>,
);

impl Default for UpgradeTurns {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(AT_ONCE)))
    }
}

impl UpgradeTurns {
    /// Waits for the turn of an instance. Cancel safe.
    pub(super) async fn turn(&self) -> UpgradeTurn {
        // The semaphore is never closed.
        let permit = Arc::clone(&self.0).acquire_owned().await.ok();
        let (turn, dropped) = oneshot::channel();
        // Frees the permit when the turn is dropped, or after `LONGEST`.
        tokio::task::spawn_local(async move {
            let _late = timeout(LONGEST, dropped).await;
            drop(permit);
        });
        UpgradeTurn(turn)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use tokio::task::LocalSet;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_few_are_replaced_at_once_and_one_that_never_serves_keeps_others_waiting_for_a_while()
    {
        let of_all = async {
            let upgrades = UpgradeTurns::default();
            let mut turns = Vec::new();
            for _ in 0..AT_ONCE {
                turns.push(upgrades.turn().await);
            }
            assert!(upgrades.turn().now_or_never().is_none());
            turns.pop();
            turns.push(timeout(Duration::from_secs(1), upgrades.turn()).await.unwrap());
            let waited = tokio::time::Instant::now();
            let _next = upgrades.turn().await;
            assert_eq!(waited.elapsed(), LONGEST);
        };
        LocalSet::new().run_until(of_all).await;
    }
}
