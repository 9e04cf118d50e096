//! What one worker has in progress, and whether it is to finish.
#![expect(clippy::arithmetic_side_effects, reason = "a count of what is in progress")]

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Notify;

/// How long an idle connection is given to be closed with a response, when clients are to leave. A client
/// that sends just as it is closed would not know whether it was heard; one that is in use mostly sends
/// within this time, and applications that wait before they end wait longer.
pub const IDLE_GRACE: Duration = Duration::from_secs(1);

/// Counts requests and relays in progress. Both planes of a worker share one.
#[derive(Debug, Default)]
pub struct Activity {
    busy: Cell<usize>,
    draining: Cell<bool>,
    closing: Cell<bool>,
    began: Notify,
}

/// One request or relay in progress, until it is dropped.
#[derive(Debug)]
pub struct Busy(Rc<Activity>);

impl Activity {
    /// Begins a request or a relay.
    pub fn enter(self: &Rc<Self>) -> Busy {
        self.busy.set(self.busy.get() + 1);
        Busy(Rc::clone(self))
    }

    /// How many are in progress.
    #[must_use]
    pub fn busy(&self) -> usize {
        self.busy.get()
    }

    /// From now on HTTP/1 connections are closed after their next response, and HTTP/2 clients are
    /// told to open no more streams. There is no way back.
    pub fn drain(&self) {
        self.draining.set(true);
        self.began.notify_waiters();
    }

    /// The same, or no longer, of a worker that goes on: clients are to connect anew, and may be on their
    /// way elsewhere then.
    pub fn close(&self, closing: bool) {
        if closing && !self.closing.replace(closing) {
            self.began.notify_waiters();
        }
        self.closing.set(closing);
    }

    /// Waits until clients are to leave.
    pub async fn drained(&self) {
        // Made before the look, so that it hears of what comes after.
        let began = self.began.notified();
        if !self.is_draining() {
            began.await;
        }
    }

    /// Waits until clients that send nothing are to leave, [`IDLE_GRACE`] after those that send.
    pub async fn idle_left(&self) {
        loop {
            self.drained().await;
            tokio::time::sleep(IDLE_GRACE).await;
            if self.is_draining() {
                return;
            }
        }
    }

    /// Whether clients are to leave.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.draining.get() || self.closing.get()
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.busy.set(self.0.busy.get() - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_progress_is_counted_until_it_ends() {
        let activity = Rc::new(Activity::default());
        let one = activity.enter();
        let two = activity.enter();
        assert_eq!(activity.busy(), 2);
        drop(one);
        drop(two);
        assert_eq!(activity.busy(), 0);
        activity.drain();
        assert!(activity.is_draining());
    }

    #[test]
    fn a_worker_that_goes_on_may_keep_its_clients_again() {
        let activity = Rc::new(Activity::default());
        let mut drained = std::pin::pin!(activity.drained());
        let context = &mut std::task::Context::from_waker(std::task::Waker::noop());
        assert!(drained.as_mut().poll(context).is_pending());
        activity.close(true);
        assert!(drained.as_mut().poll(context).is_ready() && activity.is_draining());
        activity.close(false);
        assert!(!activity.is_draining());
        activity.drain();
        activity.close(false);
        assert!(activity.is_draining(), "there is no way back from a drain");
    }
}
