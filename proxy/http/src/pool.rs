//! Buffers in four sizes. Each thread of the proxy (a worker) keeps a limited number of free buffers.
#![expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "a class is an index into the table of sizes; counts of buffers"
)]

use std::cell::{Cell, RefCell};

use leno_transport::budget;

/// The sizes of buffers. The smallest is one page and holds a usual head with a small body. The third holds the largest
/// head. The largest is for bulk streams: the bytes of a still larger read would not fit into the processor's cache.
const SIZES: [usize; 4] = [4 * 1024, 16 * 1024, 64 * 1024, 256 * 1024];

/// How many free buffers of each size are kept: at most 0.5 MiB of a size, and 2 MiB in a thread. Further buffers are
/// freed.
const KEPT: [usize; 4] = [128, 32, 8, 2];

/// The index of a buffer's size in the table of sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Class(u8);

impl Class {
    pub(crate) const SMALLEST: Self = Self(0);
    /// The largest size for the first buffer of a message. This size is learned from the previous message, but limited
    /// so that many connections cannot hold much memory.
    pub(crate) const LARGEST_AT_START: Self = Self(1);

    pub(crate) fn size(self) -> usize {
        SIZES[self.0 as usize]
    }

    /// The smallest size that holds `bytes`, or the largest one.
    pub(crate) fn holding(bytes: usize) -> Self {
        let mut class = Self::SMALLEST;
        while class.size() < bytes && class.larger() != class {
            class = class.larger();
        }
        class
    }

    pub(crate) fn larger(self) -> Self {
        Self((self.0 + 1).min(SIZES.len() as u8 - 1))
    }

    pub(crate) fn smaller(self) -> Self {
        Self(self.0.saturating_sub(1))
    }
}

/// The state of a worker's buffers, by size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// The sizes, in bytes.
    pub sizes: [usize; SIZES.len()],
    /// How many buffers of each size are in use.
    pub used: [usize; SIZES.len()],
    /// How many buffers of each size are in the free lists.
    pub free: [usize; SIZES.len()],
    /// How many buffers were allocated since the thread started, because no free buffer was available.
    pub made: u64,
    /// How many buffers were freed since the thread started, because the free list was full.
    pub freed: u64,
}

/// The state of the calling thread's buffer pool.
pub fn pool_stats() -> PoolStats {
    POOL.with(|pool| PoolStats {
        sizes: SIZES,
        used: std::array::from_fn(|class| pool.used[class].get()),
        free: std::array::from_fn(|class| pool.free[class].borrow().len()),
        made: pool.made.get(),
        freed: pool.freed.get(),
    })
}

/// Frees the calling thread's free buffers, for a worker that is idle.
pub fn trim_pool() {
    POOL.with(|pool| {
        for list in &pool.free {
            let count = list.take().len() as u64;
            pool.freed.set(pool.freed.get() + count);
        }
    });
}

/// Bytes from the pool. They return to the pool of the thread that drops them. The empty buffer (`Default`) has no
/// memory. Buffers in use are charged to the thread's memory budget ([`budget`]). Free buffers are not, because their
/// number has a fixed limit.
#[derive(Debug, Default)]
pub(crate) struct Buffer {
    bytes: Box<[u8]>,
    class: u8,
}

impl Buffer {
    pub(crate) fn take(class: Class) -> Self {
        let bytes = POOL
            .try_with(|pool| pool.take(class))
            // The thread is ending, and its pool no longer exists, so a new buffer is allocated.
            .unwrap_or_else(|_| fresh(class.0 as usize));
        Self { bytes, class: class.0 }
    }

    pub(crate) fn class(&self) -> Class {
        Class(self.class)
    }
}

impl std::ops::Deref for Buffer {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl std::ops::DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if !self.bytes.is_empty() {
            let bytes = std::mem::take(&mut self.bytes);
            // An error means that the thread is ending; then the buffer is freed.
            let _ = POOL.try_with(|pool| pool.give(self.class as usize, bytes));
        }
    }
}

#[derive(Default)]
struct Pool {
    free: [RefCell<Vec<Box<[u8]>>>; SIZES.len()],
    used: [Cell<usize>; SIZES.len()],
    made: Cell<u64>,
    freed: Cell<u64>,
}

thread_local! {
    static POOL: Pool = Pool::default();
}

impl Pool {
    fn take(&self, class: Class) -> Box<[u8]> {
        let class = class.0 as usize;
        budget::charge(SIZES[class]);
        self.used[class].set(self.used[class].get() + 1);
        if let Some(bytes) = self.free[class].borrow_mut().pop() {
            return bytes;
        }
        self.made.set(self.made.get() + 1);
        fresh(class)
    }

    fn give(&self, class: usize, bytes: Box<[u8]>) {
        // The buffer may come from another thread, which still counts it.
        self.used[class].set(self.used[class].get().saturating_sub(1));
        budget::credit(SIZES[class]);
        let mut list = self.free[class].borrow_mut();
        if list.len() < KEPT[class] && !budget::is_short() {
            list.push(bytes);
        } else {
            self.freed.set(self.freed.get() + 1);
        }
    }
}

fn fresh(class: usize) -> Box<[u8]> {
    vec![0; SIZES[class]].into_boxed_slice()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_returns_to_its_list_and_the_list_is_bounded() {
        let buffers: Vec<_> =
            (0..KEPT[1] + 3).map(|_| Buffer::take(Class::LARGEST_AT_START)).collect();
        let stats = pool_stats();
        assert_eq!(stats.used[1], KEPT[1] + 3);
        assert_eq!(stats.made, KEPT[1] as u64 + 3);
        drop(buffers);
        let stats = pool_stats();
        assert_eq!((stats.used[1], stats.free[1], stats.freed), (0, KEPT[1], 3));
        assert_eq!(Buffer::take(Class::LARGEST_AT_START).len(), 16 * 1024);
        assert_eq!(pool_stats().made, KEPT[1] as u64 + 3);
        trim_pool();
        assert_eq!(pool_stats().free, [0; 4]);
    }

    #[test]
    fn the_empty_buffer_owns_nothing() {
        drop(Buffer::default());
        assert_eq!(pool_stats().free, [0; 4]);
    }
}
