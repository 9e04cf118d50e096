//! How long to wait before a process that ended is started again.

use std::time::{Duration, Instant};

/// First wait of an application: as Kubernetes restarts containers, but from one second.
const FIRST: Duration = Duration::from_secs(1);
/// Longest wait: somebody who repairs the cause does not wait longer than this.
const LONGEST: Duration = Duration::from_secs(30);
/// A process that ran this long is well again.
const STEADY: Duration = Duration::from_secs(60);

/// The waits of one process.
#[derive(Clone, Debug)]
pub struct Backoff {
    /// Whether the first restart is at once.
    eager: bool,
    failures: u32,
    started: Instant,
}

impl Backoff {
    /// For an application: every restart waits.
    #[must_use]
    pub fn patient(now: Instant) -> Self {
        Self { eager: false, failures: 0, started: now }
    }

    /// For a part of the mesh: the first restart is at once.
    #[must_use]
    pub fn eager(now: Instant) -> Self {
        Self { eager: true, ..Self::patient(now) }
    }

    /// The process was started.
    pub fn started(&mut self, now: Instant) {
        self.started = now;
    }

    /// The process ended: how long to wait.
    pub fn ended(&mut self, now: Instant) -> Duration {
        if now.duration_since(self.started) >= STEADY {
            self.failures = 0;
        }
        self.failures += 1;
        let step = match (self.eager, self.failures) {
            (true, 1) => return Duration::ZERO,
            (true, failures) => failures - 2,
            (false, failures) => failures - 1,
        };
        LONGEST.min(FIRST * 2_u32.saturating_pow(step.min(16)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The waits, in seconds, of a process that ends `lasted` seconds after each start.
    fn waits(mut backoff: Backoff, start: Instant, lasted: u64, times: usize) -> Vec<u64> {
        let mut now = start;
        let mut waits = Vec::new();
        for _ in 0..times {
            backoff.started(now);
            now += Duration::from_secs(lasted);
            let wait = backoff.ended(now);
            waits.push(wait.as_secs());
            now += wait;
        }
        waits
    }

    #[test]
    fn waits_double_up_to_a_bound() {
        let now = Instant::now();
        assert_eq!(waits(Backoff::patient(now), now, 0, 7), [1, 2, 4, 8, 16, 30, 30]);
        assert_eq!(waits(Backoff::eager(now), now, 0, 4), [0, 1, 2, 4]);
    }

    #[test]
    fn a_long_run_makes_up_for_it() {
        let now = Instant::now();
        assert_eq!(waits(Backoff::patient(now), now, 60, 3), [1, 1, 1]);
        assert_eq!(waits(Backoff::eager(now), now, 60, 3), [0, 0, 0]);
    }
}
