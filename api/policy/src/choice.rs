//! Chooses by weight, and decides which requests belong to a share. The caller provides random numbers.
#![expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "sums and products of 32 bits in 64, of 64 bits in 128; the place is of this rule"
)]

use leno_types::routes::{InvalidTarget, RouteTarget};

use crate::table::TableRule;

/// The weights of a rule's backends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Weights {
    /// For each backend, the sum of its own weight and the weights before it.
    sums: Box<[u64]>,
}

/// Where a rule sends one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// To the backend at this position in the rule.
    Backend(usize),
    /// Nowhere, so that the request fails: the chosen backend, at this position, is invalid.
    Invalid(usize, InvalidTarget),
    /// Nowhere, so that the request fails: the rule has no backend, or none with a weight.
    NoBackend,
}

impl Weights {
    /// Computes the sums of the weights.
    pub fn new(weights: impl Iterator<Item = u32>) -> Self {
        let mut sum = 0;
        let sums = weights.map(|weight| {
            sum += u64::from(weight);
            sum
        });
        Self { sums: sums.collect() }
    }

    /// The position that a random number selects, each with a probability proportional to its
    /// weight. `None` if all weights are zero.
    #[must_use]
    pub fn pick(&self, random: u64) -> Option<usize> {
        let total = *self.sums.last()?;
        let point = scaled(random, total)?;
        Some(self.sums.partition_point(|sum| *sum <= point))
    }

    /// The sum of all weights.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.sums.last().copied().unwrap_or(0)
    }
}

impl TableRule {
    /// Chooses a backend. An invalid backend keeps its share, and its requests fail: otherwise a
    /// mistake in one reference would silently shift traffic to the other backends.
    #[must_use]
    pub fn choose(&self, random: u64) -> Choice {
        let Some(place) = self.weights().pick(random) else { return Choice::NoBackend };
        match self.rule().backends[place].target {
            RouteTarget::Service { .. } => Choice::Backend(place),
            RouteTarget::Invalid(reason) => Choice::Invalid(place, reason),
        }
    }
}

/// Whether a random number falls into a share of `numerator` out of `denominator`.
#[must_use]
pub fn sampled(random: u64, numerator: u32, denominator: u32) -> bool {
    scaled(random, u64::from(denominator)).is_some_and(|point| point < u64::from(numerator))
}

/// Scales 64 random bits to a number below `bound`.
fn scaled(random: u64, bound: u64) -> Option<u64> {
    let point = (u128::from(random) * u128::from(bound)) >> 64;
    (bound > 0).then(|| u64::try_from(point).expect("less than the bound"))
}
