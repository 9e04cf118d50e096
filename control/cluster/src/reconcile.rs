//! How the controllers of this crate run: they watch objects, and after changes write what is due, at a bounded rate.
//!
//! ```text
//!  watches ──► observe ──► is_due? ── GATHER ──► reconcile ── PAUSE ──┐
//!     ▲                                                               │
//!     └───────────────────────────────────────────────────────────────┘
//! ```

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// How long changes are gathered: a namespace and the objects in it come at the same time.
const GATHER: Duration = Duration::from_millis(20);
/// The shortest time between two rounds. If another client keeps changing an object, this is how fast it is changed back.
const PAUSE: Duration = Duration::from_secs(1);
/// The shortest time to the next round after one in which something could not be written.
const RETRY: Duration = Duration::from_secs(3);

/// A controller: what it has observed, and what follows from it.
pub(crate) trait Reconciler: Send {
    /// What its watches yield.
    type Observation: Send;

    /// The watches. They never end.
    fn watches(&self) -> BoxStream<'static, Self::Observation>;

    /// Takes an observation.
    fn observe(&mut self, observation: Self::Observation);

    /// Whether something is to be written.
    fn is_due(&self) -> bool;

    /// Writes what is due; returns whether all of it was written.
    fn reconcile(&mut self) -> impl Future<Output = bool> + Send;
}

/// Runs controllers of one kind while this replica leads, each from the beginning of a lead to its end. Returns when the
/// sender of `leads` is dropped.
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

/// Runs a controller until this is dropped.
pub(crate) async fn run(mut controller: impl Reconciler) {
    let mut observations = controller.watches();
    let (mut earliest, mut due) = (Instant::now(), None);
    loop {
        tokio::select! {
            observation = observations.next() => match observation {
                Some(observation) => controller.observe(observation),
                None => return,
            },
            () = sleep_until(due.unwrap_or(earliest)), if due.is_some() => {
                due = None;
                let written = controller.reconcile().await;
                earliest = Instant::now() + if written { PAUSE } else { RETRY };
            }
        }
        if due.is_none() && controller.is_due() {
            due = Some(earliest.max(Instant::now() + GATHER));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::stream;

    /// Has something due from the first observation until its second round, the first of which fails.
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
        assert!(rounds[1] - rounds[0] >= RETRY && rounds[2] - rounds[1] >= PAUSE, "{rounds:?}");
    }
}
