//! Balancing among the endpoints of one service, and their ejection.
//!
//! A [`Balancer`] belongs to one worker (a thread of the proxy) and one set of endpoints. By default it draws two
//! endpoints at random and chooses the one with the lower load: its latency estimate times its requests in flight. The
//! estimate rises to a higher latency at once and falls over seconds. So an endpoint that becomes slow is avoided after
//! one response and tried again later. A refusal never lowers the estimate: an endpoint that fails at once must not
//! look fastest. [`Settings`] select another [`Algorithm`], prefer near endpoints, give new endpoints their share
//! slowly, and eject endpoints that fail.
//!
//! ```text
//! update(candidates) ──► Balancer ──pick──► Pick ──observe[_refusal] / penalise──► latency estimate
//!                                            ├── failed ──► ejection after some in a row, until a probe has succeeded
//!                                            ├── connect_failed ──► ejection with back-off
//!                                            └── connected ──► ends that ejection
//! ```
//!
//! An endpoint that cannot be connected to is ejected: others are preferred for a time that doubles with each failure.
//! If all endpoints are ejected for this reason, each is tried once every [`LAST_RESORT`]. In between
//! [`Balancer::pick`] returns [`NoPick::Failfast`] without waiting, so callers never queue. Ejections for failed
//! requests never leave a service without an endpoint.
//!
//! The crate does not deal with addresses, clocks or the runtime: an endpoint is any `T`, and the
//! caller passes the time. A pick allocates nothing; hash tables are built when the set changes.

#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]

mod balancer;
mod group;
mod hash;
mod load;
mod rng;
mod settings;
mod slot;
mod tables;

pub use balancer::{Affinity, Balancer, NoPick};
pub use hash::{hash, mix};
pub use leno_types::traffic::{Ejection, SuccessRate};
pub use load::{DECAY, FIRST_EJECTION, LAST_RESORT, MAX_EJECTION, PENALTY, STALL_HOLD};
pub use rng::Rng;
pub use settings::{Algorithm, Candidate, Locality, Nearness, Settings};
pub use slot::Pick;
pub use tables::{MAGLEV_ENTRIES, MAX_RING_POINTS, POINTS_PER_ENDPOINT};
