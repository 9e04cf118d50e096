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

mod certificate;
mod directory;
mod table;

pub use certificate::Certificate;
pub use directory::{Directory, IDLE, MAX_WATCHED, Status};
