//! The proxy's side of discovery and identity.
//!
//! ```text
//!  workers --watch(ip)--> Directory <--fills-- Client --delta stream, mTLS--> control plane
//!                                                |
//!                          IdentityClient (key, request, token) --> certificate, rotated
//! ```
//!
//! Workers ask the [`Directory`] what stands behind an address and get a watch that is kept up to
//! date. [`Client::run`] is one future for the proxy's control thread: it gets a certificate,
//! opens the stream, and after any failure tries again with backoff; meanwhile and forever the
//! last good state stays in use.
//!
//! It knows neither policy nor routes nor how proxies talk to each other. Read first:
//! [`Directory`], then [`Client`].

mod backoff;
mod certificate;
mod client;
mod connection;
mod directory;
mod identity;
mod leases;
mod settings;
mod stream;
mod table;
mod tls;
mod watches;

pub use certificate::Certificate;
pub use client::Client;
pub use connection::ConnectError;
pub use directory::{Directory, Status};
pub use identity::{IdentityClient, IdentityError};
pub use leases::{Asker, Lease, Leases};
pub use settings::Settings;
pub use watches::{IDLE, MAX_LOOKED_UP, MAX_WATCHED};

/// An error and its causes in one line.
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
