//! Ends what is in progress once a changed policy no longer permits it.
//!
//! A change wakes every request and every relay in progress of the worker. Each is decided on again, by
//! the client and the request's head or the server name that it began with.
//!
//! ```text
//! a policy changes ─► Inbound::follow ─► Changes ─► request or relay ─┬─ permitted ─► goes on
//!                                                                     └─ denied ─► ends, counted
//! ```

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use leno_http::{Judge, Judgement, RequestHead, RequestView, ResponseView};
use leno_transport::OwnTls;
use tokio::sync::futures::Notified;

use crate::Shared;
use crate::authorize::Access;

/// A request that was permitted when it came, for as long as it is in progress.
#[derive(Debug)]
pub(crate) struct Standing<'a, 'n> {
    pub(crate) shared: &'n Shared,
    pub(crate) access: &'a Access,
    /// Made before the request was permitted, so that no change is missed.
    pub(crate) changed: Pin<&'a mut Notified<'n>>,
    /// A copy of the head where the exchange keeps none.
    pub(crate) head: Option<(&'a RequestHead, &'a [u8])>,
}

impl Judge for Standing<'_, '_> {
    fn judge(&mut self, _response: ResponseView<'_>, _replayable: bool) -> Judgement {
        Judgement::Forward
    }

    fn poll_revoked<'v>(
        &mut self,
        head: impl FnOnce() -> Option<RequestView<'v>>,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        ready!(self.changed.as_mut().poll(cx));
        self.changed.set(self.shared.changes.notified());
        let revoked = match (self.head, head()) {
            (Some((head, bytes)), _) => self.access.revokes(self.shared, head.view(bytes)),
            (None, Some(head)) => self.access.revokes(self.shared, head),
            (None, None) => false,
        };
        if revoked {
            return Poll::Ready(());
        }
        // Polled again at once, to wait for the next change.
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

/// Ready once a relay that was permitted no longer is. `changed`: made before it was permitted.
pub(crate) async fn revoked<'n>(
    shared: &'n Shared,
    access: &Access,
    mut changed: Pin<&mut Notified<'n>>,
    tls: &OwnTls,
) {
    loop {
        changed.as_mut().await;
        changed.set(shared.changes.notified());
        if access.revokes_connection(shared, tls) {
            return;
        }
    }
}
