//! Writes an answer to an HTTP/1 client, with a time limit of its own.

use std::cell::Cell;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::Instant;

use crate::Io;
use crate::conn::{Conn, poll_write_some};

/// How long a client may take to read an answer that the mesh generates: an error, or a page of the admin server. Such
/// answers mostly fit into the socket's buffer. A client that needs longer does not read at all, and would occupy a
/// connection forever without this limit.
pub(crate) const ANSWER_WRITE: Duration = Duration::from_secs(30);

thread_local! {
    static UNREAD: Cell<u64> = const { Cell::new(0) };
}

/// How many answers of the calling thread were not read by their clients in time.
pub fn unread_answers() -> u64 {
    UNREAD.get()
}

impl<S: Io> Conn<S> {
    /// Writes a head and a body.
    ///
    /// # Errors
    /// The connection broke, or the client did not read everything within [`ANSWER_WRITE`].
    pub(crate) async fn write_answer(&mut self, head: &[u8], body: &[u8]) -> io::Result<()> {
        #[expect(
            clippy::arithmetic_side_effects,
            reason = "a constant wait after the present time"
        )]
        let deadline = Instant::now() + ANSWER_WRITE;
        let mut parts = [IoSlice::new(head), IoSlice::new(body)];
        let (mut left, _) = parts.split_at_mut(if body.is_empty() { 1 } else { 2 });
        poll_fn(|cx| {
            let written = poll_write_parts(&mut self.io, &mut left, cx);
            if written.is_ready() {
                return written;
            }
            ready!(self.alarm.poll_at(deadline, cx));
            UNREAD.set(UNREAD.get().wrapping_add(1));
            Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
        })
        .await
    }
}

/// Writes the bytes in `left`. Ready when all are written and flushed.
fn poll_write_parts<S: Io>(
    io: &mut S,
    left: &mut &mut [IoSlice<'_>],
    cx: &mut Context<'_>,
) -> Poll<io::Result<()>> {
    while !left.is_empty() {
        let count = ready!(poll_write_some(io, left, cx))?;
        IoSlice::advance_slices(left, count);
    }
    Pin::new(io).poll_flush(cx)
}
