//! Ends requests and relays in progress when policies no longer permit them.
//!
//! A changed policy wakes every request and every relay in progress of the worker. The expiry of a token wakes the
//! requests that the token permits, and the age of a certificate wakes those that depend on it. For each there is a
//! new decision, by its client and by the request head or server name with which it began.
//!
//! ```text
//! a policy changes ─► Inbound::follow ─► Worker::changes ─┬─► request or relay ─┬─ permitted ─► continues
//! a token expires, or a certificate ages ─► Expiry ───────┘                     └─ denied ─► ends, counted
//! ```

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use leno_http::{Judge, Judgement, RequestHead, RequestView, ResponseView};
use leno_transport::OwnTls;
use tokio::sync::futures::Notified;
use tokio::time::{Sleep, sleep};

use crate::authorize::{Access, Still};
use crate::{Worker, bearer};

/// The longest sleep until a token expires. It is limited because the clock of the machine, which decides about expiry,
/// may be set meanwhile.
const LONGEST_SLEEP: Duration = Duration::from_secs(30);

/// Watches whether a request in progress is still permitted. The request must end once policies, its token or its
/// client's certificate no longer permit it ([`Judge::poll_revoked`]).
#[derive(Debug)]
pub(crate) struct StandingPermit<'a, 'n> {
    pub(crate) shared: &'n Worker,
    pub(crate) access: &'a Access,
    /// A notification of changes. It was created before the request was permitted, so that no change is missed.
    pub(crate) changed: Pin<&'a mut Notified<'n>>,
    /// Ready when the decision may change, because a token expires or a certificate reaches a certain age.
    pub(crate) expiry: Expiry,
    /// A copy of the received head, if the head itself is not kept until the response ends.
    pub(crate) head: Option<(&'a RequestHead, &'a [u8])>,
}

/// A sleep until a token expires, or until a certificate reaches an age at which the decision may change. It is empty
/// for most requests, which depend on neither.
#[derive(Debug)]
pub(crate) struct Expiry(Option<Pin<Box<Sleep>>>);

impl Expiry {
    /// `until` is the last moment at which the token is valid, as the time since 1970.
    pub(crate) fn new(until: Option<Duration>) -> Self {
        let left = |until: Duration| {
            until.saturating_sub(bearer::now()).saturating_add(Duration::from_millis(1))
        };
        Self(until.map(|until| Box::pin(sleep(left(until).min(LONGEST_SLEEP)))))
    }

    /// Waits until the sleep is over. If there is none, waits forever.
    async fn over(&mut self) {
        poll_fn(|cx| if self.is_over(cx) { Poll::Ready(()) } else { Poll::Pending }).await;
    }

    fn is_over(&mut self, cx: &mut Context<'_>) -> bool {
        self.0.as_mut().is_some_and(|sleep| sleep.as_mut().poll(cx).is_ready())
    }
}

impl Judge for StandingPermit<'_, '_> {
    fn judge(&mut self, _response: ResponseView<'_>, _replayable: bool) -> Judgement {
        Judgement::Forward
    }

    fn poll_revoked<'v>(
        &mut self,
        head: impl FnOnce() -> Option<RequestView<'v>>,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        let has_changed = self.changed.as_mut().poll(cx).is_ready();
        if has_changed {
            self.changed.set(self.shared.changes.notified());
        }
        if !has_changed && !self.expiry.is_over(cx) {
            return Poll::Pending;
        }
        let still = match (self.head, head()) {
            (Some((head, bytes)), _) => self.access.still(self.shared, head.view(bytes)),
            (None, Some(head)) => self.access.still(self.shared, head),
            (None, None) => Still::Permitted(None),
        };
        let Still::Permitted(until) = still else { return Poll::Ready(()) };
        self.expiry = Expiry::new(until);
        // This requests another poll, which then waits for the next change.
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

/// Ready when policies no longer permit a relay. `changed` must have been created before the relay was permitted.
pub(crate) async fn revoked<'n>(
    shared: &'n Worker,
    access: &Access,
    mut changed: Pin<&mut Notified<'n>>,
    tls: Option<&OwnTls>,
) {
    // The first decision is made at once: the relay was permitted before the proxy connected to the application, which
    // may have taken seconds.
    while let Still::Permitted(until) = access.still_relayed(shared, tls) {
        let mut expiry = Expiry::new(until);
        tokio::select! {
            () = changed.as_mut() => changed.set(shared.changes.notified()),
            () = expiry.over() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    async fn waited(until: Option<Duration>) -> Duration {
        let started = Instant::now();
        let mut expiry = Expiry::new(until);
        expiry.over().await;
        started.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_is_decided_on_again_when_its_token_ends() {
        let second = Duration::from_secs(1);
        let soon = waited(Some(bearer::now() + 10 * second)).await;
        assert!(soon > 9 * second && soon < 11 * second, "{soon:?}");
        let late = waited(Some(bearer::now() + 3600 * second)).await;
        assert!(late >= LONGEST_SLEEP && late < LONGEST_SLEEP + second, "{late:?}");
        let over = waited(Some(Duration::ZERO)).await;
        assert!(over < second, "{over:?}");
    }
}
