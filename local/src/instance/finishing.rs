//! Limits how many replaced proxies of an instance finish their open streams at a time.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use leno_types::MAX_FINISHING;
use tokio::sync::oneshot;

/// How long a proxy may finish streams before it counts. Most finish their last requests within seconds.
const UNCOUNTED: Duration = Duration::from_secs(60);

/// Senders that make a proxy end, by the number of its process or membership.
#[derive(Debug, Default)]
pub(super) struct Finishing(RefCell<BTreeMap<u64, oneshot::Sender<()>>>);

impl Finishing {
    /// Counts a proxy that finishes streams, until this future is dropped. Completes if the proxy must end now
    /// with its streams open, because it is the oldest of too many.
    pub(super) async fn is_first_of_too_many(&self, number: u64) {
        tokio::time::sleep(UNCOUNTED).await;
        if self.begin(number).await.is_err() {
            // Another registration with the same number has replaced this one.
            std::future::pending().await
        }
    }

    fn begin(&self, number: u64) -> oneshot::Receiver<()> {
        let (end, ends) = oneshot::channel();
        let mut all = self.0.borrow_mut();
        all.retain(|_, end| !end.is_closed());
        all.insert(number, end);
        if all.len() > MAX_FINISHING
            && let Some((_, first)) = all.pop_first()
        {
            // Sending fails if that proxy has just finished and dropped its receiver.
            let _ended = first.send(());
        }
        ends
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_of_too_many_must_end_and_finished_ones_do_not_count() {
        let finishing = Finishing::default();
        let mut all: Vec<_> = (0..MAX_FINISHING as u64).map(|n| finishing.begin(n)).collect();
        let is_to_end = |one: &mut oneshot::Receiver<()>| one.try_recv().is_ok();
        all.remove(3);
        all.push(finishing.begin(100));
        assert!(!all.iter_mut().any(is_to_end), "one has ended");
        all.push(finishing.begin(101));
        let ends: Vec<bool> = all.iter_mut().map(is_to_end).collect();
        assert!(ends[0] && !ends[1..].contains(&true), "{ends:?}");
    }
}
