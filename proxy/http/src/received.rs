//! The bytes that a connection has received and not yet consumed.
#![expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "start <= end <= length of the buffer, which `consume` and `poll_fill` keep"
)]

use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use leno_transport::budget;
use tokio::io::ReadBuf;

use crate::Io;
use crate::pool::{Buffer, Class};

/// The received bytes. There is a buffer only while there are bytes. The size of the buffer adapts to the stream: after
/// a read that fills it the next buffer is larger, and after a read that uses less than an eighth the next one is
/// smaller. While the memory budget of this thread ([`budget`]) is nearly used up, the next one is the smallest.
#[derive(Debug)]
pub(crate) struct Received {
    buffer: Buffer,
    /// The received bytes are at `start..end` of the buffer.
    start: usize,
    end: usize,
    /// The size of the next buffer.
    next: Class,
}

impl Received {
    pub(crate) const fn new(buffer: Buffer) -> Self {
        Self { buffer, start: 0, end: 0, next: Class::SMALLEST }
    }

    /// Begins with bytes that were read before it was known that the connection carries HTTP.
    pub(crate) fn with_bytes(bytes: &[u8]) -> Self {
        let class = Class::holding(bytes.len());
        let mut received = Self::new(Buffer::default());
        if !bytes.is_empty() {
            assert!(bytes.len() <= class.size(), "more was read ahead than the largest buffer");
            received.buffer = Buffer::take(class);
            received.buffer[..bytes.len()].copy_from_slice(bytes);
            received.end = bytes.len();
        }
        received
    }

    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Whether more can be read without a larger buffer.
    pub(crate) fn has_room(&self) -> bool {
        self.is_empty() || self.end - self.start < self.buffer.len()
    }

    /// Drops the first `count` bytes, and returns the buffer to the pool when none is left.
    pub(crate) fn consume(&mut self, count: usize) {
        debug_assert!(count <= self.end - self.start);
        self.start = self.end.min(self.start + count);
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
            self.buffer = Buffer::default();
        }
    }

    /// Removes bytes from the middle. The positions before them stay valid.
    pub(crate) fn remove(&mut self, range: Range<usize>) {
        self.buffer.copy_within(self.start + range.end..self.end, self.start + range.start);
        self.end -= range.len();
        self.consume(0);
    }

    /// Called at the end of a message, so that the next message begins with a small buffer again.
    pub(crate) fn settle(&mut self) {
        self.next = self.next.min(Class::LARGEST_AT_START);
    }

    /// Reads once. Takes a buffer only when there are bytes to read, and holds none while it is pending. `Ok(0)` is the
    /// end of the stream.
    pub(crate) fn poll_fill<S: Io>(
        &mut self,
        io: &mut S,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        ready!(io.poll_read_ready(cx))?;
        self.make_room();
        let room = self.buffer.len() - self.end;
        let mut unfilled = ReadBuf::new(&mut self.buffer[self.end..]);
        let outcome = Pin::new(io).poll_read(cx, &mut unfilled);
        let count = unfilled.filled().len();
        self.end += count;
        if count == room {
            self.next = self.buffer.class().larger();
        } else if count > 0 && count < self.buffer.len() / 8 {
            self.next = self.buffer.class().smaller();
        }
        if self.is_empty() {
            self.buffer = Buffer::default();
        }
        outcome.map_ok(|()| count)
    }

    fn make_room(&mut self) {
        if self.buffer.is_empty() {
            if budget::is_short() {
                self.next = Class::SMALLEST;
            }
            self.buffer = Buffer::take(self.next);
        } else if self.end == self.buffer.len() {
            let held = self.end - self.start;
            if held == self.buffer.len() {
                let mut larger = Buffer::take(self.buffer.class().larger());
                assert!(larger.len() > held, "the parser refuses before the largest is full");
                larger[..held].copy_from_slice(self.bytes());
                self.buffer = larger;
            } else {
                self.buffer.copy_within(self.start..self.end, 0);
            }
            self.start = 0;
            self.end = held;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use tokio::io::AsyncWriteExt;

    async fn fill(received: &mut Received, io: &mut tokio::io::DuplexStream) -> usize {
        poll_fn(|cx| received.poll_fill(io, cx)).await.unwrap()
    }

    #[tokio::test]
    async fn the_buffer_grows_while_it_is_held_and_shrinks_after_short_reads() {
        let (mut near, mut far) = tokio::io::duplex(1 << 20);
        let mut received = Received::new(Buffer::default());
        far.write_all(&[7; 40_000]).await.unwrap();
        assert_eq!(fill(&mut received, &mut near).await, 4096);
        assert_eq!(fill(&mut received, &mut near).await, 16384 - 4096);
        assert!(!received.has_room());
        received.consume(100);
        assert_eq!(fill(&mut received, &mut near).await, 100);
        assert!(received.bytes().iter().all(|byte| *byte == 7));
        received.consume(16384);
        assert_eq!(fill(&mut received, &mut near).await, 40_000 - 16_484);
        received.consume(40_000 - 16_484);
        for expected in [65536, 65536, 16384, 4096] {
            far.write_all(b"x").await.unwrap();
            fill(&mut received, &mut near).await;
            assert!(received.buffer.len() <= expected);
            received.consume(1);
        }
        assert_eq!(crate::pool_stats().used, [0; 4]);
    }

    #[tokio::test]
    async fn a_pending_read_holds_no_buffer() {
        let (mut near, _far) = tokio::io::duplex(64);
        let mut received = Received::new(Buffer::default());
        poll_fn(|cx| {
            assert!(received.poll_fill(&mut near, cx).is_pending());
            Poll::Ready(())
        })
        .await;
        assert_eq!(crate::pool_stats().used, [0; 4]);
    }
}
