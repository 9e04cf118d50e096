//! Decides about requests: which route they follow, to which backend they go, and how they are changed. The crate has
//! no I/O, no clock and no random numbers of its own.
//!
//! [`RouteTable`] is compiled from the [routes](leno_types::routes) of one port of a service. [`RouteTable::decide`] is
//! what a proxy runs for every request; it allocates nothing. [`RouteTable::explain`] evaluates the same conditions and
//! reports for each why it failed, and [`RouteTable::shadowed`] finds the matches that no request can reach.
//! [`StreamTable`] decides about connections that are relayed as bytes. [`authorization`] decides whether a client may
//! connect, and whether a request is permitted. These items say what follows from a rule: [`Choice`] (the backend, by
//! weight), [`MergedFilters`] (its filters, merged), [`rewrite`] (targets and redirections), [`cors`]. [`effective`]
//! merges the [traffic policies](leno_types::traffic) that apply to a request.
//!
//! This crate does not know where routes come from, what connections are, or how requests are stored: a request is any
//! type that implements [`Request`].
//!
//! ```text
//! routes ─ compile ─► RouteTable ─ decide(request) ─► RouteDecision ─ rule, backend ─► MergedFilters
//!                          └─ explain(request) ─► every match, in the order of precedence
//! ```

#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]

pub mod authorization;
pub mod cors;
pub mod rewrite;

mod changes;
mod choice;
mod condition;
mod decide;
mod effective;
mod explain;
mod headers;
mod list;
mod pattern;
mod policy_part;
mod request;
mod shadow;
mod streams;
mod table;

pub use changes::MergedFilters;
pub use choice::{Choice, Weights, sampled};
pub use condition::Mismatch;
pub use decide::{Refusal, RouteDecision};
pub use effective::{RuleName, effective, with_rule};
pub use explain::{MatchResult, RouteExplanation};
pub use headers::{combined, is_field_name};
pub use pattern::{MAX_PATTERN_BYTES, Pattern, PatternError};
pub use policy_part::{PartOutcome, PartVerdict, PolicyPart, standings};
pub use request::Request;
pub use shadow::ShadowedMatch;
pub use streams::{StreamDecision, StreamShadowed, StreamTable};
pub use table::{IgnoredRoute, MatchedRule, RouteTable, TableRule};
