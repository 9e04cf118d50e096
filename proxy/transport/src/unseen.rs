//! Whether the program at the other end has read any of a request whose connection broke, and whether it has
//! accepted the connection.
#![expect(unsafe_code, reason = "no crate in use reads SIOCOUTQ of a socket")]

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use leno_types::canonical;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::destroyed::{self, DestroyedSockets};
use crate::{Io, diag};

/// Longest wait for what the kernel knows of a connection that broke: for the reset of one whose end has been read, a
/// system call of the application's; for the message that its socket was destroyed, a task of the kernel's; both on a
/// busy machine.
const PROOF_WAIT: Duration = Duration::from_millis(100);
/// How often the reset is looked for. No event is waited for: it may have come with the end.
const RESET_LOOK: Duration = Duration::from_millis(1);

/// Longest wait until an application accepts a connection. A request that is written before waits there as long.
const ACCEPT_WAIT: Duration = Duration::from_secs(1);
/// How often the kernel is asked (4 us each time).
const ACCEPT_LOOK: Duration = Duration::from_millis(1);

/// `TCP_ESTABLISHED` and `TCP_CLOSE_WAIT` of net/tcp_states.h.
const CONNECTED: [u8; 2] = [1, 8];
/// `TCP_SYN_RECV` and `TCP_LISTEN` of net/tcp_states.h: the last packet of the handshake is on its way through the kernel.
const CONNECTING: [u8; 2] = [3, 10];
/// Longest wait for it. One that stays in SYN_RECV is accepted with the first bytes (`TCP_DEFER_ACCEPT`).
const HANDSHAKE_WAIT: Duration = Duration::from_millis(20);
/// Longest wait for a connection that the kernel does not show, as while it moves it from one table to another.
const UNKNOWN_WAIT: Duration = Duration::from_millis(1);

/// A connection that knows how much was written since the request on it began.
#[derive(Debug)]
pub struct Counted {
    stream: TcpStream,
    /// The address of the socket at the other end, and of this one, where destroyed sockets are followed.
    ends: Option<(SocketAddr, SocketAddr)>,
    made: Instant,
    /// Bytes written before the request, and of it.
    before: u64,
    written: u64,
    /// The end of what the other end sends has been read.
    ended: bool,
    /// A write or a read has failed with a reset that came before any end.
    reset: bool,
}

/// What is known of a connection that broke.
enum Proof {
    /// Nothing of the request was read.
    Unread,
    /// Nothing more can be found out.
    Missing,
    /// The kernel has not told yet.
    Later,
}

impl Counted {
    /// A connection on which nothing was written yet.
    #[must_use]
    pub fn new(stream: TcpStream) -> Self {
        let ends = destroyed::of_task().and_then(|_| ends(&stream));
        let (before, written) = (0, 0);
        Self { stream, ends, made: Instant::now(), before, written, ended: false, reset: false }
    }

    /// Counts from here on, as everything before has been answered.
    pub fn begin(&mut self) {
        self.before = self.before.saturating_add(self.written);
        self.written = 0;
    }

    /// Whether no program has read a byte of the request that was written to a connection which broke. False where that
    /// is not certain. The kernel proves it in one of two ways:
    ///
    /// - The application closed the connection before the request came. Its FIN, by which the end is read here,
    ///   acknowledges what had come until then, and what comes later is answered with a reset and not acknowledged (RFC
    ///   9293, 3.10.7.4). So there was an end, a reset, and no byte of the request is acknowledged. The kernel tells a
    ///   reset that came after the end from others in the first operation after it: that fails with EPIPE, else with
    ///   ECONNRESET. Every later read then returns 0, as if there had been an end.
    /// - The application closed the connection with bytes unread, which resets it without an end. The kernel announces how
    ///   many bytes came to the socket and how many of them were not read ([`follow_destroyed`](crate::follow_destroyed)).
    ///
    /// A reset alone proves nothing: an application can read and reset (`SO_LINGER`).
    pub async fn never_read(&self) -> bool {
        self.never_read_within(PROOF_WAIT).await
    }

    async fn never_read_within(&self, wait: Duration) -> bool {
        let sockets = destroyed::of_task();
        let proven = async {
            loop {
                // Made before the look, so that it hears of what comes after.
                let changed = sockets.as_ref().map(|sockets| sockets.changed.notified());
                match self.proof(sockets.as_deref()) {
                    Proof::Unread => return true,
                    Proof::Missing => return false,
                    Proof::Later => {}
                }
                tokio::select! {
                    () = async { changed.expect("checked").await }, if changed.is_some() => {}
                    () = sleep(RESET_LOOK) => {}
                }
            }
        };
        timeout(wait, pin!(proven)).await.unwrap_or(false)
    }

    fn proof(&self, sockets: Option<&DestroyedSockets>) -> Proof {
        if let Some((sockets, ends)) = sockets.zip(self.ends)
            && let Some(read) = sockets.take(ends, self.made)
        {
            return if read <= self.before { Proof::Unread } else { Proof::Missing };
        }
        // Of a connection that was reset the kernel knows no other end any more (ENOTCONN).
        let was_reset = self.reset || self.stream.peer_addr().is_err();
        let none_came = unacknowledged(&self.stream) == Some(self.written);
        if self.ended && !self.reset && none_came && self.written > 0 {
            return if was_reset { Proof::Unread } else { Proof::Later };
        }
        if was_reset && self.ends.is_some() { Proof::Later } else { Proof::Missing }
    }
}

/// The canonical addresses of the socket at the other end, and of this one.
fn ends(stream: &TcpStream) -> Option<(SocketAddr, SocketAddr)> {
    Some((canonical(stream.peer_addr().ok()?), canonical(stream.local_addr().ok()?)))
}

/// Waits until the application has accepted a new connection, so that its listener cannot reset it any more. False if
/// the connection is reset meanwhile: nothing was written to it, so that nothing is lost. True, too, where the kernel
/// does not know (the application is on another machine), or after [`ACCEPT_WAIT`].
pub async fn accepted(stream: &TcpStream) -> bool {
    let waiting = async {
        let begun = Instant::now();
        loop {
            let Some((server, own)) = ends(stream) else { return false };
            let is_waiting = match diag::find(server, own) {
                Ok(Some(found)) if CONNECTED.contains(&found.state) => found.inode == 0,
                Ok(Some(found)) if CONNECTING.contains(&found.state) => {
                    begun.elapsed() < HANDSHAKE_WAIT
                }
                Ok(None) => begun.elapsed() < UNKNOWN_WAIT,
                Ok(Some(_)) | Err(_) => false,
            };
            if !is_waiting {
                // Reset between the two looks.
                return stream.peer_addr().is_ok();
            }
            sleep(ACCEPT_LOOK).await;
        }
    };
    timeout(ACCEPT_WAIT, waiting).await.unwrap_or(true)
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

    fn ends_when_dropped(&self) -> bool {
        true
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
mod tests;
