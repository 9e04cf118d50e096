//! SPIFFE's Workload API as a client, which gets certificates and trust bundles of SPIRE, or of any other server of it, and
//! what Leno's own servers of it have in common ([`server`]).
//!
//! ```text
//! WorkloadApiAddress ── Svids::open ───► next: this process' certificates, whenever they are replaced
//!                    └─ Bundles::open ─► next: the roots of its trust domain and of federated ones
//! ```
//! The server finds out by the kernel which process calls, so that a call has no secret. A stream ends with an error and is
//! opened again by its caller, which decides how long it waits.
//!
//! A [`Bundle`] is a trust bundle as SPIFFE's federation exchanges it. A [`ServerIdVerifier`] verifies a server by its SPIFFE
//! ID.
//!
//! The crate does not choose among certificates, and keeps none. Read first: [`Svids`], [`Bundles`].

#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]

mod bundle;
mod certificates;
pub mod server;
mod server_id;
mod streams;

pub use bundle::{Bundle, BundleError, MAX_BUNDLE_BYTES, MAX_ROOT_BYTES, UnwritableRoot};
pub use server_id::ServerIdVerifier;
pub use streams::{Bundles, Svid, Svids, WorkloadApiError};
