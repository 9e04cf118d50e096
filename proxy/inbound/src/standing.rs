//! Ends what is in progress once policies no longer permit it.
//!
//! A changed policy wakes every request and every relay in progress of the worker, the end of a token the
//! requests that it permits, and the age of a certificate what depends on it. Each is decided on again, by the client
//! and the request's head or the server name that it began with.
//!
//! ```text
//! a policy changes ─► Inbound::follow ─► Changes ─┬─► request or relay ─┬─ permitted ─► goes on
//! a token ends, ────► Expiry ─────────────────────┘                     └─ denied ─► ends, counted
//! a certificate ages
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

/// Longest sleep before the end of a token. The clock of the machine, which tokens go by, may be set meanwhile.
const LONGEST_SLEEP: Duration = Duration::from_secs(30);

/// A request that was permitted when it came, for as long as it is in progress.
#[derive(Debug)]
pub(crate) struct StandingPermit<'a, 'n> {
    pub(crate) shared: &'n Worker,
    pub(crate) access: &'a Access,
    /// Made before the request was permitted, so that no change is missed.
    pub(crate) changed: Pin<&'a mut Notified<'n>>,
    /// Ready when a token ends that the decision depends on.
    pub(crate) expiry: Expiry,
    /// A copy of the head where the exchange keeps none.
    pub(crate) head: Option<(&'a RequestHead, &'a [u8])>,
}

/// A sleep until a token ends or a certificate has another age; none for most requests, which depend on neither.
#[derive(Debug)]
pub(crate) struct Expiry(Option<Pin<Box<Sleep>>>);

impl Expiry {
    /// `until`: from the beginning of 1970, the last moment at which the token is valid.
    pub(crate) fn new(until: Option<Duration>) -> Self {
        let left = |until: Duration| {
            until.saturating_sub(bearer::now()).saturating_add(Duration::from_millis(1))
        };
        Self(until.map(|until| Box::pin(sleep(left(until).min(LONGEST_SLEEP)))))
    }

    /// Waits for it.
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
        // Polled again at once, to wait for the next change.
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

/// Ready once a relay that was permitted no longer is. `changed`: made before it was permitted.
pub(crate) async fn revoked<'n>(
    shared: &'n Worker,
    access: &Access,
    mut changed: Pin<&mut Notified<'n>>,
    tls: Option<&OwnTls>,
) {
    // At once, too: it was permitted before the application was connected to, which may have taken seconds.
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
