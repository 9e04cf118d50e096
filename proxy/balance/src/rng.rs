//! A small random number generator. Balancing needs speed and an even distribution, not secrecy.
#![expect(
    clippy::arithmetic_side_effects,
    reason = "a random number is reduced by a bound above zero"
)]

use std::hash::{BuildHasher, RandomState};

/// xorshift64* (Marsaglia 2003, Vigna 2016).
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A generator with a random seed, so that proxies do not make the same choices.
    #[must_use]
    pub fn random() -> Self {
        Self::seeded(RandomState::new().hash_one(0))
    }

    /// A generator whose numbers are the same for the same seed, so that a test can repeat them.
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        // A generator with the state zero would only ever produce zero.
        Self(seed.max(1))
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A random number below `n`, which must not be 0. The deviation from an even distribution is less than n / 2^32.
    pub fn below(&mut self, n: usize) -> usize {
        let high = self.bits() >> 32;
        usize::try_from((high * n as u64) >> 32).expect("below n")
    }

    /// Returns true with the probability `share / of`. `of` must not be 0.
    pub fn chance(&mut self, share: u32, of: u32) -> bool {
        (((self.bits() >> 32) * u64::from(of)) >> 32) < u64::from(share)
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

    #[test]
    fn chances_are_what_they_say() {
        let mut rng = Rng::seeded(11);
        let hits = (0..100_000).filter(|_| rng.chance(30, 100)).count();
        assert!((29_400..30_600).contains(&hits), "{hits}");
        assert!((0..1_000).all(|_| rng.chance(5, 5) && !rng.chance(0, 5)));
    }
}
