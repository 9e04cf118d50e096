//! A timer that lives as long as its connection and is seldom moved.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::time::{Instant, Sleep, sleep_until};

/// One timer for all waits of a connection, one after the other. A timer armed for an earlier
/// wait is left to fire and is then moved on, so that a request whose deadlines lie later than
/// the armed one touches no timer wheel.
#[derive(Debug, Default)]
pub(crate) struct Alarm {
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Alarm {
    /// Ready at `deadline` or after it.
    pub(crate) fn poll_at(&mut self, deadline: Instant, cx: &mut Context<'_>) -> Poll<()> {
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        if sleep.deadline() > deadline {
            sleep.as_mut().reset(deadline);
        }
        loop {
            ready!(sleep.as_mut().poll(cx));
            if sleep.deadline() >= deadline {
                return Poll::Ready(());
            }
            sleep.as_mut().reset(deadline);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn each_wait_ends_at_its_own_deadline() {
        let mut alarm = Alarm::default();
        let start = Instant::now();
        for seconds in [60, 5, 7, 3600, 3600, 3601, 2] {
            let deadline = start + Duration::from_secs(seconds);
            poll_fn(|cx| alarm.poll_at(deadline, cx)).await;
            assert!(Instant::now() >= deadline);
        }
        let deadline = Instant::now() + Duration::from_secs(10);
        poll_fn(|cx| alarm.poll_at(deadline, cx)).await;
        assert_eq!(Instant::now(), deadline);
    }
}
