//! How many proxies finish what they have for an instance.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use leno_types::MAX_FINISHING;
use tokio::sync::oneshot;

/// How long one may finish what it has before it counts: most end within seconds, with their last requests.
const UNCOUNTED: Duration = Duration::from_secs(60);

/// What ends those that finish what they have, by their numbers: processes, and memberships of node proxies.
#[derive(Debug, Default)]
pub(super) struct Finishing(RefCell<BTreeMap<u64, oneshot::Sender<()>>>);

impl Finishing {
    /// One finishes what it has, until the future is dropped. That comes back once it is to end with what it still has, as it is the
    /// first of too many.
    pub(super) async fn is_first_of_too_many(&self, number: u64) {
        tokio::time::sleep(UNCOUNTED).await;
        if self.begin(number).await.is_err() {
            // The sender is dropped with this one's.
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
            // It ends by itself meanwhile.
            let _ended = first.send(());
        }
        ends
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_too_many_is_to_end_and_those_that_have_ended_do_not_count() {
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
