//! Runs the controllers of this crate. Each watches objects and writes after changes, at a bounded rate.
//!
//! ```text
//!  watches ──► observe ──► is_due? ── GATHER, not_before ──► reconcile ── PAUSE, or RETRY after a failure ──┐
//!     ▲                                                                                                     │
//!     └─────────────────────────────────────────────────────────────────────────────────────────────────────┘
//! ```

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// A controller: its observations, and what it writes because of them.
pub(crate) trait Reconciler: Send {
    /// What the watches yield.
    type Observation: Send;

    /// How long to wait for further changes before writing. A namespace and its objects often arrive at the same
    /// time.
    const GATHER: Duration = Duration::from_millis(20);
    /// The shortest time between two rounds, which are calls of [`reconcile`](Self::reconcile). If another client keeps
    /// changing an object, the controller restores it at this rate.
    const PAUSE: Duration = Duration::from_secs(1);
    /// The shortest time to the next round after one in which a write has failed.
    const RETRY: Duration = Duration::from_secs(3);

    /// The watches. They never end.
    fn watches(&self) -> BoxStream<'static, Self::Observation>;

    /// Records an observation.
    fn observe(&mut self, observation: Self::Observation);

    /// Whether something has to be written.
    fn is_due(&self) -> bool;

    /// The earliest time of the next write, if the write has to wait.
    fn not_before(&self) -> Option<Instant> {
        None
    }

    /// Writes everything that is due. Returns whether all of it was written.
    fn reconcile(&mut self) -> impl Future<Output = bool> + Send;
}

/// Runs a controller while this replica leads. Each time that the replica begins to lead, a new controller is
/// created. Returns when the sender of `leads` is dropped.
pub(crate) async fn while_leading<R: Reconciler>(
    mut leads: watch::Receiver<bool>,
    begin: impl Fn() -> R,
) {
    while leads.wait_for(|leads| *leads).await.is_ok() {
        tokio::select! {
            () = run(begin()) => {}
            ended = leads.wait_for(|leads| !*leads) => if ended.is_err() { return },
        }
    }
}

/// Runs a controller until the future is dropped.
pub(crate) async fn run<R: Reconciler>(mut controller: R) {
    let mut observations = controller.watches();
    let (mut earliest, mut due_since) = (Instant::now(), None);
    loop {
        due_since = controller.is_due().then(|| due_since.unwrap_or_else(Instant::now));
        let due = due_since.map(|since| {
            let round = earliest.max(since + R::GATHER);
            controller.not_before().map_or(round, |wait| round.max(wait))
        });
        tokio::select! {
            observation = observations.next() => match observation {
                Some(observation) => controller.observe(observation),
                None => return,
            },
            () = sleep_until(due.unwrap_or(earliest)), if due.is_some() => {
                due_since = None;
                let written = controller.reconcile().await;
                earliest = Instant::now() + if written { R::PAUSE } else { R::RETRY };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::stream;

    /// A controller that is due from the first observation until its second round. The first round fails.
    #[derive(Default)]
    struct Counter {
        observed: usize,
        rounds: Vec<Instant>,
        end: Option<tokio::sync::oneshot::Sender<Vec<Instant>>>,
    }

    impl Reconciler for Counter {
        type Observation = ();

        fn watches(&self) -> BoxStream<'static, ()> {
            stream::iter([(), ()]).chain(stream::pending()).boxed()
        }

        fn observe(&mut self, (): ()) {
            self.observed += 1;
        }

        fn is_due(&self) -> bool {
            self.observed > 0 && self.end.is_some()
        }

        async fn reconcile(&mut self) -> bool {
            assert_eq!(self.observed, 2, "changes are gathered");
            self.rounds.push(Instant::now());
            if self.rounds.len() == 3 {
                let ended = self.end.take().map(|end| end.send(self.rounds.clone()));
                assert_eq!(ended, Some(Ok(())));
            }
            self.rounds.len() > 1
        }
    }

    #[tokio::test(start_paused = true)]
    async fn rounds_are_apart_and_further_apart_after_a_failure() {
        let (end, ended) = tokio::sync::oneshot::channel();
        let running = tokio::spawn(run(Counter { end: Some(end), ..Counter::default() }));
        let rounds = ended.await.unwrap();
        running.abort();
        let (retry, pause) = (Counter::RETRY, Counter::PAUSE);
        assert!(rounds[1] - rounds[0] >= retry && rounds[2] - rounds[1] >= pause, "{rounds:?}");
    }

    /// A controller that is due until the third observation, but whose writes must wait a day.
    struct DueReconciler(usize);

    impl Reconciler for DueReconciler {
        type Observation = ();

        fn watches(&self) -> BoxStream<'static, ()> {
            stream::iter([(), (), ()]).chain(stream::pending()).boxed()
        }

        fn observe(&mut self, (): ()) {
            self.0 += 1;
        }

        fn is_due(&self) -> bool {
            self.0 < 3
        }

        fn not_before(&self) -> Option<Instant> {
            Some(Instant::now() + Duration::from_hours(24))
        }

        async fn reconcile(&mut self) -> bool {
            panic!("nothing is due any more");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn no_round_is_held_for_what_is_not_due_any_more() {
        let ran = tokio::time::timeout(Duration::from_hours(48), run(DueReconciler(0)));
        assert!(ran.await.is_err(), "a controller never ends");
    }
}
