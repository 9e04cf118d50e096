//! Addresses of names outside of the mesh, kept up to date while they are watched.
//!
//! ```text
//! Names.watch(host) ─► one task per name ─► resolvers of /etc/resolv.conf (A and AAAA)
//!        │                   └─ sleeps as long as the response is valid, then resolves again
//!        └─ receiver of NameState: no response yet, addresses, or why there are none
//! ```
//!
//! A response is used for its time to live, within limits. While no resolver responds, the last good addresses stay in
//! use for a limited time (RFC 8767). Once a resolver reports that the name does not exist or has no addresses, the old
//! addresses are dropped. The task of a name ends when the name has no receivers.
//!
//! The crate does not deal with services or proxies. Every query has an EDNS option ([`PROXY_OPTION`]) that marks it as
//! a query of a proxy. The mesh's own resolver answers applications with a virtual address, and because of the option
//! it answers a proxy with the real addresses. Other resolvers ignore the option.
//!
//! Read first: [`Names`], then `question` (what a query contains, and which responses count).

#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]

mod ask;
mod keep;
mod question;

pub use ask::{AskError, MAX_RESOLVERS, Resolvers, nameservers, over_tcp};
pub use keep::{Counts, MAX_NAMES, NameState, Names};
pub use question::{MAX_ADDRESSES, PROXY_OPTION};
