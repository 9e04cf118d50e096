//! The time on which decisions of the inbound and the outbound side are based.
//!
//! ```text
//! poll of a contained task: │ now() reads the clock │ now() returns the same time │ ... │
//! anywhere else:            each now() reads the clock
//! ```
//! A contained task is one that [`spawn_contained`](crate::spawn_contained) has started; all connections are served by
//! such tasks. A request causes a dozen decisions that depend on the time, most of them within one poll. They use the
//! same time, so that the clock need not be read for each. A poll lasts milliseconds at most, which is less than any
//! timeout here.

use std::cell::Cell;
use std::time::Instant;

thread_local! {
    static TURN: Cell<Turn> = const { Cell::new(Turn::None) };
}

/// Whether a contained task is being polled on this thread.
#[derive(Clone, Copy, Debug)]
enum Turn {
    /// No contained task is being polled.
    None,
    /// A contained task is being polled, and has not read the time yet.
    Unread,
    /// A contained task is being polled, and has read this time.
    Read(Instant),
}

/// The present time of the runtime's clock, which tests can pause. The result is the same during one poll of a
/// contained task.
#[must_use]
pub fn now() -> Instant {
    match TURN.get() {
        Turn::Read(at) => at,
        turn => {
            let at = tokio::time::Instant::now().into_std();
            if matches!(turn, Turn::Unread) {
                TURN.set(Turn::Read(at));
            }
            at
        }
    }
}

/// Exists during the poll of a contained task. `outer` is restored afterwards, because a poll may contain that of
/// another.
pub(crate) struct PollTurn {
    outer: Turn,
}

impl PollTurn {
    pub(crate) fn begin() -> Self {
        Self { outer: TURN.replace(Turn::Unread) }
    }
}

impl Drop for PollTurn {
    fn drop(&mut self) {
        TURN.set(self.outer);
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::task::Poll;
    use std::thread::sleep;
    use std::time::Duration;

    use tokio::runtime::{Builder, LocalOptions};

    use super::*;
    use crate::spawn_contained;

    const PAUSE: Duration = Duration::from_millis(2);

    #[test]
    fn time_stands_still_within_a_poll_of_a_contained_task_and_nowhere_else() {
        let runtime = Builder::new_current_thread().build_local(LocalOptions::default()).unwrap();
        runtime.block_on(async {
            let outside = now();
            sleep(PAUSE);
            assert!(now() >= outside + PAUSE);
            let task = spawn_contained(async {
                let first = now();
                sleep(PAUSE);
                assert_eq!(now(), first);
                tokio::task::yield_now().await;
                let second = now();
                assert!(second >= first + PAUSE);
                sleep(PAUSE);
                let third = poll_fn(|_| Poll::Ready(now())).await;
                assert_eq!(third, second);
            });
            task.await.unwrap();
            let after = now();
            sleep(PAUSE);
            assert!(now() >= after + PAUSE, "the task has ended");
        });
    }
}
