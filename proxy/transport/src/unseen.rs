//! Whether what was written to a connection that broke has ever arrived.
#![expect(unsafe_code, reason = "no crate in use reads SIOCOUTQ of a socket")]

use std::io;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::Io;

/// Longest wait for the reset of a connection whose end has been read: a system call of the application's,
/// on a busy machine.
const RESET_WAIT: Duration = Duration::from_millis(50);
/// How often the reset is looked for. No event is waited for: it may have come with the end.
const RESET_LOOK: Duration = Duration::from_millis(1);
const RESET_LOOKS: u128 = RESET_WAIT.as_millis() / RESET_LOOK.as_millis();

/// A connection that knows how much was written since it was asked last.
#[derive(Debug)]
pub struct Counted {
    stream: TcpStream,
    written: u64,
    /// The end of what the other end sends has been read.
    ended: bool,
    /// A write or a read has failed with a reset that came before any end.
    reset: bool,
}

impl Counted {
    /// A connection on which nothing is under way.
    #[must_use]
    pub fn new(stream: TcpStream) -> Self {
        Self { stream, written: 0, ended: false, reset: false }
    }

    /// Counts from here on, as everything before has been answered.
    pub fn begin(&mut self) {
        self.written = 0;
    }

    /// Whether the other end has closed the connection before one byte of what was written came to it: then
    /// nobody there has read any of it. False where that is not certain.
    ///
    /// An application that closes a connection while a request is on its way refuses it so: its FIN, by which
    /// the end is read here, acknowledges what had come until then, and what comes later is answered with a reset
    /// and not acknowledged (RFC 9293, 3.10.7.4). A reset without an end says nothing: what came before it may
    /// have been read, and not been acknowledged yet.
    ///
    /// The kernel tells the two apart in the first operation after the reset: where the end came before, that fails with
    /// EPIPE, else with ECONNRESET. Every later read then returns 0, as if there had been an end.
    ///
    /// Waits for the reset for a moment: an application that is just closing answers when it has closed.
    pub async fn never_arrived(&self) -> bool {
        for _ in 0..=RESET_LOOKS {
            let none_came = unacknowledged(&self.stream) == Some(self.written);
            if !self.ended || self.reset || self.written == 0 || !none_came {
                return false;
            }
            // Of a connection that was reset the kernel knows no other end any more (ENOTCONN).
            if self.stream.peer_addr().is_err() {
                return true;
            }
            tokio::time::sleep(RESET_LOOK).await;
        }
        false
    }
}

/// Bytes written and not acknowledged.
fn unacknowledged(stream: &TcpStream) -> Option<u64> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: TIOCOUTQ (of a socket SIOCOUTQ, tcp(7)) writes one int, to which the pointer is valid for the
    // call; the descriptor is open as long as `stream` is borrowed.
    let done = unsafe { libc::ioctl(stream.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    (done == 0).then_some(bytes).and_then(|bytes| u64::try_from(bytes).ok())
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let (filled, room) = (buffer.filled().len(), buffer.remaining());
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        match &read {
            Poll::Ready(Ok(())) => self.ended |= room > 0 && buffer.filled().len() == filled,
            Poll::Ready(Err(error)) => self.reset |= is_reset(error),
            Poll::Pending => {}
        }
        read
    }
}

impl AsyncWrite for Counted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.note(wrote)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write_vectored(cx, bytes);
        self.note(wrote)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl Io for Counted {
    fn poll_read_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.poll_read_ready(cx)
    }

    fn socket(&self) -> Option<&TcpStream> {
        Some(&self.stream)
    }
}

impl Counted {
    fn note(&mut self, wrote: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match &wrote {
            Poll::Ready(Ok(bytes)) => self.written = self.written.saturating_add(*bytes as u64),
            Poll::Ready(Err(error)) => self.reset |= is_reset(error),
            Poll::Pending => {}
        }
        wrote
    }
}

/// Whether it is a failure other than that of a connection whose end had come before.
fn is_reset(error: &io::Error) -> bool {
    error.kind() != io::ErrorKind::BrokenPipe
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// A connection over which a first message was answered, and its other end.
    async fn used() -> (Counted, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut other, _) = listener.accept().await.unwrap();
        let mut own = Counted::new(stream);
        own.begin();
        own.write_all(b"first").await.unwrap();
        other.read_exact(&mut [0; 5]).await.unwrap();
        other.write_all(b"answer").await.unwrap();
        own.read_exact(&mut [0; 6]).await.unwrap();
        own.begin();
        (own, other)
    }

    #[tokio::test]
    async fn what_comes_to_a_closed_socket_has_not_arrived() {
        let (mut own, other) = used().await;
        drop(other);
        own.write_all(b"second").await.unwrap();
        assert_eq!(own.read(&mut [0; 16]).await.unwrap(), 0);
        assert!(own.never_arrived().await);
    }

    #[tokio::test]
    async fn what_came_before_a_socket_was_closed_has_arrived_though_nobody_read_it() {
        let (mut own, other) = used().await;
        own.write_all(b"second").await.unwrap();
        other.readable().await.unwrap();
        drop(other);
        own.read(&mut [0; 16]).await.unwrap_err();
        assert!(!own.never_arrived().await);
    }

    /// Writes until the kernel reports that the connection is closed.
    async fn write_until_refused(own: &mut Counted) -> io::ErrorKind {
        loop {
            if let Err(error) = own.write_all(b"more").await {
                return error.kind();
            }
        }
    }

    #[tokio::test]
    async fn a_message_of_several_writes_that_comes_to_a_closed_socket_has_not_arrived() {
        let (mut own, other) = used().await;
        drop(other);
        own.write_all(b"second").await.unwrap();
        assert_eq!(write_until_refused(&mut own).await, io::ErrorKind::BrokenPipe);
        assert_eq!(own.read(&mut [0; 16]).await.unwrap(), 0);
        assert!(own.never_arrived().await);
    }

    #[tokio::test]
    async fn a_reset_that_a_write_reports_is_no_end_though_reads_return_nothing_after_it() {
        let (mut own, other) = used().await;
        own.write_all(b"second").await.unwrap();
        other.readable().await.unwrap();
        drop(other);
        assert_eq!(write_until_refused(&mut own).await, io::ErrorKind::ConnectionReset);
        assert_eq!(own.read(&mut [0; 16]).await.unwrap(), 0);
        assert!(!own.never_arrived().await);
    }

    #[tokio::test]
    async fn an_end_that_may_still_read_may_have_read() {
        let (mut own, mut other) = used().await;
        other.shutdown().await.unwrap();
        own.write_all(b"second").await.unwrap();
        assert_eq!(own.read(&mut [0; 16]).await.unwrap(), 0);
        assert!(!own.never_arrived().await);
        other.read_exact(&mut [0; 6]).await.unwrap();
    }
}
