//! What the driver needs of a byte stream beyond reading and writing.

use std::io;
use std::task::{Context, Poll};

use leno_transport::Counted;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream};
use tokio::net::{TcpStream, UnixStream};

/// A byte stream that reports when a read is worth allocating a buffer for.
pub trait Io: AsyncRead + AsyncWrite + Unpin {
    /// Ready when a read may return bytes, the end or an error. May be ready too early, never too
    /// late. A stream that cannot tell is always ready; then the read itself registers the waker.
    fn poll_read_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Makes the connection end with a reset when it is dropped, so that the remote end does not
    /// take a truncated stream for a complete one. Does nothing if the byte stream has no reset.
    fn reset_on_drop(&mut self) {}

    /// Whether the remote machine has acknowledged nothing of what was sent, so that it seems to be
    /// lost.
    fn is_unanswered(&self) -> bool {
        false
    }

    /// Whether the program at the remote end has closed the connection, so that it does not read
    /// what is sent either. A program that has only shut down its sending side has not left.
    /// `false` if the byte stream cannot tell.
    fn has_left(&self) -> bool {
        false
    }

    /// Whether dropping the stream sends everything that was written, followed by an orderly end,
    /// provided that no received byte is left unread.
    fn ends_when_dropped(&self) -> bool {
        false
    }
}

impl Io for TcpStream {
    fn poll_read_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        TcpStream::poll_read_ready(self, cx)
    }

    fn reset_on_drop(&mut self) {
        // Fails only if the socket is closed already.
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
        // Fails only if the socket is closed already.
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
