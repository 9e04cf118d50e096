//! The state of one endpoint: load, latency and failures.
#![expect(clippy::arithmetic_side_effects, reason = "loads are sums of requests in progress")]

use std::cell::Cell;
use std::time::{Duration, Instant};

use leno_types::traffic::Ejection;

/// The time in which a latency estimate decays to 1/e if no response confirms it. It is long enough to remember a slow
/// endpoint for some requests, and short enough to try the endpoint again soon.
pub const DECAY: Duration = Duration::from_secs(10);

/// The latency that is recorded for a failed request.
pub const PENALTY: Duration = Duration::from_secs(1);

/// How long other endpoints are preferred after the first connect failure. Each further failure
/// doubles it.
pub const FIRST_EJECTION: Duration = Duration::from_millis(100);

/// The longest ejection for connect failures. An endpoint that stays dead thus gets one request in ten seconds.
pub const MAX_EJECTION: Duration = Duration::from_secs(10);

/// How often each endpoint may be tried if all are ejected. It limits the connection attempts to a service that is
/// down, and how long its recovery is not noticed.
pub const LAST_RESORT: Duration = Duration::from_millis(100);

/// How long an estimate does not decay while requests wait for a response: an endpoint that stalls must not look faster
/// and faster. The time is limited, because otherwise one long stream would keep an endpoint from being tried again.
pub const STALL_HOLD: Duration = Duration::from_secs(30);

/// A lower estimate counts as this much, in microseconds. Otherwise an endpoint whose estimate has decayed completely
/// would get a burst of requests before its first response.
const MIN_ESTIMATE_US: f64 = 10.0;

/// How many times an ejection is doubled at most. The longest ejection is reached long before.
const MAX_DOUBLINGS: u32 = 16;

/// The load of one endpoint: requests in flight, latency estimate, failures.
#[derive(Debug, Default)]
pub(crate) struct Load {
    in_flight: Cell<u32>,
    /// When the number of requests in flight last rose from 0.
    busy_from: Cell<Option<Instant>>,
    estimate: Cell<Option<Estimate>>,
    /// The latency of the last good response.
    worked_us: Cell<Option<f64>>,
    /// Whether all responses since the last good one were refusals.
    refuses: Cell<bool>,
    /// Set if connecting to the endpoint has failed.
    unreachable: Cell<Option<Unreachable>>,
    /// Set if the endpoint's requests have failed.
    ejected: Cell<Option<Ejected>>,
    /// The number of consecutive failed requests.
    failures: Cell<u32>,
    /// The number of recent ejections for failed requests, which decreases over time.
    ejections: Cell<u32>,
    /// The numbers of good and of failed requests since the last comparison of success rates.
    seen: Cell<(u32, u32)>,
}

/// A latency and when it was recorded. It decays from then on.
#[derive(Clone, Copy, Debug)]
struct Estimate {
    latency_us: f64,
    at: Instant,
}

/// An ejection because connecting has failed, `failures` times in a row. The endpoint is not picked before `until`,
/// except as a last resort.
#[derive(Clone, Copy, Debug)]
struct Unreachable {
    failures: u32,
    /// When the endpoint was last picked, or an attempt to connect last failed; see [`LAST_RESORT`].
    tried_at: Instant,
    until: Instant,
}

/// An ejection for failed requests.
///
/// ```text
/// Good ──failures──► out until `until` ──► one probe ──succeeded──► Good
///                          ▲                   │
///                          └──── failed ───────┘   (for twice as long, up to a maximum)
/// ```
/// If a probe has no result, another one follows after `length`.
#[derive(Clone, Copy, Debug)]
struct Ejected {
    /// How long this ejection lasts, and how long the endpoint gets no other request after a probe.
    length: Duration,
    until: Instant,
    /// When the latest probe began.
    probe: Option<Instant>,
}

/// Whether an endpoint may be picked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Health {
    /// The endpoint is like any other.
    Good,
    /// The endpoint's requests fail. It is picked only if too many endpoints are ejected (a panic), or if no endpoint
    /// is good.
    Ejected,
    /// Connecting to the endpoint failed: it is picked only if no other endpoint is left.
    LastResort,
    /// The endpoint must not be picked now.
    Out,
}

impl Health {
    /// Why the endpoint is ejected; `None` if it is not.
    pub(crate) const fn reason(self) -> Option<&'static str> {
        match self {
            Self::Good => None,
            Self::Ejected => Some("failing"),
            Self::LastResort | Self::Out => Some("unreachable"),
        }
    }
}

impl Load {
    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight.get()
    }

    pub(crate) fn standing(&self, now: Instant) -> Health {
        match self.unreachable.get() {
            Some(ejection) if now < ejection.until => {
                let again = now >= ejection.tried_at + LAST_RESORT;
                return if again { Health::LastResort } else { Health::Out };
            }
            _ => {}
        }
        match self.ejected.get() {
            Some(ejected) if now < ejected.until => Health::Ejected,
            _ => Health::Good,
        }
    }

    /// Counts one more request in flight. If the request is a probe of an ejected endpoint, or the first one after a
    /// failure to connect, the ejection begins again, so that further requests avoid the endpoint until there is a
    /// result.
    pub(crate) fn enter(&self, now: Instant) {
        if self.in_flight.get() == 0 {
            self.busy_from.set(Some(now));
        }
        self.in_flight.set(self.in_flight.get() + 1);
        if let Some(ejection) = self.unreachable.get() {
            self.make_unreachable(ejection.failures, now);
        }
        if let Some(mut ejected) = self.ejected.get()
            && now >= ejected.until
        {
            ejected.probe = Some(now);
            ejected.until = now + ejected.length;
            self.ejected.set(Some(ejected));
        }
    }

    pub(crate) fn leave(&self) {
        self.in_flight.set(self.in_flight.get() - 1);
    }

    /// Whether the first endpoint has the lower load per weight. If one of the endpoints has no estimate, only the
    /// requests in flight are compared, so that new endpoints get their share from the start.
    pub(crate) fn is_below(mine: (&Self, u32), others: (&Self, u32), now: Instant) -> bool {
        let (Some(a), Some(b)) = (mine.0.estimate_us(now), others.0.estimate_us(now)) else {
            return Self::has_fewer(mine, others);
        };
        let queue =
            |(load, weight): (&Self, u32)| f64::from(load.in_flight()) / f64::from(weight) + 1.0;
        a * queue(mine) < b * queue(others)
    }

    /// Whether the first endpoint has fewer requests in flight per weight.
    pub(crate) fn has_fewer(mine: (&Self, u32), others: (&Self, u32)) -> bool {
        let cross = |a: &Self, weight: u32| u64::from(a.in_flight()) * u64::from(weight);
        cross(mine.0, others.1) < cross(others.0, mine.1)
    }

    fn estimate_us(&self, now: Instant) -> Option<f64> {
        let estimate = self.estimate.get()?;
        let unanswered = match self.busy_from.get() {
            Some(busy_from) if self.in_flight.get() > 0 => {
                let from = busy_from.max(estimate.at);
                now.saturating_duration_since(from).min(STALL_HOLD)
            }
            _ => Duration::ZERO,
        };
        let faded_us = estimate.decayed_us(now.checked_sub(unanswered).unwrap_or(now));
        if self.refuses.get() {
            return self.worked_us.get().map(|worked_us| worked_us.max(faded_us));
        }
        Some(faded_us)
    }

    /// Called when a good response has arrived after `latency`.
    pub(crate) fn observe(&self, latency: Duration, now: Instant) {
        self.worked_us.set(Some(micros(latency)));
        self.refuses.set(false);
        self.estimate(latency, now);
    }

    /// Updates the estimate: it rises to a higher latency at once, and falls to a lower one over about [`DECAY`].
    pub(crate) fn estimate(&self, latency: Duration, now: Instant) {
        let new_us = micros(latency);
        let latency_us = match self.estimate.get() {
            Some(old) if old.latency_us > new_us => {
                let weight = old.weight(now);
                old.latency_us * weight + new_us * (1.0 - weight)
            }
            _ => new_us,
        };
        self.estimate.set(Some(Estimate { latency_us, at: now }));
    }

    /// Called when a response has arrived after `latency` that refused the work. A quick refusal must not look like
    /// quick work: until the next good response, the estimate does not fall below the latency of the last good
    /// response. If there was no good response, the endpoint counts as one without an estimate.
    pub(crate) fn refuse(&self, latency: Duration, now: Instant) {
        self.refuses.set(true);
        if self.estimate.get().is_some_and(|old| micros(latency) > old.decayed_us(now)) {
            self.estimate(latency, now);
        }
    }

    pub(crate) fn connected(&self) {
        self.unreachable.set(None);
    }

    /// Called when an attempt to connect that began at `begun` has failed. Attempts that were in progress when another
    /// attempt failed belong to the same outage and do not prolong the ejection.
    pub(crate) fn connect_failed(&self, begun: Instant, now: Instant) {
        let failures = match self.unreachable.get() {
            Some(ejection) if begun < ejection.tried_at => return,
            Some(ejection) => ejection.failures,
            None => 0,
        };
        self.make_unreachable(failures.saturating_add(1), now);
    }

    fn make_unreachable(&self, failures: u32, now: Instant) {
        let length = doubled(FIRST_EJECTION, failures.saturating_sub(1)).min(MAX_EJECTION);
        let until = now + length;
        self.unreachable.set(Some(Unreachable { failures, tried_at: now, until }));
    }

    /// Whether the endpoint was ejected for failed requests and no probe has brought it back yet.
    pub(crate) fn is_ejected(&self) -> bool {
        self.ejected.get().is_some()
    }

    /// Whether the request that began at `begun` was the probe.
    pub(crate) fn was_probe(&self, begun: Instant) -> bool {
        let probe = self.ejected.get().and_then(|ejected| ejected.probe);
        probe.is_some_and(|probe| begun >= probe)
    }

    pub(crate) fn eject(&self, ejection: Ejection, now: Instant) {
        let length = doubled(ejection.base, self.ejections.get()).min(ejection.max);
        self.ejections.set((self.ejections.get() + 1).min(MAX_DOUBLINGS));
        self.failures.set(0);
        self.ejected.set(Some(Ejected { length, until: now + length, probe: None }));
    }

    /// Ends an ejection for failed requests.
    pub(crate) fn take_back(&self) {
        self.ejected.set(None);
    }

    /// Counts a failure. Returns the number of consecutive failures.
    pub(crate) fn count_failure(&self) -> u32 {
        let (good, failed) = self.seen.get();
        self.seen.set((good, failed.saturating_add(1)));
        self.failures.set(self.failures.get().saturating_add(1));
        self.failures.get()
    }

    pub(crate) fn count_success(&self) {
        let (good, failed) = self.seen.get();
        self.seen.set((good.saturating_add(1), failed));
        self.failures.set(0);
    }

    /// The share of good requests since the last comparison, and the number of requests. `None` if there were too few
    /// requests.
    pub(crate) fn success_rate(&self, minimum_requests: u32) -> Option<(f64, f64)> {
        let (good, failed) = self.seen.get();
        let all = good.saturating_add(failed);
        let all_f = f64::from(all);
        (all >= minimum_requests.max(1)).then(|| (f64::from(good) / all_f, all_f))
    }

    /// Begins a new interval of comparison. Each interval without an ejection makes the next ejection shorter.
    pub(crate) fn begin_interval(&self) {
        self.seen.set((0, 0));
        if self.ejected.get().is_none() {
            self.ejections.set(self.ejections.get().saturating_sub(1));
        }
    }
}

fn doubled(base: Duration, times: u32) -> Duration {
    base.saturating_mul(1 << times.min(MAX_DOUBLINGS))
}

fn micros(latency: Duration) -> f64 {
    latency.as_secs_f64() * 1e6
}

impl Estimate {
    /// The factor by which the estimate has decayed since it was last updated.
    fn weight(&self, now: Instant) -> f64 {
        let since = now.saturating_duration_since(self.at);
        (-since.as_secs_f64() / DECAY.as_secs_f64()).exp()
    }

    fn decayed_us(&self, now: Instant) -> f64 {
        (self.latency_us * self.weight(now)).max(MIN_ESTIMATE_US)
    }
}

#[cfg(test)]
mod tests;
