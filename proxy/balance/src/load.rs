//! What is known of one endpoint.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// The time in which a latency estimate falls to 1/e when nothing confirms it: long enough to
/// remember a slow endpoint over some requests, short enough to try it again soon.
pub const DECAY: Duration = Duration::from_secs(10);

/// The latency that a failed request counts as.
pub const PENALTY: Duration = Duration::from_secs(1);

/// How long the first connect failure keeps other endpoints preferred; doubled by each further one.
pub const FIRST_EJECTION: Duration = Duration::from_millis(100);

/// The longest ejection: one request in ten seconds tries an endpoint that stays dead.
pub const MAX_EJECTION: Duration = Duration::from_secs(10);

/// When all endpoints are ejected, how often each may be tried. It bounds both the connection
/// attempts at a service that is down and how long its recovery goes unnoticed.
pub const LAST_RESORT: Duration = Duration::from_millis(100);

/// Estimates below this are taken as equal to it, so that a fully decayed endpoint does not get
/// a burst before its first response.
const MIN_ESTIMATE_US: f64 = 10.0;

/// The load of one endpoint: requests in flight, latency estimate, failures.
#[derive(Debug, Default)]
pub(crate) struct Load {
    in_flight: Cell<u32>,
    estimate: Cell<Option<Estimate>>,
    ejection: Cell<Option<Ejection>>,
}

#[derive(Clone, Copy, Debug)]
struct Estimate {
    latency_us: f64,
    at: Instant,
}

#[derive(Clone, Copy, Debug)]
struct Ejection {
    failures: u32,
    tried_at: Instant,
    until: Instant,
}

/// Whether an endpoint may be picked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Like any other.
    Good,
    /// Only when there is no good one.
    LastResort,
    /// Not now.
    Out,
}

impl Load {
    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight.get()
    }

    pub(crate) fn standing(&self, now: Instant) -> Standing {
        match self.ejection.get() {
            None => Standing::Good,
            Some(ejection) if now >= ejection.until => Standing::Good,
            Some(ejection) if now >= ejection.tried_at + LAST_RESORT => Standing::LastResort,
            Some(_) => Standing::Out,
        }
    }

    /// One more in flight. An endpoint on probation is kept for this one until it reports.
    pub(crate) fn enter(&self, now: Instant) {
        self.in_flight.set(self.in_flight.get() + 1);
        if let Some(ejection) = self.ejection.get() {
            self.eject(ejection.failures, now);
        }
    }

    pub(crate) fn leave(&self) {
        self.in_flight.set(self.in_flight.get() - 1);
    }

    /// Whether this one's load is lower than the other's. An endpoint with no estimate is compared by
    /// what is in flight alone, so that new endpoints take their share from the start.
    pub(crate) fn is_below(&self, other: &Self, now: Instant) -> bool {
        let (mine, others) = (f64::from(self.in_flight()), f64::from(other.in_flight()));
        match (self.estimate.get(), other.estimate.get()) {
            (Some(a), Some(b)) => {
                a.decayed_us(now) * (mine + 1.0) < b.decayed_us(now) * (others + 1.0)
            }
            _ => mine < others,
        }
    }

    pub(crate) fn observe(&self, latency: Duration, now: Instant) {
        let new_us = latency.as_secs_f64() * 1e6;
        let latency_us = match self.estimate.get() {
            Some(old) if old.latency_us > new_us => {
                let weight = old.weight(now);
                old.latency_us * weight + new_us * (1.0 - weight)
            }
            _ => new_us,
        };
        self.estimate.set(Some(Estimate { latency_us, at: now }));
    }

    pub(crate) fn connected(&self) {
        self.ejection.set(None);
    }

    /// An attempt that was begun at `begun` failed. Attempts that were under way when another one
    /// failed belong to the same outage and do not lengthen the ejection.
    pub(crate) fn connect_failed(&self, begun: Instant, now: Instant) {
        let failures = match self.ejection.get() {
            Some(ejection) if begun < ejection.tried_at => return,
            Some(ejection) => ejection.failures,
            None => 0,
        };
        self.eject(failures.saturating_add(1), now);
    }

    fn eject(&self, failures: u32, now: Instant) {
        let doublings = failures.saturating_sub(1).min(16);
        let length = (FIRST_EJECTION * (1 << doublings)).min(MAX_EJECTION);
        self.ejection.set(Some(Ejection { failures, tried_at: now, until: now + length }));
    }
}

impl Estimate {
    /// How much of an estimate is left after the time since.
    fn weight(&self, now: Instant) -> f64 {
        let since = now.saturating_duration_since(self.at);
        (-since.as_secs_f64() / DECAY.as_secs_f64()).exp()
    }

    fn decayed_us(&self, now: Instant) -> f64 {
        (self.latency_us * self.weight(now)).max(MIN_ESTIMATE_US)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peak_counts_at_once_and_fades() {
        let (load, now) = (Load::default(), Instant::now());
        load.observe(Duration::from_millis(1), now);
        load.observe(Duration::from_millis(100), now);
        load.observe(Duration::from_millis(1), now);
        let peak = load.estimate.get().unwrap();
        assert!((peak.latency_us - 100_000.0).abs() < 1.0);
        let later = now + DECAY;
        assert!((peak.decayed_us(later) - 36_788.0).abs() < 10.0);
        load.observe(Duration::from_millis(1), later);
        let after = load.estimate.get().unwrap().latency_us;
        assert!((37_000.0..38_000.0).contains(&after), "{after}");
    }

    #[test]
    fn ejections_grow_to_their_bound_and_end_with_a_connection() {
        let (load, mut now) = (Load::default(), Instant::now());
        assert_eq!(load.standing(now), Standing::Good);
        let mut length = FIRST_EJECTION;
        for _ in 0..40 {
            load.connect_failed(now, now);
            assert_eq!(load.standing(now), Standing::Out);
            let last_moment = now + length - Duration::from_nanos(1);
            assert_ne!(load.standing(last_moment), Standing::Good);
            now += length;
            assert_eq!(load.standing(now), Standing::Good);
            length = (length * 2).min(MAX_EJECTION);
        }
        load.connect_failed(now, now);
        assert_eq!(load.standing(now + LAST_RESORT), Standing::LastResort);
        load.connected();
        assert_eq!(load.standing(now), Standing::Good);
    }

    #[test]
    fn failures_of_one_outage_count_once() {
        let (load, begun) = (Load::default(), Instant::now());
        for ms in 1..50 {
            load.connect_failed(begun, begun + Duration::from_millis(ms));
        }
        let first = begun + Duration::from_millis(1);
        assert_eq!(load.standing(first + FIRST_EJECTION), Standing::Good);
    }

    #[test]
    fn one_probe_at_a_time() {
        let (load, now) = (Load::default(), Instant::now());
        load.connect_failed(now, now);
        let later = now + FIRST_EJECTION;
        assert_eq!(load.standing(later), Standing::Good);
        load.enter(later);
        assert_eq!(load.standing(later), Standing::Out);
        load.leave();
    }
}
