//! What one worker has in progress, and whether it is to finish.

use std::cell::Cell;
use std::rc::Rc;

use tokio::sync::Notify;

/// Counts requests and relays in progress. Both planes of a worker share one.
#[derive(Debug, Default)]
pub struct Activity {
    busy: Cell<usize>,
    draining: Cell<bool>,
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

    /// Waits until the worker is to finish.
    pub async fn drained(&self) {
        // Made before the look, so that it hears of what comes after.
        let began = self.began.notified();
        if !self.draining.get() {
            began.await;
        }
    }

    /// Whether the worker is to finish.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.draining.get()
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
}
