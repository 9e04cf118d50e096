//! The mesh's certificate authority and the tokens that workloads show to it.
//!
//! ```text
//! leno up ── grant ──► TokenStore (directory) ◄── authenticate ── control plane
//!                                                     │ instance, identity
//! proxy ── certificate request ───────────────────────┴─► Authority::sign ──► certificate
//! ```
//!
//! A proxy makes its own key, asks with a PKCS #10 request and a token, and gets a short-lived
//! X.509-SVID. What the certificate says comes from the token alone: of the request only the
//! public key is used, and only after the request's signature proved that the sender holds it.
//!
//! It knows files, certificates and tokens. It does not know the wire format, connections or
//! tasks (`leno-serve` maps these), nor how a certificate is checked in a handshake (`leno-tls`).
//! All calls are synchronous and short: a signature, or a read of at most 4,096 small files.
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
