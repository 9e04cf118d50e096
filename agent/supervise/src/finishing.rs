//! Limits how many replaced processes of a workload finish their open streams at a time.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::pending;
use std::pin::pin;
use std::time::Duration;

use leno_types::MAX_FINISHING;
use tokio::sync::oneshot;

/// How long a process may finish streams until [`MAX_FINISHING`] applies to it. Most finish their last requests within
/// seconds.
const UNCOUNTED: Duration = Duration::from_secs(60);
/// Most processes at all, with those that have begun only lately. Without this bound, a workload whose processes are
/// replaced every few seconds would have any number of them.
const MAX_WITH_UNCOUNTED: usize = 2 * MAX_FINISHING;

/// The processes that finish streams of one workload, by the number of the process or membership. Later ones have higher
/// numbers.
#[derive(Debug, Default)]
pub struct Finishing(RefCell<BTreeMap<u64, FinishingProcess>>);

#[derive(Debug)]
struct FinishingProcess {
    /// Makes the process end.
    end: oneshot::Sender<()>,
    /// Whether it has finished streams for longer than [`UNCOUNTED`].
    counts: bool,
}

impl Finishing {
    /// Registers a process that finishes streams, until this future is dropped. Completes if the process must end now
    /// with its streams open, because it is the oldest of too many.
    pub async fn is_first_of_too_many(&self, number: u64) {
        let ends = self.begin(number);
        let mut ends = pin!(async {
            if ends.await.is_err() {
                // Another registration with the same number has replaced this one.
                pending().await
            }
        });
        tokio::select! {
            () = &mut ends => return,
            () = tokio::time::sleep(UNCOUNTED) => self.count(number),
        }
        ends.await;
    }

    fn begin(&self, number: u64) -> oneshot::Receiver<()> {
        let (end, ends) = oneshot::channel();
        let mut all = self.0.borrow_mut();
        all.retain(|_, process| !process.end.is_closed());
        all.insert(number, FinishingProcess { end, counts: false });
        if all.len() > MAX_WITH_UNCOUNTED
            && let Some((_, first)) = all.pop_first()
        {
            first.end();
        }
        ends
    }

    fn count(&self, number: u64) {
        let mut all = self.0.borrow_mut();
        all.retain(|_, process| !process.end.is_closed());
        if let Some(process) = all.get_mut(&number) {
            process.counts = true;
        }
        let mut counted = all.iter().filter(|(_, process)| process.counts).map(|(of, _)| *of);
        if let Some(first) = counted.next()
            && counted.count() >= MAX_FINISHING
            && let Some(first) = all.remove(&first)
        {
            first.end();
        }
    }
}

impl FinishingProcess {
    fn end(self) {
        // Fails if the process has just finished and dropped its receiver.
        let _ended = self.end.send(());
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use futures_util::FutureExt as _;
    use tokio::task::{JoinHandle, LocalSet, spawn_local};
    use tokio::time::sleep;

    use super::*;

    const MOMENT: Duration = Duration::from_secs(1);

    /// Registers a process. The task ends when the process must end.
    fn begin(finishing: &Rc<Finishing>, number: usize) -> JoinHandle<()> {
        let (finishing, number) = (Rc::clone(finishing), number as u64);
        spawn_local(async move { finishing.is_first_of_too_many(number).await })
    }

    fn ended(all: &[JoinHandle<()>]) -> Vec<usize> {
        (0..all.len()).filter(|one| all[*one].is_finished()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_of_too_many_must_end_and_finished_ones_do_not_count() {
        let test = async {
            let finishing = Rc::<Finishing>::default();
            let mut all: Vec<_> = (0..MAX_FINISHING).map(|n| begin(&finishing, n)).collect();
            sleep(UNCOUNTED + MOMENT).await;
            all.remove(3).abort();
            all.push(begin(&finishing, 100));
            sleep(UNCOUNTED + MOMENT).await;
            assert_eq!(ended(&all), [0; 0], "one has finished");
            all.push(begin(&finishing, 101));
            sleep(UNCOUNTED - MOMENT).await;
            assert_eq!(ended(&all), [0; 0], "the last one may finish soon");
            sleep(MOMENT * 2).await;
            assert_eq!(ended(&all), [0]);
        };
        LocalSet::new().run_until(test).await;
    }

    #[tokio::test(start_paused = true)]
    async fn processes_that_are_replaced_in_short_intervals_have_a_bound_too() {
        let test = async {
            let finishing = Rc::<Finishing>::default();
            let mut all = Vec::new();
            for number in 0..MAX_WITH_UNCOUNTED + 2 {
                all.push(begin(&finishing, number));
                sleep(MOMENT).await;
            }
            assert_eq!(ended(&all), [0, 1]);
            sleep(UNCOUNTED).await;
            let left = all.len() - MAX_FINISHING;
            assert_eq!(ended(&all), (0..left).collect::<Vec<_>>());
        };
        LocalSet::new().run_until(test).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_registration_that_another_one_replaces_does_not_complete() {
        let finishing = Finishing::default();
        let mut first = pin!(finishing.is_first_of_too_many(1));
        assert!(first.as_mut().now_or_never().is_none());
        let mut second = pin!(finishing.is_first_of_too_many(1));
        assert!(second.as_mut().now_or_never().is_none());
        sleep(UNCOUNTED * 2).await;
        assert!(first.as_mut().now_or_never().is_none());
        assert!(first.as_mut().now_or_never().is_none());
    }
}
