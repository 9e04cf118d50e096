//! Peak-EWMA balancing over power of two choices.
//!
//! A [`Balancer`] belongs to one worker and one set of endpoints. It draws two endpoints at random
//! and takes the one with the lower load: its latency estimate times the requests in flight on it.
//! The estimate jumps to a peak at once and decays over seconds, so that an endpoint that turns slow
//! is avoided after one response and tried again later.
//!
//! ```text
//! update(endpoints) ──► Balancer ──pick──► Pick ──connected / observe / penalise──► estimate
//!                                           └── connect_failed ──► ejection with back-off
//! ```
//!
//! An endpoint that cannot be connected to is ejected: others are taken first for a time that doubles
//! with each failure. When all are ejected, each is tried once every [`LAST_RESORT`]; in between
//! [`Balancer::pick`] refuses at once ([`NoPick::Failfast`]), so callers never queue.
//!
//! It knows nothing of addresses, time sources or the runtime: an endpoint is any `T`, the caller
//! says what time it is.

mod balancer;
mod load;
mod rng;

pub use balancer::{Balancer, NoPick, Pick};
pub use load::{DECAY, FIRST_EJECTION, LAST_RESORT, MAX_EJECTION, PENALTY};
