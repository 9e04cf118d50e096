//! Choosing by weight, and by parts of a whole. Randomness is the caller's.

use leno_types::routes::{InvalidTarget, Target};

use crate::table::TableRule;

/// The weights of a rule's backends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Weights {
    /// Each with all before it.
    sums: Box<[u64]>,
}

/// What a rule makes of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// It goes to this backend, by its place in the rule.
    Backend(usize),
    /// It fails, for the backend chosen is none.
    Invalid(usize, InvalidTarget),
    /// It fails, for the rule has no backend, or none with a weight.
    NoBackend,
}

impl Weights {
    /// Sums them up.
    pub fn new(weights: impl Iterator<Item = u32>) -> Self {
        let mut sum = 0;
        let sums = weights.map(|weight| {
            sum += u64::from(weight);
            sum
        });
        Self { sums: sums.collect() }
    }

    /// The place that a random number falls on, each as often as its weight says; none where all
    /// weights are zero.
    #[must_use]
    pub fn pick(&self, random: u64) -> Option<usize> {
        let total = *self.sums.last()?;
        let point = scaled(random, total)?;
        Some(self.sums.partition_point(|sum| *sum <= point))
    }

    /// The sum of all.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.sums.last().copied().unwrap_or(0)
    }
}

impl TableRule {
    /// Chooses a backend. A backend that is none takes its part too, of failures: otherwise a mistake
    /// in one reference would silently shift traffic to the others.
    #[must_use]
    pub fn choose(&self, random: u64) -> Choice {
        let Some(place) = self.weights().pick(random) else { return Choice::NoBackend };
        match self.rule().backends[place].target {
            Target::Service { .. } => Choice::Backend(place),
            Target::Invalid(reason) => Choice::Invalid(place, reason),
        }
    }
}

/// Whether a random number falls into `numerator` of `denominator`.
#[must_use]
pub fn sampled(random: u64, numerator: u32, denominator: u32) -> bool {
    scaled(random, u64::from(denominator)).is_some_and(|point| point < u64::from(numerator))
}

/// A number below `bound` from one of 64 random bits.
fn scaled(random: u64, bound: u64) -> Option<u64> {
    let point = (u128::from(random) * u128::from(bound)) >> 64;
    (bound > 0).then(|| u64::try_from(point).expect("less than the bound"))
}
