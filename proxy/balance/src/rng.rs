//! A small random number generator; balancing needs speed and spread, not secrecy.

use std::hash::{BuildHasher, RandomState};

/// xorshift64* (Marsaglia 2003, Vigna 2016).
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    /// A generator of its own for each balancer, so that proxies do not choose in step.
    pub(crate) fn random() -> Self {
        Self::seeded(RandomState::new().hash_one(0))
    }

    pub(crate) fn seeded(seed: u64) -> Self {
        // Zero is the one state that never leaves itself.
        Self(seed.max(1))
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `n`, which must not be 0. The bias is under n / 2^32.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        let high = self.next() >> 32;
        usize::try_from((high * n as u64) >> 32).expect("below n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_below_the_bound_and_reach_all_of_it() {
        let mut rng = Rng::seeded(7);
        let mut seen = [0_u32; 5];
        for _ in 0..50_000 {
            seen[rng.below(5)] += 1;
        }
        assert!(seen.iter().all(|n| (9_500..10_500).contains(n)), "{seen:?}");
        assert_eq!(rng.below(1), 0);
    }
}
