//! Decides how long to wait before a process that has ended is restarted.

use std::time::{Duration, Instant};

/// First wait before an application is restarted. Kubernetes waits longer.
const FIRST: Duration = Duration::from_secs(1);
/// First wait before the second restart of a part of the mesh. The wait is short because traffic depends on the
/// process, and a start only costs about ten milliseconds of CPU time, even if the process fails each time.
const FIRST_EAGER: Duration = Duration::from_millis(10);
/// Longest wait. After the cause of failures is repaired, the process runs again within this time.
const LONGEST: Duration = Duration::from_secs(30);
/// A process that has run for this long counts as healthy, and its next wait is the first one again.
const STEADY: Duration = Duration::from_secs(60);

/// The waits between the starts of one process.
#[derive(Clone, Debug)]
pub struct Backoff {
    /// Whether the first restart is at once.
    eager: bool,
    failures: u32,
    started: Instant,
}

impl Backoff {
    /// Waits for an application: there is a wait before each restart.
    #[must_use]
    pub fn patient(now: Instant) -> Self {
        Self { eager: false, failures: 0, started: now }
    }

    /// Waits for a part of the mesh: the first restart is at once, and further ones follow after short waits.
    #[must_use]
    pub fn eager(now: Instant) -> Self {
        Self { eager: true, ..Self::patient(now) }
    }

    /// Records that the process was started.
    pub fn started(&mut self, now: Instant) {
        self.started = now;
    }

    /// Records that the process has ended. Returns how long to wait before it is restarted.
    pub fn ended(&mut self, now: Instant) -> Duration {
        if now.duration_since(self.started) >= STEADY {
            self.failures = 0;
        }
        self.failures += 1;
        let (first, step) = match (self.eager, self.failures) {
            (true, 1) => return Duration::ZERO,
            (true, failures) => (FIRST_EAGER, failures - 2),
            (false, failures) => (FIRST, failures - 1),
        };
        LONGEST.min(first * 2_u32.saturating_pow(step.min(16)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The waits, in milliseconds, of a process that ends `lasted` seconds after each start.
    fn waits(mut backoff: Backoff, start: Instant, lasted: u64, times: usize) -> Vec<u128> {
        let mut now = start;
        let mut waits = Vec::new();
        for _ in 0..times {
            backoff.started(now);
            now += Duration::from_secs(lasted);
            let wait = backoff.ended(now);
            waits.push(wait.as_millis());
            now += wait;
        }
        waits
    }

    #[test]
    fn waits_double_up_to_a_bound() {
        let now = Instant::now();
        let patient = [1000, 2000, 4000, 8000, 16000, 30000, 30000];
        assert_eq!(waits(Backoff::patient(now), now, 0, 7), patient);
        let eager = waits(Backoff::eager(now), now, 0, 14);
        assert_eq!(eager[..8], [0, 10, 20, 40, 80, 160, 320, 640]);
        assert_eq!(eager[11..], [10240, 20480, 30000]);
    }

    #[test]
    fn a_long_run_resets_the_wait() {
        let now = Instant::now();
        assert_eq!(waits(Backoff::patient(now), now, 60, 3), [1000, 1000, 1000]);
        assert_eq!(waits(Backoff::eager(now), now, 60, 3), [0, 0, 0]);
    }
}
