//! The mesh's certificate authority, and the tokens with which workloads authenticate to it.
//!
//! ```text
//! leno up ── grant ──► TokenStore (directory) ◄── authenticate ── control plane
//!                                                     │ instance, identity
//! proxy ── certificate request ───────────────────────┴─► Authority::sign ──► certificate
//! ```
//!
//! A proxy generates its own key, sends a PKCS #10 request with a token, and receives a short-lived
//! X.509-SVID. The token alone determines what the certificate states: only the public key of the
//! request is used, after the request's signature has proved that the sender holds the key.
//!
//! This crate handles files, certificates and tokens. It does not know the wire format, connections
//! or tasks (`leno-serve` does), nor how a handshake verifies a certificate (`leno-tls` does). All
//! calls are synchronous and short: a signature, or a read of at most 4,096 small files.
//!
//! Start with [`Authority`], then [`TokenStore`].

mod authority;
mod files;
mod p256;
mod tokens;

pub use authority::{
    Authority, CLOCK_SKEW, DEFAULT_LIFETIME, IssueError, Issued, MAX_LIFETIME, MIN_LIFETIME,
    OpenError, RootPair, ServerCertificate,
};
pub use files::FileError;
pub use tokens::{BadToken, TokenError, TokenStore};
