//! Balancing among the endpoints of one service, and their ejection.
//!
//! A [`Balancer`] belongs to one worker and one set of endpoints. By default it draws two endpoints at
//! random and takes the one with the lower load: its latency estimate times the requests in flight on
//! it. The estimate jumps to a peak at once and decays over seconds, so that an endpoint that turns slow
//! is avoided after one response and tried again later. Answers without the work that was asked for never
//! lower it: an endpoint that fails at once is not the fastest. [`Settings`] choose another [`Algorithm`],
//! prefer near endpoints, give new ones their share slowly, and eject those that fail.
//!
//! ```text
//! update(candidates) ──► Balancer ──pick──► Pick ──connected / observe[_refusal] / penalise──► estimate
//!                                            ├── succeeded / failed ──► ejection, then one probe
//!                                            └── connect_failed ──► ejection with back-off
//! ```
//!
//! An endpoint that cannot be connected to is ejected: others are taken first for a time that doubles
//! with each failure. When all are ejected so, each is tried once every [`LAST_RESORT`]; in between
//! [`Balancer::pick`] refuses at once ([`NoPick::Failfast`]), so callers never queue. Ejections for
//! failed requests never leave a service without an endpoint.
//!
//! It knows nothing of addresses, time sources or the runtime: an endpoint is any `T`, the caller
//! says what time it is. A pick allocates nothing; tables of hashes are built with the set.

mod balancer;
mod group;
mod hash;
mod load;
mod rng;
mod settings;
mod slot;
mod tables;

pub use balancer::{Balancer, NoPick, Wanted};
pub use hash::{hash, mix};
pub use leno_types::traffic::{Ejection, SuccessRate};
pub use load::{DECAY, FIRST_EJECTION, LAST_RESORT, MAX_EJECTION, PENALTY, STALL_HOLD};
pub use rng::Rng;
pub use settings::{Algorithm, Candidate, Locality, Nearness, Settings};
pub use slot::Pick;
pub use tables::{MAGLEV_ENTRIES, MAX_RING_POINTS, POINTS_PER_ENDPOINT};
