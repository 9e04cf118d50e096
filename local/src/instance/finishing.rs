//! Limits how many proxies finish open streams of an instance at a time.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use leno_types::MAX_FINISHING;
use tokio::sync::oneshot;

/// A proxy counts after this time: most finish within seconds, with their last requests.
const UNCOUNTED: Duration = Duration::from_secs(60);

/// Ends the proxies that finish streams, by the numbers of their processes or memberships.
#[derive(Debug, Default)]
pub(super) struct Finishing(RefCell<BTreeMap<u64, oneshot::Sender<()>>>);

impl Finishing {
    /// Registers a proxy that finishes streams, until the future is dropped. Returns if the proxy must end now with its
    /// open streams, because there are too many such proxies and it is the oldest.
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
            // The receiver may just have been dropped, because that proxy has finished.
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
