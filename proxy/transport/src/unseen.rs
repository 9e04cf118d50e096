//! Finds out, after a connection broke, whether the process at the other end has read any byte of the request. Also
//! waits until the application has accepted a new connection.
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

/// How long to wait for the kernel's information about a connection that broke. If the end of the stream was read, a
/// reset may follow, which depends on a system call of the application. The message that the socket was destroyed
/// depends on a task of the kernel. Both may be late on a busy machine.
const PROOF_WAIT: Duration = Duration::from_millis(100);
/// How often the reset is checked. There may be no event to wait for, because the reset may have arrived together with
/// the end.
const RESET_LOOK: Duration = Duration::from_millis(1);

/// How long to wait until an application accepts a connection. A request that is written before that would wait just as
/// long.
const ACCEPT_WAIT: Duration = Duration::from_secs(1);
/// How often the kernel is queried (4 us each time).
const ACCEPT_LOOK: Duration = Duration::from_millis(1);

/// The states `TCP_ESTABLISHED` and `TCP_CLOSE_WAIT` of net/tcp_states.h.
const CONNECTED: [u8; 2] = [1, 8];
/// The states `TCP_SYN_RECV` and `TCP_LISTEN` of net/tcp_states.h, which mean that the kernel is still processing the
/// last packet of the handshake.
const CONNECTING: [u8; 2] = [3, 10];
/// How long to wait for the end of the handshake. A connection that stays in SYN_RECV is accepted when its first bytes
/// arrive (`TCP_DEFER_ACCEPT`).
const HANDSHAKE_WAIT: Duration = Duration::from_millis(20);
/// How long to wait for a connection that the kernel does not list, for example while it moves the connection from one
/// table to another.
const UNKNOWN_WAIT: Duration = Duration::from_millis(1);

/// A connection that counts the bytes written since its current request began.
#[derive(Debug)]
pub struct Counted {
    stream: TcpStream,
    /// The addresses of the other socket and of this one, if destroyed sockets are followed.
    ends: Option<(SocketAddr, SocketAddr)>,
    made: Instant,
    /// How many bytes were written before the current request, and how many for it.
    before: u64,
    written: u64,
    /// Whether the end of the other side's stream has been read.
    ended: bool,
    /// Whether a write or a read has failed with a reset that was not preceded by an end.
    reset: bool,
}

/// What is known about a connection that broke.
enum Proof {
    /// Nothing of the request was read.
    Unread,
    /// No proof can be found.
    Missing,
    /// The kernel has not reported yet, so ask again.
    Later,
}

impl Counted {
    /// A connection on which nothing has been written yet.
    #[must_use]
    pub fn new(stream: TcpStream) -> Self {
        let ends = destroyed::of_task().and_then(|_| ends(&stream));
        let (before, written) = (0, 0);
        Self { stream, ends, made: Instant::now(), before, written, ended: false, reset: false }
    }

    /// Begins a new request. All bytes that were written before have been answered.
    pub fn begin(&mut self) {
        self.before = self.before.saturating_add(self.written);
        self.written = 0;
    }

    /// Whether it is certain that no program has read a byte of the request that was written to a connection which
    /// broke. The kernel proves this in one of two ways:
    ///
    /// - The application closed the connection before the request arrived. Its FIN, which is read here as the end,
    ///   acknowledges what had arrived by then. What arrives later is not acknowledged but answered with a reset (RFC
    ///   9293, 3.10.7.4). So there was an end and a reset, and no byte of the request is acknowledged. The first
    ///   operation after a reset shows whether the reset came after the end: it fails with EPIPE if so, and otherwise
    ///   with ECONNRESET. Every later read returns 0, as if there had been an end.
    /// - The application closed the connection with unread bytes, which resets it without an end. The kernel announces
    ///   how many bytes the socket received and how many of them were not read
    ///   ([`follow_destroyed`](crate::follow_destroyed)).
    ///
    /// A reset alone proves nothing: an application can read the request and then reset the connection (`SO_LINGER`).
    pub async fn never_read(&self) -> bool {
        self.never_read_within(PROOF_WAIT).await
    }

    async fn never_read_within(&self, wait: Duration) -> bool {
        let sockets = destroyed::of_task();
        let proven = async {
            loop {
                // Created before the check, so that no later notification is missed.
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
        // If the connection was reset, the kernel no longer has the peer's address (ENOTCONN).
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

/// Waits until the application has accepted a new connection, after which its listener can no longer reset it. Returns
/// false if the connection is reset meanwhile; nothing was written to it, so nothing is lost. Returns true also if the
/// kernel cannot determine this (the application is on another machine), or after [`ACCEPT_WAIT`].
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
                // The connection may have been reset between the two queries.
                return stream.peer_addr().is_ok();
            }
            sleep(ACCEPT_LOOK).await;
        }
    };
    timeout(ACCEPT_WAIT, waiting).await.unwrap_or(true)
}

/// How many bytes were written and are not acknowledged.
fn unacknowledged(stream: &TcpStream) -> Option<u64> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: for a socket, TIOCOUTQ is SIOCOUTQ (tcp(7)) and writes one int. The pointer to it is valid for the call,
    // and the descriptor is open as long as `stream` is borrowed.
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

/// Whether the error is not EPIPE. EPIPE means that the end had arrived before the reset.
fn is_reset(error: &io::Error) -> bool {
    error.kind() != io::ErrorKind::BrokenPipe
}

#[cfg(test)]
mod tests;
