//! How often a request or connection that has reached no application is sent again to another endpoint.

use std::time::{Duration, Instant};

/// How many attempts are always allowed.
pub(crate) const TRIES: usize = 3;
/// How many attempts are allowed if they fail quickly. Endpoints that terminate at the same time each refuse at once.
const QUICK_TRIES: usize = 8;
/// How long after the first failure attempts count as quick.
const QUICK: Duration = Duration::from_millis(500);

/// When the first attempt failed that reached no application.
#[derive(Debug, Default)]
pub(crate) struct Unreached(Option<Instant>);

impl Unreached {
    /// Whether to try again after `made` attempts, the last of which has just failed.
    pub(crate) fn has_another(&mut self, made: usize, now: Instant) -> bool {
        let first = *self.0.get_or_insert(now);
        made < TRIES || made < QUICK_TRIES && now.saturating_duration_since(first) < QUICK
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tries_that_take_time_are_fewer() {
        let now = Instant::now();
        let mut unreached = Unreached::default();
        assert!((1..QUICK_TRIES).all(|made| unreached.has_another(made, now)));
        assert!(!unreached.has_another(QUICK_TRIES, now));
        assert!(unreached.has_another(TRIES - 1, now + QUICK));
        assert!(!unreached.has_another(TRIES, now + QUICK));
    }
}
