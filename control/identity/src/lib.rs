//! The mesh's certificate authority, and the tokens with which workloads authenticate to it.
//!
//! ```text
//! leno up ── grant ──► TokenStore (directory) ◄── authenticate ── control plane
//!                                                     │ instance, identity
//! proxy ── certificate request ───────────────────────┴─► Authority::sign ──► certificate
//! ```
//!
//! A proxy generates its own key, sends a PKCS #10 request with a token, and receives a short-lived X.509-SVID.
//! The token alone determines which identity the certificate states. Of the request only the public key is used,
//! after the request's signature has proved that the sender has the private key.
//!
//! This crate handles files, certificates and tokens. Connections, tasks and the wire format are in `leno-serve`,
//! and `leno-tls` verifies certificates in handshakes. All calls are synchronous and short: a signature, or a read
//! of at most 4,096 small files.
//!
//! The authority's key and roots may change while it is used: an issuer is renewed, or the root is replaced in the
//! phases of [`AuthorityState`]. The caller decides when the next phase begins.
//!
//! Start with [`Authority`], then [`AuthorityState`] and [`TokenStore`].

mod authority;
mod files;
mod p256;
pub mod report;
mod tokens;

pub use authority::{
    Authority, AuthorityDirectory, AuthorityState, AuthorityTrust, CLOCK_SKEW, CertificateWithKey,
    DEFAULT_LIFETIME, IdentityRevocation, IssueError, IssuedCertificate, MAX_LIFETIME, MAX_ROOTS,
    MIN_LIFETIME, MIN_POD_LIFETIME, OpenError, OperatorRequest, OperatorVerb, POD_CLOCK_SKEW,
    PodKey, RotationError, RotationPhase, SignerPem, TooManyRoots, read_issuer,
};
pub use files::{FileError, write_public};
pub use tokens::{BadToken, TokenError, TokenStore};
