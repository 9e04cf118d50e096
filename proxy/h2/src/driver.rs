//! The task of a connection: it reads, handles the frames, and writes the frames that result.
#![expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "ranges lie within the buffers that this file fills"
)]

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use leno_transport::{Io, budget};
use tokio::io::ReadBuf;

use crate::clock::Clock;
use crate::error::{Abuse, ConnError, count};
use crate::frame;
use crate::inner::{Inner, Phase, SharedConn};
use crate::out::SLICES;
use crate::piece::{Chunk, Class};

/// How many reads of one connection are made before the task yields to others.
const READS: usize = 4;
/// After how many consecutive reads that fill only a small part of their chunk a smaller chunk is used.
const SMALL_READS: u8 = 16;

/// Drives a connection, and completes when the connection ends. Dropping it ends the connection and
/// all its streams.
///
/// Each wake-up makes one read (more if the read filled its buffer) and one write of everything
/// that all streams have queued. If the received frames have woken other tasks, the write waits
/// until those tasks have run.
pub struct Driver<S> {
    conn: SharedConn,
    io: S,
    inbox: Inbox,
    clock: Clock,
    /// Whether the write was already postponed, to let the woken tasks run first.
    deferred: bool,
    closing: Option<Closing>,
}

/// Bytes that were read but not yet parsed.
struct Inbox {
    chunk: Chunk,
    start: usize,
    end: usize,
    /// How many bytes, counted from `start`, the next step needs.
    want: usize,
    class: Class,
    small_reads: u8,
}

/// The end of a connection: everything queued is written, then we wait for the peer to close first.
/// Closing while the peer still sends would cause a reset, which destroys data that the peer has
/// not read yet.
struct Closing {
    result: Result<(), ConnError>,
    /// Whether our direction of the byte stream was shut down.
    shut: bool,
    /// How many more bytes of the peer are read and discarded.
    left: usize,
}

impl<S: Io> Driver<S> {
    pub(crate) fn new(conn: SharedConn, io: S, received: &[u8]) -> Self {
        let mut inbox = Inbox::new();
        inbox.put(received);
        let clock = Clock::new(&conn.borrow().limits);
        Self { conn, io, inbox, clock, deferred: false, closing: None }
    }

    /// The byte stream below.
    pub fn io(&self) -> &S {
        &self.io
    }

    /// Drives the connection until it ends. `Ok` means that it ended gracefully.
    ///
    /// # Errors
    /// Either side closed abruptly, or the peer broke the protocol or exceeded a limit.
    pub async fn run(self) -> Result<(), ConnError> {
        self.await
    }

    fn poll_open(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ConnError>> {
        {
            let mut inner = self.conn.borrow_mut();
            inner.notified = false;
            if inner.half_changed {
                return Poll::Ready(Err(ConnError::io(
                    io::ErrorKind::Other,
                    "a task of this connection panicked",
                )));
            }
        }
        if self.inbox.end > self.inbox.start && self.inbox.want == 0 {
            // Bytes that protocol detection has already read.
            self.receive()?;
        }
        let again = self.poll_reads(cx)?;
        {
            let mut inner = self.conn.borrow_mut();
            let partial = self.inbox.want > 1 && !self.inbox.is_empty();
            let urgent = inner.reading.is_urgent() || partial;
            if self.clock.poll(&mut inner, urgent, cx)? && self.io.is_unanswered() {
                count(Abuse::Unanswered);
                let what = "the peer's machine acknowledges no packets";
                return Poll::Ready(Err(ConnError::io(io::ErrorKind::TimedOut, what)));
            }
        }
        self.flush(cx)?;
        let mut inner = self.conn.borrow_mut();
        if inner.phase >= Phase::Draining || inner.unused {
            let over = inner.open == 0 && inner.accepted.is_empty();
            if over && inner.phase != Phase::Announced && inner.out.is_empty() {
                return Poll::Ready(Ok(()));
            }
        }
        if again {
            inner.driver_woken = true;
            cx.waker().wake_by_ref();
        } else if !self.deferred {
            inner.driver_woken = false;
        }
        Poll::Pending
    }

    /// Reads what is available, up to [`READS`] times. Returns whether there may be more to read at
    /// once.
    fn poll_reads(&mut self, cx: &mut Context<'_>) -> Result<bool, ConnError> {
        for _ in 0..READS {
            let broken = |error: io::Error| {
                ConnError::io(error.kind(), "the connection broke while reading")
            };
            match self.io.poll_read_ready(cx) {
                Poll::Pending => {
                    self.inbox.park();
                    return Ok(false);
                }
                Poll::Ready(ready) => ready.map_err(broken)?,
            }
            match self.inbox.poll_fill(&mut self.io, cx) {
                Poll::Pending => {
                    self.inbox.park();
                    return Ok(false);
                }
                Poll::Ready(Ok(0)) => {
                    let kind = io::ErrorKind::UnexpectedEof;
                    let inner = self.conn.borrow();
                    let clean = inner.open == 0 && inner.reading.is_between_frames();
                    return Err(match clean && self.inbox.is_empty() {
                        true => ConnError { io: None, ..ConnError::io(kind, "") },
                        false => ConnError::io(
                            kind,
                            "the peer closed the connection with streams or a frame unfinished",
                        ),
                    });
                }
                Poll::Ready(Ok(_)) => {
                    self.conn.borrow_mut().heard += 1;
                    self.receive()?;
                }
                Poll::Ready(Err(error)) => return Err(broken(error)),
            }
        }
        Ok(true)
    }

    fn receive(&mut self) -> Result<(), ConnError> {
        let inbox = &mut self.inbox;
        let used = self.conn.borrow_mut().receive(&inbox.chunk, inbox.start, inbox.end)?;
        inbox.used(used.start, used.want);
        Ok(())
    }

    /// Writes the queue, unless tasks have just been woken that are likely to add to it. If the
    /// queue is empty there is nothing to postpone: those tasks wake the driver when they queue
    /// something.
    fn flush(&mut self, cx: &mut Context<'_>) -> Result<(), ConnError> {
        let mut inner = self.conn.borrow_mut();
        inner.pump();
        if inner.notified && !self.deferred && !inner.out.is_empty() {
            // The woken tasks run before this task is polled again.
            self.deferred = true;
            inner.driver_woken = true;
            cx.waker().wake_by_ref();
            return Ok(());
        }
        self.deferred = false;
        poll_write(&mut self.io, &mut inner, cx)
            .map_err(|error| ConnError::io(error.kind(), "the connection broke while writing"))
    }

    /// Begins the end of the connection: queues a GOAWAY if one must be sent, and otherwise drops what is queued. A
    /// clean end by the peer is no error.
    fn close(&mut self, result: Result<(), ConnError>) {
        let mut inner = self.conn.borrow_mut();
        let quiet = matches!(&result, Err(error) if error.io.is_none() && error.what.is_empty());
        let result = if quiet { Ok(()) } else { result };
        if let Some(abuse) = result.as_ref().err().and_then(|error| error.abuse) {
            count(abuse);
        }
        inner.close(result.clone().err());
        let broken = matches!(&result, Err(error) if error.io.is_some());
        let told = match &result {
            Err(error) if broken || error.by_peer => false,
            Err(error) => {
                let last = inner.last_peer_id;
                inner.out.put(&frame::goaway(last, error.code));
                true
            }
            Ok(()) if quiet => false,
            Ok(()) => {
                let last = inner.last_peer_id;
                inner.out.put(&frame::goaway(last, crate::Code::NO_ERROR));
                true
            }
        };
        if !told {
            inner.out.clear();
        }
        self.inbox = Inbox { chunk: Chunk::default(), start: 0, end: 0, want: 0, ..self.inbox };
        // How many bytes to read and discard before the socket is closed. A socket that is closed with unread bytes
        // sends a reset. If the peer has closed or the connection is broken, there is nothing to read.
        let left = if quiet || broken { 0 } else { inner.limits.linger_bytes };
        self.clock.linger(&inner.limits);
        self.closing = Some(Closing { result, shut: false, left });
    }

    fn poll_closing(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ConnError>> {
        let Some(closing) = &mut self.closing else { return Poll::Pending };
        let mut inner = self.conn.borrow_mut();
        let done = |closing: &Closing| Poll::Ready(closing.result.clone());
        if poll_write(&mut self.io, &mut inner, cx).is_err() || closing.left == 0 {
            return done(closing);
        }
        if inner.out.is_empty() && !closing.shut {
            match Pin::new(&mut self.io).poll_shutdown(cx) {
                Poll::Ready(Ok(())) => closing.shut = true,
                Poll::Ready(Err(_)) => return done(closing),
                Poll::Pending => {}
            }
        }
        while let Poll::Ready(ready) = self.io.poll_read_ready(cx) {
            match (ready, self.inbox.poll_fill(&mut self.io, cx)) {
                (Ok(()), Poll::Ready(Ok(count))) if count > 0 && count <= closing.left => {
                    closing.left -= count;
                    self.inbox.used(self.inbox.end, 0);
                }
                (Ok(()), Poll::Pending) => break,
                _ => return done(closing),
            }
        }
        if self.clock.poll_linger(cx).is_pending() {
            return Poll::Pending;
        }
        if !inner.out.is_empty() {
            // The peer does not read. Without a reset the kernel would keep the unsent bytes as long as the peer does
            // not read.
            self.io.reset_on_drop();
        }
        done(closing)
    }
}

impl<S: Io> Future for Driver<S> {
    type Output = Result<(), ConnError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        {
            let mut inner = this.conn.borrow_mut();
            // The driver is running, so nothing needs to wake it.
            inner.driver_woken = true;
            if !inner.driver.as_ref().is_some_and(|driver| driver.will_wake(cx.waker())) {
                inner.driver = Some(cx.waker().clone());
            }
        }
        if this.closing.is_none() {
            let result = ready!(this.poll_open(cx));
            this.close(result);
        }
        this.poll_closing(cx)
    }
}

/// Writes until the queue is empty or the byte stream takes no more.
fn poll_write<S: Io>(io: &mut S, inner: &mut Inner, cx: &mut Context<'_>) -> io::Result<()> {
    let mut wrote = false;
    while !inner.out.is_empty() {
        let mut slices = [IoSlice::new(&[]); SLICES];
        let count = inner.out.slices(&mut slices);
        let written = match &slices[..count] {
            [only] => Pin::new(&mut *io).poll_write(cx, only),
            many => Pin::new(&mut *io).poll_write_vectored(cx, many),
        };
        match written {
            Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
            Poll::Ready(Ok(count)) => inner.out.advance(count),
            Poll::Ready(Err(error)) => return Err(error),
            Poll::Pending => return Ok(()),
        }
        wrote = true;
        inner.moved = true;
        inner.pump();
    }
    if wrote {
        // Some byte streams buffer what is written to them.
        if let Poll::Ready(Err(error)) = Pin::new(io).poll_flush(cx) {
            return Err(error);
        }
    }
    Ok(())
}

impl<S> Drop for Driver<S> {
    fn drop(&mut self) {
        let mut inner = self.conn.borrow_mut();
        let error = ConnError::io(io::ErrorKind::ConnectionAborted, "the driver was dropped");
        inner.close(Some(error));
        inner.out.clear();
        inner.driver = None;
    }
}

impl Inbox {
    fn new() -> Self {
        Self {
            chunk: Chunk::default(),
            start: 0,
            end: 0,
            want: 0,
            class: Class::FIRST_READ,
            small_reads: 0,
        }
    }

    fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Stores bytes that other code has read.
    fn put(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let class = Class::holding(bytes.len().max(Class::FIRST_READ.size()));
        self.chunk = Chunk::take(class);
        let count = bytes.len().min(self.chunk.len());
        if let Some(room) = self.chunk.unique() {
            room[..count].copy_from_slice(&bytes[..count]);
        }
        self.end = count;
    }

    /// Notes that the bytes before `start` were parsed and that the next step needs `want` bytes. If all bytes were
    /// parsed, gives up the chunk, so that an idle connection holds none.
    fn used(&mut self, start: usize, want: usize) {
        self.start = start;
        self.want = want;
        if self.is_empty() {
            (self.start, self.end) = (0, 0);
            self.chunk = Chunk::default();
        }
    }

    /// Reads once, into a chunk with room for at least the wanted bytes.
    fn poll_fill<S: Io>(&mut self, io: &mut S, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.make_room();
        let Some(room) = self.chunk.unique().and_then(|chunk| chunk.get_mut(self.end..)) else {
            return Poll::Ready(Err(io::ErrorKind::OutOfMemory.into()));
        };
        let asked = room.len();
        let mut buf = ReadBuf::new(room);
        let outcome = Pin::new(io).poll_read(cx, &mut buf);
        let count = buf.filled().len();
        self.end += count;
        if self.is_empty() {
            self.chunk = Chunk::default();
            (self.start, self.end) = (0, 0);
        }
        ready!(outcome)?;
        self.learn(asked, count);
        Poll::Ready(Ok(count))
    }

    /// Called before a wait. While memory is short, moves a partial frame into the smallest chunk that can hold it.
    fn park(&mut self) {
        if !budget::is_short() || self.is_empty() {
            return;
        }
        let held = self.end - self.start;
        let class = Class::holding(held);
        if class.size() < self.chunk.len() {
            self.move_to(class);
        }
    }

    fn make_room(&mut self) {
        if budget::is_short() {
            self.class = Class::FIRST_READ;
        }
        let held = self.end - self.start;
        let class = self.class.max(Class::holding(held.max(self.want) + 1));
        let fits = self.chunk.len() - self.start > self.want.max(held)
            && self.chunk.len() - self.end >= self.chunk.len() / 2;
        if fits && self.chunk.unique().is_some() {
            return;
        }
        self.move_to(class);
    }

    /// Moves the unparsed bytes to a chunk to which nothing else refers. They must fit into it.
    fn move_to(&mut self, class: Class) {
        let held = self.end - self.start;
        let mut chunk = Chunk::take(class);
        if let Some(room) = chunk.unique() {
            room[..held].copy_from_slice(&self.chunk[self.start..self.end]);
        }
        self.chunk = chunk;
        (self.start, self.end) = (0, held);
    }

    /// Adapts the chunk size: a read that fills the chunk makes the next chunk larger, and many small reads in a row
    /// make it smaller.
    fn learn(&mut self, asked: usize, count: usize) {
        if count == asked {
            self.class = self.class.larger();
            self.small_reads = 0;
        } else if count * 4 < self.class.size() {
            self.small_reads += 1;
            if self.small_reads == SMALL_READS {
                self.class = self.class.smaller();
                self.small_reads = 0;
            }
        } else {
            self.small_reads = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use leno_transport::budget::{Budget, Charge, MIN_BUDGET};

    use super::*;

    #[test]
    fn while_memory_is_short_reads_are_small_again() {
        // On a thread of its own, because a memory budget belongs to a thread.
        let test = std::thread::spawn(|| {
            let mut inbox = Inbox::new();
            inbox.class = Class::FIRST_READ.larger().larger();
            Budget::new(MIN_BUDGET).enter();
            inbox.make_room();
            assert_eq!(inbox.chunk.len(), Class::FIRST_READ.larger().larger().size());
            inbox.chunk = Chunk::default();
            let _others = Charge::new(MIN_BUDGET);
            inbox.make_room();
            assert_eq!(inbox.chunk.len(), Class::FIRST_READ.size());
        });
        test.join().unwrap();
    }
}
