//! A global rate limit that proxies share by leasing tokens.
//!
//! The control plane has one bucket for each limit ([`Allocator`]) and leases tokens from it for a short time. Each
//! worker of a proxy ([`Holder`]) spends its leased tokens without contacting the control plane, and requests more
//! before they are used up or expire. No request waits for the control plane. If a worker has no tokens, because there
//! were no requests for a while, the first requests pass on credit, and the next tokens pay for them.
//!
//! ```text
//! Holder ──Ask { wanted }──► Allocator: takes tokens from the bucket, at most a fair share
//!        ◄──Grant { tokens, holders }──
//! ```
//!
//! **Error bound.** A token leaves the bucket before it is leased, and expires [`LEASE`] after the worker asked for it.
//! So in any time `t` all proxies together let through at most `rate × (t + LEASE + ASK_EVERY) + burst + MAX_CREDIT ×
//! holders`. This depends only on the rates of the clocks, not on their values. In the other direction, tokens that a
//! worker leases and does not use are lost: at most as many as it asked for, which is a quarter more than it needed in
//! the period before. A control plane that restarts leases nothing beyond the rate, because its buckets start empty. A
//! worker whose questions get no answer for [`LOST`] uses a limit of its own: the rate divided by the last known number
//! of holders, or by the number of its proxy's workers if it never got an answer.

mod allocator;
mod holder;

use std::time::Duration;

pub use allocator::{Allocator, MAX_HOLDERS};
pub use holder::Holder;

/// How long leased tokens are valid. The time is short because it is part of the error bound, but long enough for a few
/// round trips to the control plane.
pub const LEASE: Duration = Duration::from_millis(1_000);

/// How often a worker asks while it has requests.
pub const ASK_EVERY: Duration = Duration::from_millis(250);

/// How soon a worker asks again if it had to reject requests.
pub const ASK_SOON: Duration = Duration::from_millis(100);

/// How many requests a worker may let through before it has tokens for them: as many as arrive at once after a quiet
/// time. It is part of the error bound.
pub const MAX_CREDIT: u32 = 8;

/// If questions get no answer for this long, a worker uses a limit of its own.
pub const LOST: Duration = Duration::from_secs(3);

/// A question to the control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// How many tokens the worker expects to need within [`ASK_EVERY`], beyond the tokens that it still has.
    pub wanted: u32,
}

/// The answer to an [`Ask`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Leased tokens.
    pub tokens: u32,
    /// How many workers of all proxies share the limit now.
    pub holders: u32,
}

#[cfg(test)]
mod tests;
