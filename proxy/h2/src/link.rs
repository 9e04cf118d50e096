//! The fast path of a relay: two linked streams of two connections.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use crate::error::Reset;
use crate::head::Head;
use crate::slot::{Far, Progress};
use crate::stream::Stream;

/// How many bytes a link moved, and how it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Linked {
    /// How many bytes of DATA were received on the first stream (the client's).
    pub received: u64,
    /// How many bytes of DATA were sent on the first stream.
    pub sent: u64,
    /// How the first stream ended early. `None` if it did not.
    pub client: Option<Reset>,
    /// How the second stream (the server's) ended early. `None` if it did not.
    pub server: Option<Reset>,
}

/// From now on everything that `from` receives (body, trailers, end) goes directly to `to`, from one connection's
/// reader into the other connection's queue. A reset of either stream ends both. The sender gets its credit back once
/// its bytes are in the other connection's bounded queue, so flow control works from end to end.
///
/// Heads are not forwarded. So call this for the request once the stream to the server is open, and for the response
/// once its head was sent. The two connections must have opposite roles; otherwise this does nothing. If one of the
/// streams was reset already, this resets the other.
pub fn forward(from: &Stream, to: &Stream) {
    if Rc::ptr_eq(&from.conn, &to.conn) {
        return;
    }
    let mut source = from.conn.borrow_mut();
    let mut target = to.conn.borrow_mut();
    if source.client == target.client {
        return;
    }
    let over = |slot: Option<&crate::slot::Slot>| slot.is_none_or(|slot| slot.reset.is_some());
    let (from_over, to_over) =
        (over(source.streams.get(from.key)), over(target.streams.get(to.key)));
    if from_over || to_over {
        let code = crate::Code::CANCEL;
        target.far_reset(to.key, code);
        source.far_reset(from.key, code);
        return;
    }
    let Some(slot) = target.streams.get_mut(to.key) else { return };
    slot.send_far = true;
    slot.far = Some(far(from));
    let Some(slot) = source.streams.get_mut(from.key) else { return };
    slot.recv_far = true;
    slot.far = Some(far(to));
    // Bytes that arrived earlier must go first.
    let ended = slot.recv == Progress::Ended;
    let trailers = slot.trailers.take();
    if slot.keep_trailers {
        slot.trailers.clone_from(&trailers);
    }
    while let Some(piece) = source.streams.get_mut(from.key).and_then(|s| s.data.pop_front()) {
        let count = piece.len();
        let last = ended
            && trailers.is_none()
            && source.streams.get(from.key).is_none_or(|slot| slot.data.is_empty());
        if target.far_piece(to.key, piece, last) {
            source.credit(from.key, count);
        }
    }
    if ended {
        match trailers {
            Some(trailers) => target.far_trailers(to.key, trailers),
            None => target.far_end(to.key),
        }
        drop(target);
        source.settle(from.key);
    }
}

fn far(stream: &Stream) -> Far {
    Far { conn: Rc::clone(&stream.conn), key: stream.key }
}

/// Links a client's stream and the stream to a server in both directions. To be called after the response's head was
/// sent. Completes when both streams are over. Dropping the link resets the streams that are not over.
#[must_use]
pub fn link(client: Stream, server: Stream) -> Link {
    forward(&client, &server);
    forward(&server, &client);
    Link { client, server }
}

/// The future of [`link`].
#[derive(Debug)]
pub struct Link {
    client: Stream,
    server: Stream,
}

impl Link {
    /// How many bytes of DATA were received and sent on the client's stream so far.
    #[must_use]
    pub fn bytes(&self) -> (u64, u64) {
        self.client.bytes()
    }

    /// The trailers of the response. `None` before the link is over, or without
    /// [`Stream::keep_trailers`].
    #[must_use]
    pub fn server_trailers(&mut self) -> Option<Head> {
        self.server.trailers()
    }
}

impl Future for Link {
    type Output = Linked;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Linked> {
        let this = &mut *self;
        // A reset of either stream resets the other, so both end.
        let (Poll::Ready(client), Poll::Ready(server)) =
            (this.client.poll_closed(cx), this.server.poll_closed(cx))
        else {
            return Poll::Pending;
        };
        let (received, sent) = this.client.bytes();
        Poll::Ready(Linked { received, sent, client, server })
    }
}
