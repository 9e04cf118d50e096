//! The proxy's side of discovery and identity.
//!
//! ```text
//!  workers --watch(ip)--> Directory <--fills-- Client --delta stream, mTLS--> control plane
//!                                                |
//!                          IdentityClient (key, request, token) --> certificate, rotated
//!                                         (or a SPIFFE Workload API, or files of a kubelet)
//! ```
//!
//! Workers look up an address in the [`Directory`] and get a watch that is kept up to date. [`Client::run`] is one
//! future for the proxy's control thread: it gets a certificate, opens the stream, and reconnects with backoff after
//! any failure. While the control plane is unreachable, the last state stays in use, without a time limit.
//!
//! [`Leases`] gets the tokens of rate limits that proxies share. An [`ApplicationIdentity`] serves separate
//! certificates to the workload's application.
//!
//! The crate does not evaluate policies or routes, and opens no connections between proxies. Read first: [`Directory`],
//! then [`Client`].

#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]

mod application;
#[expect(clippy::arithmetic_side_effects, reason = "durations up to a bound of minutes")]
mod backoff;
mod certificate;
#[expect(clippy::arithmetic_side_effects, reason = "lifetimes of certificates, by constants")]
mod certificate_files;
mod client;
mod connection;
mod directory;
#[expect(clippy::arithmetic_side_effects, reason = "lifetimes of certificates, by constants")]
mod identity;
mod leases;
mod settings;
mod stream;
mod table;
mod tls;
#[expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "arrays have an element for each `Asker`, which counts watches in a map"
)]
mod watches;
mod workload_api;

pub use application::{ApplicationCounts, ApplicationIdentity};
pub use certificate::Certificate;
pub use certificate_files::CertificateFiles;
pub use client::Client;
pub use connection::ConnectError;
pub use directory::{Directory, Status};
pub use identity::{IdentityClient, IdentityError};
pub use leases::{Asker, Lease, Leases};
pub use settings::{CertificateSource, Settings};
pub use watches::{IDLE, MAX_LOGGED, MAX_LOOKED_UP, MAX_WATCHED};

/// An error with its causes, in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
