//! Limits the rate of new connections, in each direction, for a workload in a shared process.
//!
//! ```text
//! burst of one second ──► passes     then up to one second's more ──► waits its turn     beyond ──► refused
//! ```
//! Connections that a workload opens share one rate. Connections to the workload have a rate for each client address,
//! so that a client that floods a workload is slowed down, and other clients of the workload are not.
#![expect(
    clippy::arithmetic_side_effects,
    reason = "sums of times of seconds, and a divisor that is not zero"
)]

use std::collections::HashMap;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

/// The longest burst. A client may open as many connections at once as its rate permits in this time, and one more.
const BURST: Duration = Duration::from_secs(1);
/// How long a connection may wait. This bounds how many wait at the same time, each with a descriptor and a small
/// buffer.
const PATIENCE: Duration = Duration::from_secs(1);
/// How many client addresses have a rate of their own. Further addresses share one rate.
const MAX_SOURCES: usize = 1024;

/// What happens to a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// The connection is served at once.
    Passes,
    /// The connection is served after this wait.
    Waits(Duration),
    /// Too many connections are waiting.
    Refused,
}

/// The rate of one series of connections, stored as the time at which the next connection would come if all came evenly
/// (GCRA).
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    interval: Duration,
    next: Option<Instant>,
}

impl Pace {
    /// Permits this many connections per second.
    #[must_use]
    pub fn new(per_second: NonZeroU32) -> Self {
        Self { interval: Duration::from_secs(1) / per_second.get(), next: None }
    }

    /// Counts a connection that arrives now.
    pub fn arrive(&mut self, now: Instant) -> Arrival {
        let next = self.next.map_or(now, |next| next.max(now));
        let ahead = next.duration_since(now);
        if ahead >= BURST + PATIENCE {
            return Arrival::Refused;
        }
        self.next = Some(next + self.interval);
        match ahead.checked_sub(BURST) {
            Some(wait) if !wait.is_zero() => Arrival::Waits(wait),
            _ => Arrival::Passes,
        }
    }

    /// Whether no earlier connection delays the next one, so that the state need not be stored.
    fn is_idle(&self, now: Instant) -> bool {
        self.next.is_none_or(|next| next <= now)
    }
}

/// The rates of all clients of a workload.
#[derive(Debug)]
pub struct Paces {
    new: Pace,
    sources: HashMap<IpAddr, Pace>,
    /// The rate that all addresses beyond the first [`MAX_SOURCES`] share.
    others: Pace,
}

impl Paces {
    /// Permits this many connections per second for each client.
    #[must_use]
    pub fn new(per_second: NonZeroU32) -> Self {
        let new = Pace::new(per_second);
        Self { new, sources: HashMap::new(), others: new }
    }

    /// Counts a connection of this client.
    pub fn arrive(&mut self, source: IpAddr, now: Instant) -> Arrival {
        let source = source.to_canonical();
        if self.sources.len() >= MAX_SOURCES && !self.sources.contains_key(&source) {
            self.sources.retain(|_, pace| !pace.is_idle(now));
            if self.sources.len() >= MAX_SOURCES {
                return self.others.arrive(now);
            }
        }
        self.sources.entry(source).or_insert(self.new).arrive(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn per_second(count: u32) -> NonZeroU32 {
        NonZeroU32::new(count).unwrap()
    }

    #[test]
    fn a_burst_passes_then_connections_wait_and_then_they_are_refused() {
        let (mut pace, now) = (Pace::new(per_second(10)), Instant::now());
        let mut arrive = |ms: u64| pace.arrive(now + Duration::from_millis(ms));
        for _ in 0..11 {
            assert_eq!(arrive(0), Arrival::Passes);
        }
        for number in 1..10 {
            assert_eq!(arrive(0), Arrival::Waits(Duration::from_millis(100) * number));
        }
        assert_eq!(arrive(0), Arrival::Refused);
        assert!(matches!(arrive(1), Arrival::Waits(_)), "a refused connection does not count");
        assert_eq!(arrive(100), Arrival::Refused);
        assert!(matches!(arrive(101), Arrival::Waits(_)));
        assert_eq!(arrive(3000), Arrival::Passes);
    }

    #[test]
    fn a_client_that_floods_does_not_slow_other_clients() {
        let (mut paces, now) = (Paces::new(per_second(10)), Instant::now());
        let address = |number: u32| IpAddr::from(number.to_be_bytes());
        let flood = (0..100).map(|_| paces.arrive(address(1), now)).last();
        assert_eq!(flood, Some(Arrival::Refused));
        assert_eq!(paces.arrive(address(2), now), Arrival::Passes);
        let mapped = "::ffff:0.0.0.1".parse().unwrap();
        assert_eq!(paces.arrive(mapped, now), Arrival::Refused, "the same client");
    }

    #[test]
    fn the_number_of_client_addresses_with_a_rate_is_bounded() {
        let (mut paces, now) = (Paces::new(per_second(10)), Instant::now());
        let address = |number: u32| IpAddr::from(number.to_be_bytes());
        for number in 0..5000 {
            paces.arrive(address(number), now);
        }
        assert_eq!(paces.sources.len(), MAX_SOURCES);
        assert_eq!(
            paces.arrive(address(9999), now),
            Arrival::Refused,
            "further addresses share one rate"
        );
        let later = now + Duration::from_secs(10);
        assert_eq!(paces.arrive(address(9999), later), Arrival::Passes);
        assert_eq!(paces.sources.len(), 1, "idle addresses were dropped");
    }
}
