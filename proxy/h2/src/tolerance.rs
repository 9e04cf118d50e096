//! A budget for events that a well-behaved peer seldom causes.
#![expect(clippy::arithmetic_side_effects, reason = "the sum has a bound")]

use tokio::time::Instant;

/// A budget that refills over time. The clock is read only when the budget is used up, so that the
/// ordinary case costs nothing.
#[derive(Debug)]
pub(crate) struct Tolerance {
    /// The maximum, and the amount that is refilled per second.
    budget: u32,
    left: u32,
    refilled: Option<Instant>,
}

impl Tolerance {
    pub(crate) fn new(budget: u32) -> Self {
        Self { budget, left: budget, refilled: None }
    }

    /// Takes one unit from the budget. Returns whether one was left.
    pub(crate) fn take(&mut self) -> bool {
        if self.left == 0 {
            self.refill();
        }
        let ok = self.left > 0;
        self.left = self.left.saturating_sub(1);
        ok
    }

    /// Returns `count` units to the budget, because the peer did something useful.
    pub(crate) fn give(&mut self, count: u32) {
        self.left = self.left.saturating_add(count).min(self.budget);
    }

    fn refill(&mut self) {
        let now = Instant::now();
        let earned = match self.refilled {
            // The first refill only starts the clock, since the whole budget has just been used.
            None => 0.0,
            Some(then) => (now - then).as_secs_f64() * f64::from(self.budget),
        };
        if self.refilled.is_none() || earned >= 1.0 {
            self.refilled = Some(now);
            self.left = (earned as u32).min(self.budget);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn a_burst_is_forgiven_and_then_a_rate() {
        let mut tolerance = Tolerance::new(10);
        let taken = |tolerance: &mut Tolerance| (0..100).filter(|_| tolerance.take()).count();
        assert_eq!(taken(&mut tolerance), 10);
        tokio::time::advance(Duration::from_millis(500)).await;
        assert_eq!(taken(&mut tolerance), 5);
        tolerance.give(1);
        assert_eq!(taken(&mut tolerance), 1);
    }
}
