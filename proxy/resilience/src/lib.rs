//! Faults, limits on concurrency, hedging, retries and rate limits, as decisions without I/O.
//!
//! Each part is a small state machine. The caller reports events and the time, and gets a decision. No part reads a
//! clock, uses a global random source, or deals with connections. HTTP appears only as statuses and as the value of
//! `Retry-After`. Memory is allocated for a request only if it waits at a [`Gate`] or has a new key. Most instances
//! belong to one worker (a thread of the proxy). [`WorkloadLimit`] and [`lease::Holder`] are shared by all workers of a
//! proxy.
//!
//! ```text
//! server's proxy  request ─► KeyedLimit, or lease::Holder ─► application
//! client's proxy  request ─► draw(faults) ─► Gate ─► attempt (or several: Hedge) ─► Retry ─┬─► final
//!                                             ▲         ▲                                  │
//!                                   Gradient sets       └── after delay(), if the ◄────────┘
//!                                   its limit               Budget has a token
//! ```
//! A permit of the gate is kept for all attempts of a request. Policies arrive as the values of
//! [`leno_types::traffic`]. Proxies share a global rate limit by leasing tokens: [`lease::Holder`] in the proxy,
//! [`lease::Allocator`] in the control plane.
//!
//! Read first: [`Retry`], [`Budget`], [`TokenBucket`], [`lease`].

#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]

mod backoff;
mod bucket;
mod budget;
mod fault;
mod gate;
mod gradient;
mod hedge;
mod keyed;
mod latencies;
pub mod lease;
mod retry;
mod retry_after;

pub use backoff::delay;
pub use bucket::{Rate, TokenBucket};
pub use budget::{Budget, MIN_BURST};
pub use fault::{Fault, draw};
pub use gate::{Full, Gate, Permit};
pub use gradient::{Gradient, MAX_LIMIT, MIN_LIMIT};
pub use hedge::{Hedge, Step};
pub use keyed::{KeyedLimit, MAX_KEYS, Verdict, WorkloadLimit};
pub use latencies::{Latencies, MIN_SEEN};
pub use retry::{Decision, Ending, Facts, Retry, Why, is_failure};
pub use retry_after::retry_after;
