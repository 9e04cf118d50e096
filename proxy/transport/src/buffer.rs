//! Relay buffers. Each thread keeps a few free ones in a pool.
#![expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "start <= end <= length of the buffer, which `fill` and `consume` assert"
)]

use std::cell::RefCell;

use crate::budget::{self, Charge};

/// The size of a relay buffer. Copying in pieces of 64 KiB costs half as much per byte as in pieces of 8 KiB. Larger
/// buffers do not fit into the second-level cache.
pub const RELAY_BUFFER: usize = 64 * 1024;

/// How many free buffers a worker keeps: 256 KiB, so that an idle proxy stays small. Busy relays take and return a
/// buffer within one wake-up, so few are in use at a time.
const MAX_FREE: usize = 4;

thread_local! {
    static FREE: RefCell<Vec<Box<[u8]>>> = const { RefCell::new(Vec::new()) };
}

/// Frees the unused buffers and pipes of this thread. A worker calls this when it has no work in progress, so that an
/// idle proxy uses as little memory as a new one.
pub fn trim_buffers() {
    FREE.with_borrow_mut(|free| *free = Vec::new());
    crate::relay::trim_pipes();
}

/// A buffer of [`RELAY_BUFFER`] bytes, of which `start..end` are filled; smaller after [`Self::shrink`] or
/// [`Self::holding`]. Its memory is charged to the thread's [`crate::budget`], and returns to the pool when it is
/// dropped.
#[derive(Debug)]
pub struct Buffer {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
    charge: Charge,
}

impl Buffer {
    /// Takes a buffer from the pool, or creates one.
    #[must_use]
    pub fn take() -> Self {
        let pooled = FREE.with_borrow_mut(Vec::pop);
        let bytes = pooled.unwrap_or_else(|| vec![0; RELAY_BUFFER].into_boxed_slice());
        Self { bytes, start: 0, end: 0, charge: Charge::new(RELAY_BUFFER) }
    }

    /// A buffer that owns bytes which other code has read. It has no free space.
    #[must_use]
    pub fn holding(bytes: Vec<u8>) -> Self {
        let (end, charge) = (bytes.len(), Charge::new(bytes.len()));
        Self { bytes: bytes.into_boxed_slice(), start: 0, end, charge }
    }

    /// Reduces the memory to the filled bytes, for a wait. After that there is no free space until [`Buffer::compact`].
    pub fn shrink(&mut self) {
        if self.filled().len() < self.bytes.len() {
            let filled: Box<[u8]> = self.filled().into();
            (self.start, self.end) = (0, filled.len());
            self.charge = Charge::new(filled.len());
            give_back(std::mem::replace(&mut self.bytes, filled));
        }
    }

    /// The bytes that are filled and not consumed.
    #[must_use]
    pub fn filled(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// The same bytes, for changes in place.
    pub fn filled_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.end]
    }

    /// Moves the filled bytes to the front, so that all free space is after them. If the buffer was shrunk, it gets its
    /// full size [`RELAY_BUFFER`] again.
    pub fn compact(&mut self) {
        if self.bytes.len() < RELAY_BUFFER {
            let mut whole = Self::take();
            whole.bytes[..self.filled().len()].copy_from_slice(self.filled());
            whole.end = self.filled().len();
            *self = whole;
            return;
        }
        self.bytes.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
    }

    /// The free space after the filled bytes.
    pub fn unfilled(&mut self) -> &mut [u8] {
        &mut self.bytes[self.end..]
    }

    /// Marks `n` more bytes as filled.
    ///
    /// # Panics
    /// If there is no room for them.
    pub fn fill(&mut self, n: usize) {
        assert!(n <= self.bytes.len() - self.end, "filled past the end");
        self.end += n;
    }

    /// Marks the first `n` filled bytes as used up.
    ///
    /// # Panics
    /// If fewer are filled.
    pub fn consume(&mut self, n: usize) {
        assert!(n <= self.end - self.start, "consumed more than was filled");
        self.start += n;
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        give_back(std::mem::take(&mut self.bytes));
    }
}

/// Returns a buffer to the pool if it has the full size, the pool has few buffers and memory is not short. Otherwise
/// frees it.
fn give_back(bytes: Box<[u8]>) {
    if bytes.len() != RELAY_BUFFER || budget::is_short() {
        return;
    }
    // While the thread ends, the pool no longer exists, and the buffer is freed.
    let _ended = FREE.try_with(|free| {
        let mut free = free.borrow_mut();
        if free.len() < MAX_FREE {
            free.push(bytes);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_used_again_and_the_pool_is_bounded() {
        let many: Vec<Buffer> = (0..MAX_FREE + 3).map(|_| Buffer::take()).collect();
        drop(many);
        assert_eq!(FREE.with_borrow(Vec::len), MAX_FREE);
        let mut buffer = Buffer::take();
        assert_eq!(FREE.with_borrow(Vec::len), MAX_FREE - 1);
        buffer.unfilled()[..5].copy_from_slice(b"hello");
        buffer.fill(5);
        buffer.consume(2);
        assert_eq!(buffer.filled(), b"llo");
        buffer.compact();
        assert_eq!(buffer.filled(), b"llo");
        assert_eq!(buffer.unfilled().len(), RELAY_BUFFER - 3);
        buffer.filled_mut()[0] = b'L';
        assert_eq!(buffer.filled(), b"Llo");
        buffer.consume(3);
        assert_eq!(buffer.unfilled().len(), RELAY_BUFFER);
        trim_buffers();
        assert_eq!(FREE.with_borrow(Vec::capacity), 0);
    }

    #[test]
    fn a_buffer_is_charged_while_it_is_held_and_shrinks_to_what_it_holds() {
        let before = budget::charged();
        let mut buffer = Buffer::take();
        assert_eq!(budget::charged() - before, RELAY_BUFFER);
        buffer.unfilled()[..5].copy_from_slice(b"hello");
        buffer.fill(5);
        buffer.consume(1);
        buffer.shrink();
        assert_eq!((buffer.filled(), budget::charged() - before), (&b"ello"[..], 4));
        buffer.compact();
        assert_eq!(buffer.filled(), b"ello");
        assert_eq!(buffer.unfilled().len(), RELAY_BUFFER - 4);
        assert_eq!(budget::charged() - before, RELAY_BUFFER);
        buffer.consume(4);
        assert!(buffer.filled().is_empty());
        drop(buffer);
        let buffer = Buffer::holding(b"hello".to_vec());
        assert_eq!((buffer.filled(), budget::charged() - before), (&b"hello"[..], 5));
        drop(buffer);
        assert_eq!(budget::charged(), before);
    }
}
