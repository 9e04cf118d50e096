//! A connection as the data plane sees it: plain, encrypted, or in the memory of a test.

use std::io;
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream};
use tokio::net::{TcpStream, UnixStream};

use crate::{Presence, is_unanswered, presence};

/// A byte stream that reports when a read is worth a buffer, and which socket is below it.
pub trait Io: AsyncRead + AsyncWrite + Unpin {
    /// Ready when a read may return bytes, the end or an error. May be ready too early, never too
    /// late. A stream that cannot tell is always ready; then the read itself registers the waker.
    fn poll_read_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// The socket whose bytes are exactly the stream's; `None` when they are encrypted. With one on
    /// both sides of a relay the kernel can move the bytes.
    fn plain(&self) -> Option<&TcpStream> {
        None
    }

    /// The socket below, encrypted or not, for its options and its errors.
    fn socket(&self) -> Option<&TcpStream> {
        self.plain()
    }

    /// Makes the end of the connection a reset once the stream is dropped: unsent bytes are discarded,
    /// and the other end reads an error, so that it does not take a cut stream for a complete one.
    /// Does nothing where there is no socket.
    fn reset_on_drop(&mut self) {
        if let Some(socket) = self.socket() {
            // Fails only on a socket that is already gone.
            let _gone = SockRef::from(socket).set_linger(Some(Duration::ZERO));
        }
    }

    /// Ends the connection in the middle of a message, as [`Self::reset_on_drop`] does. `report`: what the other end is
    /// to learn of it, where the stream has a way to say so.
    fn cut(&mut self, _report: Option<u8>) {
        self.reset_on_drop();
    }

    /// What the other end has reported with [`Self::cut`].
    fn cut_report(&self) -> Option<u8> {
        None
    }

    /// Whether the remote machine has acknowledged nothing of what was sent, so that it seems to be
    /// lost.
    fn is_unanswered(&self) -> bool {
        self.socket().is_some_and(is_unanswered)
    }

    /// Whether the program at the remote end has closed the connection, so that it does not read
    /// what is sent either. A program that has only shut down its sending side has not left.
    fn presence(&self) -> Presence {
        match (self.plain(), self.socket()) {
            (Some(socket), _) => presence(socket),
            // Of a connection that was reset the kernel knows no other end.
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

/// The in-memory pipe of tests.
impl Io for DuplexStream {
    fn poll_read_ready(&mut self, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
