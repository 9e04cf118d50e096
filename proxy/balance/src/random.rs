//! A small generator of random numbers for choices that need no secrecy (xorshift64*).

use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};

#[derive(Debug)]
pub(crate) struct Random(Cell<u64>);

impl Random {
    /// Seeded by the process's own random keys.
    pub(crate) fn new() -> Self {
        Self(Cell::new(RandomState::new().hash_one(0x6c65_6e6f_u32) | 1))
    }

    /// A number below `bound`, which must not be 0. The bias of the multiplication is below
    /// `bound / 2^32`.
    pub(crate) fn below(&self, bound: usize) -> usize {
        let mut x = self.0.get();
        x ^= x >> 12;
        x ^= x << 25;
        x ^= x >> 27;
        self.0.set(x);
        let high = x.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
        ((high * bound as u64) >> 32) as usize
    }
}
