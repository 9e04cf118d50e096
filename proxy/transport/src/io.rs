//! A connection as the data plane uses it: plain, encrypted, or in memory in a test.

use std::io;
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream};
use tokio::net::{TcpStream, UnixStream};

use crate::{Presence, is_unanswered, presence};

/// A byte stream that reports when a read can return something, and which socket is below it.
pub trait Io: AsyncRead + AsyncWrite + Unpin {
    /// Ready when a read may return bytes, the end or an error. It may be ready too early, but never too late. A stream
    /// that cannot know this is always ready; its read then registers the waker.
    fn poll_read_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// The socket that carries exactly the bytes of the stream; `None` if they are encrypted. If both sides of a relay
    /// have one, the kernel can move the bytes.
    fn plain(&self) -> Option<&TcpStream> {
        None
    }

    /// The underlying socket, encrypted or not, for its options and errors.
    fn socket(&self) -> Option<&TcpStream> {
        self.plain()
    }

    /// Resets the connection when the stream is dropped: unsent bytes are discarded, and the other end reads an error,
    /// so that it does not mistake a truncated stream for a complete one. Does nothing without a socket.
    fn reset_on_drop(&mut self) {
        if let Some(socket) = self.socket() {
            // This only fails if the socket is already closed.
            let _gone = SockRef::from(socket).set_linger(Some(Duration::ZERO));
        }
    }

    /// Ends the connection in the middle of a message, as [`Self::reset_on_drop`] does. `report` is a code for the
    /// other end, if the stream can transmit one.
    fn cut(&mut self, _report: Option<u8>) {
        self.reset_on_drop();
    }

    /// The code that the other end has sent with [`Self::cut`].
    fn cut_report(&self) -> Option<u8> {
        None
    }

    /// Whether the remote machine acknowledges none of the sent bytes, so that it is probably lost.
    fn is_unanswered(&self) -> bool {
        self.socket().is_some_and(is_unanswered)
    }

    /// Whether the process at the remote end has closed the connection, so that it does not read any more either. A
    /// process that has only shut down its sending side has not left. If the stream is encrypted, only a reset shows
    /// that.
    fn presence(&self) -> Presence {
        match (self.plain(), self.socket()) {
            (Some(socket), _) => presence(socket),
            // If a connection was reset, the kernel no longer has its peer's address.
            (None, Some(socket)) if socket.peer_addr().is_err() => Presence::Left,
            (None, _) => Presence::Unknown,
        }
    }

    /// Whether dropping the stream sends everything that was written, followed by an orderly end,
    /// provided that no received byte is left unread.
    fn ends_when_dropped(&self) -> bool {
        self.plain().is_some()
    }
}

impl Io for TcpStream {
    fn poll_read_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Self::poll_read_ready(self, cx)
    }

    fn plain(&self) -> Option<&TcpStream> {
        Some(self)
    }
}

impl Io for UnixStream {
    fn poll_read_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Self::poll_read_ready(self, cx)
    }
}

/// An in-memory pipe, which tests use.
impl Io for DuplexStream {
    fn poll_read_ready(&mut self, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
