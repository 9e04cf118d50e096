//! What the engine needs of a byte stream beyond reading and writing it.

use std::io;
use std::task::{Context, Poll};

use leno_transport::Counted;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream};
use tokio::net::{TcpStream, UnixStream};

/// A byte stream that can say when a read is worth a buffer.
pub trait Io: AsyncRead + AsyncWrite + Unpin {
    /// Ready when a read may find bytes, the end or an error. May be ready too early, never too
    /// late: a stream that cannot know is always ready, and the read itself registers the waker.
    fn poll_read_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Asks that the connection ends with a reset when it is dropped, so that the other end does
    /// not take a cut stream for a complete one. Does nothing where the stream has no such end.
    fn reset_on_drop(&mut self) {}

    /// Whether the other machine acknowledges nothing of what was sent, so that it seems to be lost.
    fn is_unanswered(&self) -> bool {
        false
    }

    /// Whether the program at the other end has closed the connection, so that it does not read what is
    /// sent either. A program that has only said that it sends no more has not left. `false` where that
    /// cannot be known.
    fn has_left(&self) -> bool {
        false
    }

    /// Whether dropping it sends what was written and then says in order that no more comes, as
    /// long as nothing was received that was not read.
    fn ends_when_dropped(&self) -> bool {
        false
    }
}

impl Io for TcpStream {
    fn poll_read_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        TcpStream::poll_read_ready(self, cx)
    }

    fn reset_on_drop(&mut self) {
        // Fails only on a socket that is already gone.
        let _ = self.set_zero_linger();
    }

    fn is_unanswered(&self) -> bool {
        leno_transport::is_unanswered(self)
    }

    fn has_left(&self) -> bool {
        leno_transport::has_left(self)
    }

    fn ends_when_dropped(&self) -> bool {
        true
    }
}

impl Io for Counted {
    fn poll_read_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket().poll_read_ready(cx)
    }

    fn reset_on_drop(&mut self) {
        // As above.
        let _ = self.socket().set_zero_linger();
    }

    fn is_unanswered(&self) -> bool {
        leno_transport::is_unanswered(self.socket())
    }

    fn ends_when_dropped(&self) -> bool {
        true
    }
}

impl Io for UnixStream {
    fn poll_read_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        UnixStream::poll_read_ready(self, cx)
    }
}

/// The in-memory pipe of tests.
impl Io for DuplexStream {
    fn poll_read_ready(&mut self, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl<T: Io + ?Sized> Io for Box<T> {
    fn poll_read_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        (**self).poll_read_ready(cx)
    }

    fn reset_on_drop(&mut self) {
        (**self).reset_on_drop();
    }

    fn is_unanswered(&self) -> bool {
        (**self).is_unanswered()
    }

    fn has_left(&self) -> bool {
        (**self).has_left()
    }
}
