//! A timer that lives as long as its connection and is seldom reset.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::runtime::{Handle, Id};
use tokio::time::{Instant, Sleep, sleep_until};

/// How many free alarms a thread keeps: usually enough for the exchanges that are in progress at once.
const KEPT: usize = 64;

thread_local! {
    /// The free alarms, with the runtimes in which they were created.
    static FREE: RefCell<Vec<(Id, Alarm)>> = const { RefCell::new(Vec::new()) };
}

/// One timer for all waits of a connection, one after the other. If the timer is still set for an earlier time, it is
/// left to fire, and is then set again. So a request whose deadlines are later does not touch the runtime's timer
/// wheel.
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

/// An alarm for one exchange. It is taken from the thread's pool and returned to it.
#[derive(Debug)]
pub(crate) struct PooledAlarm {
    alarm: Alarm,
    runtime: Id,
}

impl PooledAlarm {
    pub(crate) fn take() -> Self {
        let runtime = Handle::current().id();
        let free = FREE.try_with(|free| free.borrow_mut().pop()).ok().flatten();
        // A timer can only be used in the runtime in which it was created.
        let alarm = free.filter(|(id, _)| *id == runtime).map(|(_, alarm)| alarm);
        Self { alarm: alarm.unwrap_or_default(), runtime }
    }

    /// Like [`Alarm::poll_at`].
    pub(crate) fn poll_at(&mut self, deadline: Instant, cx: &mut Context<'_>) -> Poll<()> {
        self.alarm.poll_at(deadline, cx)
    }
}

impl Drop for PooledAlarm {
    fn drop(&mut self) {
        let alarm = std::mem::take(&mut self.alarm);
        // An error means that the thread is ending.
        let _ = FREE.try_with(|free| {
            let mut free = free.borrow_mut();
            if free.len() < KEPT && alarm.sleep.is_some() {
                free.push((self.runtime, alarm));
            }
        });
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
