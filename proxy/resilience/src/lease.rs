//! A global rate limit, shared by proxies with leased tokens.
//!
//! The control plane has one bucket for each limit ([`Allocator`]) and leases tokens from it for a short
//! time; a proxy ([`Holder`]) spends what it was leased without asking, and asks again before that is
//! used up or old. No request waits for the control plane: where nothing is leased, because there were no
//! requests for a while, the first ones pass on credit, which the next tokens pay for.
//!
//! ```text
//! Holder ──Ask { wanted, unused }──► Allocator: takes tokens from the bucket, at most a fair share
//!        ◄──Grant { tokens, for, holders }──
//! ```
//!
//! **Error bound.** A token is taken from the bucket before it is leased, and is worth nothing
//! [`LEASE`] after the proxy has asked for it, so that in any time `t` all proxies together let through
//! at most `rate × (t + LEASE + ASK_EVERY) + burst + MAX_CREDIT × holders`. Only the rates of clocks matter to that, not what
//! they show. Towards the other side, tokens that a proxy holds and does not use are wasted: at most
//! what it asked for, a quarter more than it needed in the time before. A control plane that starts
//! anew leases nothing beyond the rate, because its buckets start empty. A proxy whose questions stay
//! unanswered for [`LOST`] goes by a limit of its own: the rate divided by the number of holders that it was last
//! told, or the whole rate where it was never told.

mod allocator;
mod holder;

use std::time::Duration;

pub use allocator::{Allocator, MAX_HOLDERS};
pub use holder::Holder;

/// How long leased tokens may be spent. Short, because it is the error bound; long enough for a few
/// round trips to the control plane.
pub const LEASE: Duration = Duration::from_millis(1_000);

/// How often a proxy asks while it has requests to let through.
pub const ASK_EVERY: Duration = Duration::from_millis(250);

/// How soon it asks again when it has had to refuse some.
pub const ASK_SOON: Duration = Duration::from_millis(100);

/// Requests that a proxy may let through before it has tokens for them: as many as come at once after a
/// quiet time. It is a part of the error bound.
pub const MAX_CREDIT: u32 = 8;

/// How long questions stay unanswered until a proxy goes by itself.
pub const LOST: Duration = Duration::from_secs(3);

/// A proxy's question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Tokens that it expects to need within [`ASK_EVERY`], those it still has not counted.
    pub wanted: u32,
}

/// The answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Tokens leased.
    pub tokens: u32,
    /// How many proxies share the limit now.
    pub holders: u32,
}

#[cfg(test)]
mod tests;
