//! What a balancer is told about its service and its endpoints.

use std::time::Duration;

use leno_types::traffic::Ejection;

/// How an endpoint is chosen among those that may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// The one of two random ones whose latency times requests in flight is lower.
    #[default]
    PeakEwma,
    /// The one of two random ones with fewer requests in flight.
    LeastRequest,
    /// One after the other, by weight.
    RoundRobin,
    /// Any, by weight.
    Random,
    /// By a hash of the request, on a ring of hashes of the endpoints.
    RingHash,
    /// By a hash of the request, in a table that all endpoints fill in turns (Eisenbud and others,
    /// NSDI 2016): more even than a ring, a little less stable.
    Maglev,
}

/// Everything that can be chosen for a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How to choose.
    pub algorithm: Algorithm,
    /// The time in which a new endpoint grows to its share. Zero gives it at once.
    pub slow_start: Duration,
    /// Which endpoints are preferred.
    pub locality: Locality,
    /// When an endpoint that fails requests is left out.
    pub ejection: Ejection,
    /// Most requests in flight on one endpoint; one more goes to another.
    pub endpoint_requests: u32,
}

/// Which endpoints come first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Locality {
    /// None (Kubernetes: no `trafficDistribution`).
    #[default]
    Any,
    /// Those of the zone (`PreferSameZone`, `PreferClose`).
    SameZone {
        /// Requests in flight on each near endpoint, on average, from which others help.
        overflow: u32,
    },
    /// Those of the node, then those of the zone (`PreferSameNode`).
    SameNode {
        /// As of [`Locality::SameZone`].
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

/// An endpoint with what the balancer needs to know of it.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<T> {
    /// The endpoint.
    pub endpoint: T,
    /// What identifies it to every proxy; see [`crate::hash`].
    pub key: u64,
    /// Its share in relation to the others'. 0 is taken as 1: an endpoint that takes none is not
    /// in the set.
    pub weight: u32,
    /// How near it is.
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
