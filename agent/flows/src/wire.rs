//! Requests of plain traffic, read from samples of payload that the programs take where no proxy counts requests.
//!
//! ```text
//!  samples ── Sampler, a thread ──► Talks: one Talk for each connection, with the parser of its protocol
//!                                       │ Exchange: kind, result, time
//!                                       ▼
//!                                     Rows ── each reading ──► wire_requests (kernel), metrics
//! ```
//! Parsers see bytes of other programs: what they cannot read counts as nothing, and never as an error.

#![cfg_attr(
    not(test),
    deny(clippy::indexing_slicing, clippy::panic, clippy::unwrap_used, clippy::unreachable)
)]

mod metrics;
mod protocol;
mod rows;
mod sampler;
mod talk;
mod talks;

pub use metrics::WireRow;
pub(crate) use metrics::{Published, add_family, list};
pub(crate) use sampler::Reading;
