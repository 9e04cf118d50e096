//! A global rate limit that proxies share by leasing tokens.
//!
//! The control plane has one bucket for each limit ([`Allocator`]) and leases tokens from it for a short time. Each
//! proxy ([`Holder`]) spends its tokens without a query, and requests more before they are used up or expire. So no
//! request waits for the control plane. If a proxy has no tokens, because there were no requests for a while, the first
//! requests pass on credit, and the next tokens pay for them.
//!
//! ```text
//! Holder ──Ask { wanted }──► Allocator: takes tokens from the bucket, at most a fair share
//!        ◄──Grant { tokens, holders }──
//! ```
//!
//! **Error bound.** A token leaves the bucket before it is leased, and expires [`LEASE`] after the proxy asked for it.
//! So as long as the proxies reach the control plane, all of them together let through, in any time `t`, at most `rate
//! × (t + LEASE + ASK_EVERY) + burst + MAX_CREDIT × holders`. Only the rates of the clocks matter for this, not their
//! values. In the other direction, tokens that a proxy leases and does not use are lost. These are at most as many as
//! it asked for, which is a quarter more than it needed in the period before. A control plane that restarts leases
//! nothing beyond the rate, because its buckets start empty. A proxy that gets no answer for [`LOST`] uses a limit of
//! its own: the rate divided by the last known number of holders, or the whole rate if it never got an answer.

mod allocator;
mod holder;

use std::time::Duration;

pub use allocator::{Allocator, MAX_HOLDERS};
pub use holder::Holder;

/// How long leased tokens are valid, from the moment at which the proxy asked for them. This is short because it is
/// part of the error bound, but long enough for a few round trips to the control plane.
pub const LEASE: Duration = Duration::from_millis(1_000);

/// How often a proxy asks while it has requests.
pub const ASK_EVERY: Duration = Duration::from_millis(250);

/// How soon a proxy asks again if it had no token for some requests.
pub const ASK_SOON: Duration = Duration::from_millis(100);

/// The largest number of requests that a proxy may let through before it has tokens for them: as many as arrive at once
/// after a quiet time. It is part of the error bound.
pub const MAX_CREDIT: u32 = 8;

/// How long questions may get no answer before a proxy uses a limit of its own.
pub const LOST: Duration = Duration::from_secs(3);

/// A question to the control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// The tokens that the proxy expects to need within [`ASK_EVERY`], minus those that it still has, plus those that
    /// it owes for requests on credit.
    pub wanted: u32,
}

/// The answer to an [`Ask`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Leased tokens.
    pub tokens: u32,
    /// How many proxies share the limit now.
    pub holders: u32,
}

#[cfg(test)]
mod tests;
