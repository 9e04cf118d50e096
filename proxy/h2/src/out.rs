//! The write queue: frame headers and small payloads in one buffer, large payloads beside it.
#![expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "positions are those of bytes that this file has queued"
)]

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::IoSlice;

use crate::piece::Piece;

/// A payload up to this size is copied behind its frame header, because the copy is cheaper than another slice in the
/// vectored write.
pub(crate) const COPIED_BYTES: usize = 2048;
/// The number of slices of one vectored write. It is more than a full queue of largest frames has.
pub(crate) const SLICES: usize = 64;
/// The largest write buffer that is kept for reuse.
const KEPT_BYTES: usize = 64 * 1024;
/// How many free buffers each thread keeps: enough for the connections that have something to write between two polls
/// of the runtime.
const KEPT_BUFFERS: usize = 32;

thread_local! {
    static FREE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// The write queue of one connection. It has a buffer only while there are bytes to write.
#[derive(Debug, Default)]
pub(crate) struct Out {
    buf: Vec<u8>,
    /// How many bytes of `buf` were written.
    done: usize,
    /// Payloads, each with the position in `buf` before which it is sent.
    pieces: VecDeque<(usize, Piece)>,
    /// How many bytes wait to be written.
    len: usize,
    /// How many bytes were ever queued.
    queued: u64,
}

impl Out {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The position of the next queued byte in the connection's byte stream.
    pub(crate) fn position(&self) -> u64 {
        self.queued
    }

    /// The position of the next byte to write in the connection's byte stream.
    pub(crate) fn written(&self) -> u64 {
        self.queued - self.len as u64
    }

    pub(crate) fn put(&mut self, bytes: &[u8]) {
        self.ready();
        self.buf.extend_from_slice(bytes);
        self.len += bytes.len();
        self.queued += bytes.len() as u64;
    }

    /// Lets `write` append to the buffer; returns the result of `write`.
    pub(crate) fn append<T>(&mut self, write: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        self.ready();
        let before = self.buf.len();
        let result = write(&mut self.buf);
        debug_assert!(self.buf.len() >= before);
        self.len += self.buf.len() - before;
        self.queued += (self.buf.len() - before) as u64;
        result
    }

    pub(crate) fn put_piece(&mut self, piece: Piece) {
        if piece.len() <= COPIED_BYTES {
            return self.put(&piece);
        }
        self.len += piece.len();
        self.queued += piece.len() as u64;
        self.pieces.push_back((self.buf.len(), piece));
    }

    fn ready(&mut self) {
        if self.buf.capacity() == 0 {
            self.buf = FREE.with(|free| free.borrow_mut().pop()).unwrap_or_default();
        }
    }

    /// Fills `slices` in order and returns their number.
    pub(crate) fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>; SLICES]) -> usize {
        let mut count = 0;
        let mut at = self.done;
        let mut add = |bytes: &'a [u8]| {
            if !bytes.is_empty() && count < SLICES {
                slices[count] = IoSlice::new(bytes);
                count += 1;
            }
        };
        // At most two slices per piece.
        for (position, piece) in self.pieces.iter().take(SLICES / 2) {
            add(&self.buf[at..*position]);
            add(piece);
            at = *position;
        }
        if self.pieces.len() <= SLICES / 2 {
            add(&self.buf[at..]);
        }
        count
    }

    /// Removes `count` written bytes from the queue.
    pub(crate) fn advance(&mut self, mut count: usize) {
        self.len -= count;
        while count > 0 {
            let until = self.pieces.front().map_or(self.buf.len(), |(position, _)| *position);
            let step = count.min(until - self.done);
            self.done += step;
            count -= step;
            if let Some((_, piece)) = self.pieces.front_mut().filter(|_| count > 0) {
                let step = count.min(piece.len());
                piece.advance(step);
                count -= step;
                if piece.is_empty() {
                    self.pieces.pop_front();
                }
            }
        }
        if self.len == 0 {
            self.release();
        } else if self.done > KEPT_BYTES {
            self.compact();
        }
    }

    /// Drops the written part of the buffer. Without this, a queue that is never empty would grow
    /// for ever.
    fn compact(&mut self) {
        self.buf.drain(..self.done);
        for (position, _) in &mut self.pieces {
            *position -= self.done;
        }
        self.done = 0;
    }

    fn release(&mut self) {
        debug_assert!(self.pieces.is_empty());
        let mut buf = std::mem::take(&mut self.buf);
        self.done = 0;
        buf.clear();
        if buf.capacity() <= KEPT_BYTES {
            // An error means that the thread is ending. The buffer is then freed.
            let _ = FREE.try_with(|free| {
                let mut free = free.borrow_mut();
                if free.len() < KEPT_BUFFERS {
                    free.push(buf);
                }
            });
        }
    }

    /// Drops everything that is queued.
    pub(crate) fn clear(&mut self) {
        self.pieces.clear();
        self.len = 0;
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bytes_leave_in_the_order_they_came(
            parts in prop::collection::vec((0usize..5000, any::<bool>()), 0..80),
            steps in prop::collection::vec(1usize..9000, 1..50),
        ) {
            let mut out = Out::default();
            let mut expected = vec![];
            for (i, (len, piece)) in parts.iter().enumerate() {
                let bytes = vec![i as u8; *len];
                if *piece { out.put_piece(Piece::copied(&bytes)) } else { out.put(&bytes) }
                expected.extend(bytes);
            }
            prop_assert_eq!(out.len(), expected.len());
            let mut written = vec![];
            for step in steps.iter().cycle() {
                if out.is_empty() {
                    break;
                }
                let mut slices = [IoSlice::new(&[]); SLICES];
                let count = out.slices(&mut slices);
                prop_assert!(count > 0);
                let seen: Vec<u8> = slices[..count].iter().flat_map(|s| s.to_vec()).collect();
                let step = (*step).min(seen.len());
                written.extend_from_slice(&seen[..step]);
                out.advance(step);
            }
            prop_assert_eq!(written, expected);
            prop_assert_eq!(out.position(), out.written());
        }
    }

    #[test]
    fn an_empty_queue_owns_no_buffer() {
        let mut out = Out::default();
        out.put(b"x");
        out.advance(1);
        assert_eq!(out.buf.capacity(), 0);
    }
}
