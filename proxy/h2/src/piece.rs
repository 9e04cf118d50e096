//! Pooled chunks of received bytes, and refcounted pieces of them.
#![expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "a piece's range lies within its chunk, and there is a list for each class"
)]

use std::cell::RefCell;
use std::fmt;
use std::ops::{Deref, Range};
use std::rc::Rc;

use leno_transport::budget;

/// Sizes of chunks. The smallest is for copies of small payloads that must wait. The second has room for the largest
/// frame that most peers send, and for the bytes before it. The largest is as much as one read of a bulk stream can use
/// before it no longer fits into the processor's cache.
const SIZES: [usize; 4] = [4 * 1024, 20 * 1024, 64 * 1024, 256 * 1024];

/// How many free chunks of each size are kept, at most 3.25 MiB per worker. Others are freed.
const KEPT: [usize; 4] = [192, 24, 16, 4];

/// The size of a chunk, as an index into [`SIZES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Class(u8);

impl Class {
    #[cfg(test)]
    pub(crate) const SMALLEST: Self = Self(0);
    /// The size for the first read of a connection.
    pub(crate) const FIRST_READ: Self = Self(1);

    pub(crate) fn size(self) -> usize {
        SIZES[self.0 as usize]
    }

    pub(crate) fn larger(self) -> Self {
        Self((self.0 + 1).min(SIZES.len() as u8 - 1))
    }

    pub(crate) fn smaller(self) -> Self {
        Self(self.0.saturating_sub(1)).max(Self::FIRST_READ)
    }

    /// The smallest size that holds `bytes`, or the largest size.
    pub(crate) fn holding(bytes: usize) -> Self {
        let class = SIZES.iter().position(|size| *size >= bytes).unwrap_or(SIZES.len() - 1);
        Self(class as u8)
    }
}

thread_local! {
    static FREE: [RefCell<Vec<Rc<[u8]>>>; SIZES.len()] = const { [const { RefCell::new(Vec::new()) }; SIZES.len()] };
}

/// Frees the calling thread's pooled chunks and heads. To be called when a worker has become idle.
pub fn trim_chunks() {
    crate::head::trim();
    FREE.with(|free| free.iter().for_each(|list| drop(list.take())));
}

/// A buffer for reads, of which [`Piece`]s are split off. The default has no memory. The chunk counts in the worker's
/// memory budget as long as there is any reference to it.
#[derive(Default)]
pub(crate) struct Chunk(Option<Rc<[u8]>>);

impl Chunk {
    pub(crate) fn take(class: Class) -> Self {
        let pooled = FREE.try_with(|free| free[class.0 as usize].borrow_mut().pop()).ok().flatten();
        Self::charged(pooled.unwrap_or_else(|| Rc::from(vec![0; class.size()])))
    }

    /// Creates the first reference to a chunk, and counts the chunk in the budget.
    fn charged(rc: Rc<[u8]>) -> Self {
        budget::charge(rc.len());
        Self(Some(rc))
    }

    /// The whole chunk for writing. `None` while any piece of it exists.
    pub(crate) fn unique(&mut self) -> Option<&mut [u8]> {
        Rc::get_mut(self.0.as_mut()?)
    }

    pub(crate) fn piece(&self, range: Range<usize>) -> Piece {
        debug_assert!(range.start <= range.end && range.end <= self.len());
        Piece { chunk: Self(self.0.clone()), start: range.start, end: range.end }
    }
}

impl Deref for Chunk {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.0.as_deref().unwrap_or_default()
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        let Some(rc) = self.0.take() else { return };
        if Rc::strong_count(&rc) > 1 {
            return;
        }
        budget::credit(rc.len());
        if budget::is_short() {
            return;
        }
        let Some(class) = SIZES.iter().position(|size| *size == rc.len()) else { return };
        // An error means that the thread is ending. The chunk is then freed.
        let _ = FREE.try_with(|free| {
            let mut list = free[class].borrow_mut();
            if list.len() < KEPT[class] {
                list.push(rc);
            }
        });
    }
}

/// Bytes of a body: a shared part of a chunk, without a copy. It cannot leave its thread. The default is empty and has
/// no memory.
#[derive(Default)]
pub struct Piece {
    chunk: Chunk,
    start: usize,
    end: usize,
}

impl Piece {
    /// A copy of `bytes`, in a pooled chunk unless they are too many for one.
    #[must_use]
    pub fn copied(bytes: &[u8]) -> Self {
        let mut chunk = Chunk::take(Class::holding(bytes.len()));
        match chunk.unique().and_then(|room| room.get_mut(..bytes.len())) {
            Some(room) => {
                room.copy_from_slice(bytes);
                Self { chunk, start: 0, end: bytes.len() }
            }
            None => Self { chunk: Chunk::charged(Rc::from(bytes)), start: 0, end: bytes.len() },
        }
    }

    /// How many bytes stay allocated because of this piece: those of its whole chunk.
    #[must_use]
    pub fn pinned(&self) -> usize {
        self.chunk.len()
    }

    /// Splits off the first `count` bytes, or all bytes if there are fewer. This piece keeps the rest.
    #[must_use]
    pub fn split_to(&mut self, count: usize) -> Self {
        let at = self.start + count.min(self.len());
        let first = Self { chunk: Chunk(self.chunk.0.clone()), start: self.start, end: at };
        self.start = at;
        first
    }

    pub(crate) fn advance(&mut self, count: usize) {
        self.start = (self.start + count).min(self.end);
    }

    /// Appends `bytes` if nothing else refers to the chunk and there is room. Returns whether it
    /// did.
    #[must_use]
    pub fn try_append(&mut self, bytes: &[u8]) -> bool {
        let end = self.end + bytes.len();
        let room = self.chunk.unique().and_then(|chunk| chunk.get_mut(self.end..end));
        let Some(room) = room else { return false };
        room.copy_from_slice(bytes);
        self.end = end;
        true
    }
}

impl Deref for Piece {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.chunk[self.start..self.end]
    }
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Clone for Piece {
    fn clone(&self) -> Self {
        Self { chunk: Chunk(self.chunk.0.clone()), start: self.start, end: self.end }
    }
}

impl fmt::Debug for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Piece({} bytes)", self.len())
    }
}

impl From<&[u8]> for Piece {
    fn from(bytes: &[u8]) -> Self {
        Self::copied(bytes)
    }
}

impl From<Vec<u8>> for Piece {
    fn from(bytes: Vec<u8>) -> Self {
        let end = bytes.len();
        Self { chunk: Chunk::charged(Rc::from(bytes)), start: 0, end }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn free(class: Class) -> usize {
        FREE.with(|free| free[class.0 as usize].borrow().len())
    }

    #[test]
    fn a_chunk_returns_with_its_last_piece() {
        trim_chunks();
        let mut chunk = Chunk::take(Class::SMALLEST);
        chunk.unique().unwrap()[..5].copy_from_slice(b"hello");
        let mut piece = chunk.piece(0..5);
        assert!(chunk.unique().is_none());
        drop(chunk);
        assert_eq!(free(Class::SMALLEST), 0);
        let first = piece.split_to(2);
        assert_eq!((&*first, &*piece), (&b"he"[..], &b"llo"[..]));
        assert!(!piece.try_append(b"x"));
        drop(piece);
        drop(first);
        assert_eq!(free(Class::SMALLEST), 1);
        trim_chunks();
    }

    #[test]
    fn a_chunk_is_charged_from_its_first_reference_to_its_last() {
        let before = budget::charged();
        let charged = || budget::charged() - before;
        let chunk = Chunk::take(Class::FIRST_READ);
        let mut piece = chunk.piece(0..100);
        drop(chunk);
        let first = piece.split_to(10);
        assert_eq!(charged(), Class::FIRST_READ.size());
        drop(piece);
        assert_eq!(charged(), Class::FIRST_READ.size());
        drop(first);
        assert_eq!(charged(), 0);
        let large = Piece::copied(&vec![7; 300 * 1024]);
        let own = Piece::from(vec![7; 100]);
        assert_eq!(charged(), 300 * 1024 + 100);
        drop((large, own));
        assert_eq!(charged(), 0);
    }

    #[test]
    fn bytes_of_any_number_make_a_piece() {
        for len in [0, 1, 64 * 1024, 300 * 1024] {
            assert_eq!(*Piece::copied(&vec![7; len]), vec![7; len]);
            assert_eq!(*Piece::from(vec![7; len]), vec![7; len]);
        }
    }

    #[test]
    fn the_pool_is_bounded() {
        trim_chunks();
        drop((0..KEPT[2] + 2).map(|_| Chunk::take(Class(2))).collect::<Vec<_>>());
        assert_eq!(free(Class(2)), KEPT[2]);
        trim_chunks();
    }
}
