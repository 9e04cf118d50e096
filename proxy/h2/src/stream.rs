//! The handle of a stream.

use std::future::poll_fn;
use std::task::{Context, Poll};

use leno_hpack::Block;

use crate::code::Code;
use crate::error::{Reset, ResetBy};
use crate::head::Head;
use crate::inner::SharedConn;
use crate::piece::Piece;
use crate::slot::{Key, Progress, Slot};

/// One request and its response, on either side. Dropping it before both directions have ended resets the stream:
/// with NO_ERROR on the server's side if the response is complete, otherwise with CANCEL. Bytes that are queued up to
/// a complete end are sent before that.
///
/// Reading: heads with [`head`](Stream::head), then [`data`](Stream::data) until `None`, then
/// [`trailers`](Stream::trailers). Bytes that were read count against the peer's window until
/// [`release`](Stream::release) gives it credit.
///
/// Writing never waits: DATA that exceeds the windows is queued. So wait for [`capacity`](Stream::capacity) first.
pub struct Stream {
    pub(crate) conn: SharedConn,
    pub(crate) key: Key,
}

impl Stream {
    /// The stream's identifier on its connection.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.key.id
    }

    /// Waits for the next head: of a request, or of a response. Interim heads (1xx) come before the
    /// final head of a response.
    pub async fn head(&mut self) -> Result<Head, Reset> {
        poll_fn(|cx| self.poll_head(cx)).await
    }

    /// [`head`](Stream::head) as a poll function.
    pub fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<Head, Reset>> {
        self.poll_recv(cx, |slot| slot.heads.pop_front().map(Ok))
    }

    /// Waits for the next bytes of the body. `None` at its end.
    pub async fn data(&mut self) -> Result<Option<Piece>, Reset> {
        poll_fn(|cx| self.poll_data(cx)).await
    }

    /// [`data`](Stream::data) as a poll function.
    pub fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Piece>, Reset>> {
        self.poll_recv(cx, |slot| match slot.data.pop_front() {
            Some(piece) => Some(Ok(Some(piece))),
            None => (slot.recv == Progress::Ended).then_some(Ok(None)),
        })
    }

    /// The trailers, once [`data`](Stream::data) has returned `None`.
    #[must_use]
    pub fn trailers(&mut self) -> Option<Head> {
        self.with(|slot| slot.trailers.take()).flatten()
    }

    /// Keeps a copy of the trailers although they go directly to a linked stream: see
    /// [`Link::server_trailers`](crate::Link::server_trailers).
    pub fn keep_trailers(&mut self) {
        self.with(|slot| slot.keep_trailers = true);
    }

    /// Gives the peer credit for `count` bytes that were read. Until this call, bytes that [`data`](Stream::data) has
    /// returned count against the stream's window and the memory limits.
    pub fn release(&mut self, count: usize) {
        self.conn.borrow_mut().credit(self.key, count);
    }

    /// Whether END_STREAM was received. Bytes may still wait to be read.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.with(|slot| slot.recv == Progress::Ended).unwrap_or(true)
    }

    /// Whether nothing follows the head that was just read: no body, no trailers.
    #[must_use]
    pub fn is_ended_without_rest(&self) -> bool {
        self.with(|slot| {
            slot.recv == Progress::Ended && slot.data.is_empty() && slot.trailers.is_none()
        })
        .unwrap_or(true)
    }

    /// How the stream ended early. `None` if it did not.
    #[must_use]
    pub fn reset_reason(&self) -> Option<Reset> {
        self.with(|slot| slot.reset).flatten()
    }

    /// How many bytes of DATA payload were received and sent.
    #[must_use]
    pub fn bytes(&self) -> (u64, u64) {
        self.with(|slot| (slot.received, slot.sent)).unwrap_or_default()
    }

    /// Sends a head, which is an interim head if its `:status` is 1xx. `false` means that the stream could not send it;
    /// see [`reset_reason`](Stream::reset_reason).
    pub fn send_head(&mut self, head: &Block, end: bool) -> bool {
        let mut inner = self.conn.borrow_mut();
        let ready = inner.streams.get(self.key);
        if !ready.is_some_and(|slot| slot.reset.is_none() && slot.send == Progress::Head) {
            return false;
        }
        let status = head.find(leno_hpack::Token::STATUS);
        if end || status.is_none_or(|status| status.first() != Some(&b'1')) {
            inner.head_sent(self.key);
        }
        inner.send_section(self.key, head, end);
        true
    }

    /// Sends DATA, or queues it. Ignored on a stream that is over.
    pub fn send_data(&mut self, data: impl Into<Piece>, end: bool) {
        let data = data.into();
        let mut inner = self.conn.borrow_mut();
        if data.is_empty() {
            if end {
                inner.finish(self.key, None);
            }
            return;
        }
        inner.send_piece(self.key, data, end);
    }

    /// Ends this direction with trailers.
    pub fn send_trailers(&mut self, trailers: Head) {
        self.conn.borrow_mut().finish(self.key, Some(trailers));
    }

    /// Waits until at most [`Limits::send_bytes`](crate::Limits::send_bytes) are queued in this stream.
    pub async fn capacity(&mut self) -> Result<(), Reset> {
        poll_fn(|cx| self.poll_capacity(cx)).await
    }

    /// [`capacity`](Stream::capacity) as a poll function.
    pub fn poll_capacity(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Reset>> {
        let mut inner = self.conn.borrow_mut();
        let most = inner.limits.send_bytes;
        let Some(slot) = inner.streams.get_mut(self.key) else { return Poll::Ready(Err(GONE)) };
        if let Some(reset) = slot.reset {
            return Poll::Ready(Err(reset));
        }
        if slot.queued <= most {
            return Poll::Ready(Ok(()));
        }
        slot.send_waker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Resets the stream at once.
    pub fn reset(self, code: Code) {
        self.conn.borrow_mut().reset(self.key, code);
    }

    /// Waits until the stream is over. Returns how it ended, if it ended early.
    pub async fn closed(&mut self) -> Option<Reset> {
        poll_fn(|cx| self.poll_closed(cx)).await
    }

    /// [`closed`](Stream::closed) as a poll function.
    pub fn poll_closed(&mut self, cx: &mut Context<'_>) -> Poll<Option<Reset>> {
        let mut inner = self.conn.borrow_mut();
        match inner.streams.get_mut(self.key) {
            Some(slot) if !slot.is_over() => {
                register(&mut slot.recv_waker, cx);
                Poll::Pending
            }
            slot => Poll::Ready(slot.and_then(|slot| slot.reset)),
        }
    }

    /// Ready once the stream was reset because its reader reads too little. To be polled by a reader while it waits for
    /// something other than this stream, such as room to write.
    pub fn poll_stalled(&mut self, cx: &mut Context<'_>) -> Poll<Reset> {
        let mut inner = self.conn.borrow_mut();
        let Some(slot) = inner.streams.get_mut(self.key) else { return Poll::Pending };
        if let Some(reset) = slot.reset.filter(|reset| reset.is_stall()) {
            return Poll::Ready(reset);
        }
        register(&mut slot.recv_waker, cx);
        Poll::Pending
    }

    fn poll_recv<T>(
        &mut self,
        cx: &mut Context<'_>,
        take: impl FnOnce(&mut Slot) -> Option<Result<T, Reset>>,
    ) -> Poll<Result<T, Reset>> {
        let mut inner = self.conn.borrow_mut();
        let Some(slot) = inner.streams.get_mut(self.key) else { return Poll::Ready(Err(GONE)) };
        if let Some(found) = take(slot) {
            return Poll::Ready(found);
        }
        if let Some(reset) = slot.reset {
            return Poll::Ready(Err(reset));
        }
        register(&mut slot.recv_waker, cx);
        Poll::Pending
    }

    fn with<T>(&self, look: impl FnOnce(&mut Slot) -> T) -> Option<T> {
        self.conn.borrow_mut().streams.get_mut(self.key).map(look)
    }
}

/// Cannot occur: a stream stays in its connection's table as long as it has a handle.
const GONE: Reset = Reset { code: Code::INTERNAL_ERROR, by: ResetBy::Us, unprocessed: false };

fn register(place: &mut Option<std::task::Waker>, cx: &Context<'_>) {
    match place {
        Some(waker) if waker.will_wake(cx.waker()) => {}
        _ => *place = Some(cx.waker().clone()),
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.conn.borrow_mut().drop_handle(self.key);
    }
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Stream({})", self.key.id)
    }
}
