//! The settings of a balancer, and the properties of its endpoints.

use std::time::Duration;

use leno_types::traffic::Ejection;

/// How an endpoint is chosen among those that may be chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// Of two random endpoints, the one whose latency times requests in flight is lower.
    #[default]
    PeakEwma,
    /// Of two random endpoints, the one with fewer requests in flight.
    LeastRequest,
    /// One endpoint after the other, by weight.
    RoundRobin,
    /// A random endpoint, by weight.
    Random,
    /// By a hash of the request, on a ring of the endpoints' hashes.
    RingHash,
    /// By a hash of the request, in a table that the endpoints fill in turns (Eisenbud and others,
    /// NSDI 2016): more even than a ring, slightly less stable.
    Maglev,
}

/// Everything that can be configured for a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The time in which a new endpoint grows to its full share. Zero gives it the full share at
    /// once.
    pub slow_start: Duration,
    /// Which endpoints are preferred.
    pub locality: Locality,
    /// When to eject endpoints whose requests fail.
    pub ejection: Ejection,
    /// How many requests may be in flight on one endpoint. Further requests go to other endpoints.
    pub endpoint_requests: u32,
}

/// Which endpoints are preferred.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Locality {
    /// No endpoint is preferred (in Kubernetes: no `trafficDistribution`).
    #[default]
    Any,
    /// Endpoints in the same zone (`PreferSameZone`, `PreferClose`).
    SameZone {
        /// If the near endpoints have this many requests in flight on average, others are used, too.
        overflow: u32,
    },
    /// Endpoints on the same node, then those in the same zone (`PreferSameNode`).
    SameNode {
        /// If the near endpoints have this many requests in flight on average, others are used, too.
        overflow: u32,
    },
}

/// How near an endpoint is, nearest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Nearness {
    /// On the same node.
    Node,
    /// In the same zone.
    Zone,
    /// Elsewhere, or unknown.
    #[default]
    Elsewhere,
}

/// An endpoint with its properties.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<T> {
    /// The endpoint.
    pub endpoint: T,
    /// Identifies the endpoint in every proxy; see [`crate::hash`].
    pub key: u64,
    /// The endpoint's share relative to the other endpoints. 0 counts as 1, because an endpoint without a share is not
    /// in the set.
    pub weight: u32,
    /// How near the endpoint is.
    pub nearness: Nearness,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            algorithm: Algorithm::PeakEwma,
            slow_start: Duration::ZERO,
            locality: Locality::Any,
            ejection: Ejection::default(),
            endpoint_requests: u32::MAX,
        }
    }
}
