//! The peak-sensitive, exponentially weighted moving average of an endpoint's answer time.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// Time in which the past loses all but 1/e of its weight. Long enough to smooth the jitter of
/// single answers, short enough that an endpoint that has recovered is used again soon.
pub(crate) const DECAY: Duration = Duration::from_secs(10);
/// What a new endpoint is taken for until it has answered: slower than a good one, so that it is
/// not flooded at once, and so fast that it is tried.
pub(crate) const DEFAULT_RTT: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(crate) struct Estimate {
    seconds: Cell<f64>,
    at: Cell<Instant>,
}

impl Estimate {
    pub(crate) fn new(now: Instant) -> Self {
        Self { seconds: Cell::new(DEFAULT_RTT.as_secs_f64()), at: Cell::new(now) }
    }

    /// The estimate: with no sample for a while it decays, so that an endpoint once slow is tried
    /// again.
    pub(crate) fn now(&self, now: Instant) -> Duration {
        Duration::from_secs_f64(self.seconds.get() * self.weight_of_past(now))
    }

    /// Takes a sample: a slower one counts at once and in full (the peak), a faster one by its
    /// weight.
    pub(crate) fn observe(&self, rtt: Duration, now: Instant) {
        let sample = rtt.as_secs_f64();
        let past = self.seconds.get();
        let weight = self.weight_of_past(now);
        let blended = past * weight + sample * (1.0 - weight);
        self.seconds.set(if sample > past { sample } else { blended });
        self.at.set(now);
    }

    fn weight_of_past(&self, now: Instant) -> f64 {
        let age = now.saturating_duration_since(self.at.get()).as_secs_f64();
        (-age / DECAY.as_secs_f64()).exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_answer_counts_at_once_and_fast_ones_win_it_back() {
        let start = Instant::now();
        let estimate = Estimate::new(start);
        estimate.observe(Duration::from_millis(50), start);
        assert_eq!(estimate.now(start), Duration::from_millis(50));
        for second in 1..=30 {
            estimate.observe(Duration::from_millis(1), start + Duration::from_secs(second));
        }
        let later = estimate.now(start + Duration::from_secs(30));
        assert!(later < Duration::from_millis(6), "{later:?}");
    }

    #[test]
    fn without_samples_it_decays() {
        let start = Instant::now();
        let estimate = Estimate::new(start);
        estimate.observe(Duration::from_secs(1), start);
        let later = estimate.now(start + DECAY);
        assert!(later > Duration::from_millis(300) && later < Duration::from_millis(400));
    }
}
