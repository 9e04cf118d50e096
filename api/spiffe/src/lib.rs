//! A client of SPIFFE's Workload API, which gets certificates and trust bundles from SPIRE or another server, and the
//! code that Leno's own servers of this API share ([`server`]).
//!
//! ```text
//! WorkloadApiAddress ── Svids::open ───► next: this process' certificates, whenever they are replaced
//!                    └─ Bundles::open ─► next: the roots of its trust domain and of federated ones
//! ```
//! The server learns from the kernel which process calls, so a call needs no secret. A stream ends with an error; its
//! caller opens it again, and decides how long to wait.
//!
//! A [`Bundle`] is a trust bundle as SPIFFE's federation exchanges it. A [`ServerIdVerifier`] verifies a server by its
//! SPIFFE ID.
//!
//! The crate does not choose among certificates, and stores none. Read first: [`Svids`], [`Bundles`].

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
