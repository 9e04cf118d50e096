//! Counts the requests and relays that one worker has in progress, and says when the worker's clients should
//! disconnect.
#![expect(clippy::arithmetic_side_effects, reason = "a count of what is in progress")]

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Notify;

/// How long an idle HTTP/1 or HTTP/2 connection stays open after its client should leave. A request that arrives
/// meanwhile is still answered, and the connection is closed with the response. If the proxy closed an idle connection
/// at once, a client that sends a request at that moment could not know whether the request was received. Most
/// connections in use carry a request within one second.
pub const IDLE_GRACE: Duration = Duration::from_secs(1);
/// The pause between draining one connection and the next. Each client connects again, which costs a handshake, and
/// handshakes at the same moment would delay streams that continue.
const APART: Duration = Duration::from_millis(1);

/// Counts requests and relays in progress. The inbound and the outbound side of a worker share one `Activity`.
#[derive(Debug, Default)]
pub struct Activity {
    busy: Cell<usize>,
    /// Set for good by [`Self::drain`].
    draining: Cell<bool>,
    /// Set and unset by [`Self::close`].
    closing: Cell<bool>,
    began: Notify,
    /// The time for a drain in units of [`APART`]: connections are told in that many groups. 0, which is also the value
    /// after [`Self::close`], tells all at once.
    turns: Cell<u32>,
    /// How many connections have been told to leave. This number modulo `turns` is the number of pauses that the next
    /// one waits.
    told: Cell<u32>,
}

/// One request or relay that is in progress until this value is dropped.
#[derive(Debug)]
pub struct Busy(Rc<Activity>);

impl Activity {
    /// Counts the beginning of a request or a relay.
    pub fn enter(self: &Rc<Self>) -> Busy {
        self.busy.set(self.busy.get() + 1);
        Busy(Rc::clone(self))
    }

    /// The number of requests and relays in progress.
    #[must_use]
    pub fn busy(&self) -> usize {
        self.busy.get()
    }

    /// From now on, HTTP/1 connections are closed after their next response, and HTTP/2 clients get a GOAWAY.
    /// Connections that wait in [`Self::drained`] are told one after the other, the last one before `within` is over.
    /// This cannot be undone.
    pub fn drain(&self, within: Duration) {
        self.turns.set(u32::try_from(within.as_millis() / APART.as_millis()).unwrap_or(u32::MAX));
        self.draining.set(true);
        self.began.notify_waiters();
    }

    /// Starts or stops a drain of a worker that continues to serve: while `closing` is set, clients are told to connect
    /// again, and may then reach another process. All are told at once.
    pub fn close(&self, closing: bool) {
        if closing && !self.closing.replace(closing) {
            self.began.notify_waiters();
        }
        self.closing.set(closing);
    }

    /// Waits until the client of this connection should leave: its turn in a drain, or at once if a drain has already
    /// begun.
    pub async fn drained(&self) {
        // Created before the check, so that no later notification is missed.
        let began = self.began.notified();
        if !self.is_draining() {
            began.await;
            let turn = self.told.replace(self.told.get().wrapping_add(1));
            let wait = APART * turn.checked_rem(self.turns.get()).unwrap_or(0);
            if !wait.is_zero() {
                // Boxed, because few connections ever use this timer, and the task of each connection would contain it.
                Box::pin(tokio::time::sleep(wait)).await;
            }
        }
    }

    /// Waits until an idle connection should be closed: [`IDLE_GRACE`] after [`Self::drained`], if the drain has not
    /// been stopped meanwhile.
    pub async fn idle_left(&self) {
        loop {
            self.drained().await;
            tokio::time::sleep(IDLE_GRACE).await;
            if self.is_draining() {
                return;
            }
        }
    }

    /// Whether clients should leave.
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
    use tokio::task::{JoinSet, LocalSet};
    use tokio::time::Instant;

    use super::*;

    #[test]
    fn requests_in_progress_are_counted_until_they_end() {
        let activity = Rc::new(Activity::default());
        let one = activity.enter();
        let two = activity.enter();
        assert_eq!(activity.busy(), 2);
        drop(one);
        drop(two);
        assert_eq!(activity.busy(), 0);
        activity.drain(Duration::ZERO);
        assert!(activity.is_draining());
    }

    /// Regression: all clients connected again at the same moment, and streams that continued waited for their
    /// handshakes.
    #[tokio::test(start_paused = true)]
    async fn clients_leave_one_after_the_other_within_the_time_for_it() {
        let told_after = async |within: Duration| {
            let (activity, mut clients) = (Rc::new(Activity::default()), JoinSet::new());
            for _ in 0..100 {
                let activity = Rc::clone(&activity);
                clients.spawn_local(async move {
                    activity.drained().await;
                    Instant::now()
                });
            }
            // Lets all clients begin to wait.
            tokio::time::sleep(APART).await;
            activity.drain(within);
            let begun = Instant::now();
            // A connection that begins to wait now does not wait for a turn.
            activity.drained().await;
            let told = clients.join_all().await;
            let mut told: Vec<_> = told.into_iter().map(|at| at - begun).collect();
            told.sort_unstable();
            told
        };
        let all = async {
            let told = told_after(Duration::from_secs(1)).await;
            assert!(told.windows(2).all(|pair| pair[1] - pair[0] == APART), "{told:?}");
            let told = told_after(APART * 10).await;
            assert_eq!(told.last(), Some(&(APART * 9)), "ten are told at a time: {told:?}");
            assert_eq!(told_after(Duration::ZERO).await, [Duration::ZERO; 100]);
        };
        LocalSet::new().run_until(all).await;
    }

    #[test]
    fn a_worker_that_continues_can_keep_its_clients_again() {
        let activity = Rc::new(Activity::default());
        let mut drained = std::pin::pin!(activity.drained());
        let context = &mut std::task::Context::from_waker(std::task::Waker::noop());
        assert!(drained.as_mut().poll(context).is_pending());
        activity.close(true);
        assert!(drained.as_mut().poll(context).is_ready() && activity.is_draining());
        activity.close(false);
        assert!(!activity.is_draining());
        activity.drain(Duration::ZERO);
        activity.close(false);
        assert!(activity.is_draining(), "a drain cannot be undone");
    }
}
