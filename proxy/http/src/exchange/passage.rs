//! How a message passes from the end where it is read to the end where it is written.
//!
//! | from   | to     | passage |
//! |--------|--------|---------|
//! | HTTP/1 | HTTP/1 | [`Pump`](super::pump::Pump): the received bytes, from the buffer into which they were read |
//! | HTTP/1 | HTTP/2 | [`Incoming`](super::incoming::Incoming): the parts of its body, into a stream's queue |
//! | HTTP/2 | HTTP/1 | [`Outgoing`](super::outgoing::Outgoing): the pieces of its body, framed, several in one write |

use std::task::{Context, Poll, ready};

use leno_h2::{Reset, Stream};
use leno_hpack::Block;

use crate::Io;
use crate::body::{BodyError, BodyWalker};
use crate::call::BodyPart;
use crate::conn::Conn;
use crate::failure::Cause;
use crate::received::Received;

/// One direction of an exchange: a message is read from `F` and written to `T`.
pub(super) trait Passage<F, T> {
    /// Passes on the bytes that have arrived. Ready when the whole message was written (or dropped), or with a [`Cut`]
    /// if the rest cannot be passed on.
    fn poll_pass(
        &mut self,
        from: &mut F,
        to: &mut T,
        mode: Mode,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Cut>>;

    /// Whether bytes wait to be written to `T`.
    fn is_blocked(&self) -> bool;

    /// Whether reading from `F` has stopped because `T` accepts no bytes.
    fn is_stuck(&self) -> bool {
        self.is_blocked()
    }

    /// Whether all of the message was read.
    fn is_read(&self) -> bool;

    /// How much has moved.
    fn moved(&self) -> &Moved;

    /// Called when the exchange is over. Drops the bytes of the message that are still held.
    fn settle(&mut self, _from: &mut F) {}
}

/// How much of a message has moved.
#[derive(Debug, Default)]
pub(super) struct Moved {
    /// How many times bytes, or the end of a stream, were read.
    pub(super) reads: u64,
    /// How many bytes were written, if the passage writes them itself.
    pub(super) written: u64,
    /// How many bytes of the message were received, including framing.
    pub(super) total: u64,
    /// Whether some of these bytes were dropped, so that the message cannot be sent again.
    pub(super) used: bool,
}

impl Moved {
    /// The counts at the beginning of a message whose head has `head` bytes.
    pub(super) fn new(head: usize) -> Self {
        Self { total: head as u64, ..Self::default() }
    }

    /// A number that grows with every read and write.
    pub(super) fn moves(&self) -> u64 {
        self.reads + self.written
    }
}

/// What happens to the bytes that are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// The bytes are written, and held for a retry as long as that needs no larger buffer.
    Hold,
    /// The bytes are written, and then dropped.
    Pass,
    /// The bytes are dropped, to find the message behind them.
    Discard,
}

impl Mode {
    /// Whether written bytes are dropped. `done` says that they are the whole message.
    pub(super) fn releases(self, done: bool, received: &Received) -> bool {
        self != Self::Hold || !done && !received.has_room()
    }
}

/// Why the rest of a message cannot be passed on.
#[derive(Debug)]
pub(super) enum Cut {
    /// The message is incomplete or malformed.
    Source(Cause),
    /// The other end does not accept the message.
    Sink(Cause),
}

impl From<BodyError> for Cut {
    fn from(error: BodyError) -> Self {
        Self::Source(Cause::Body(error))
    }
}

/// An end that speaks HTTP/1.
pub(super) trait OnConn {
    type Io: Io;

    fn conn(&mut self) -> &mut Conn<Self::Io>;
}

/// An end that speaks HTTP/2.
pub(super) trait OnStream {
    /// The stream. `None` before it is open, or once the client's stream answers another copy of the request.
    fn stream(&mut self) -> Option<&mut Stream>;

    /// The next part of the message's body.
    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Result<BodyPart, Reset>>;

    /// The trailers of the message.
    fn trailers(&self) -> Option<&Block>;

    /// Returns flow-control credit for written content to the peer, unless that was done when the content was read.
    fn release(&mut self, _content: usize) {}

    /// Ready once the proxy has reset the stream because it read too little of its content.
    fn poll_stalled(&mut self, _cx: &mut Context<'_>) -> Poll<Reset> {
        Poll::Pending
    }
}

/// Reads more of an HTTP/1 message, whose end `walker` finds. Ready when more has arrived, or when the connection has
/// ended and the message may end there.
pub(super) fn poll_read<I: Io>(
    from: &mut Conn<I>,
    walker: &mut BodyWalker,
    moved: &mut Moved,
    cx: &mut Context<'_>,
) -> Poll<Result<(), Cut>> {
    let cause = match ready!(from.received.poll_fill(&mut from.io, cx)) {
        Ok(0) => {
            from.read_closed = true;
            if walker.finish() {
                return Poll::Ready(Ok(()));
            }
            Cause::Closed
        }
        Ok(_) => {
            moved.reads += 1;
            return Poll::Ready(Ok(()));
        }
        Err(error) => Cause::Broken(error),
    };
    Poll::Ready(Err(Cut::Source(cause)))
}
