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
//! What the authority signs with may change while it is used: an issuer is renewed, or the root is replaced in the
//! phases of [`AuthorityState`]. This crate knows the phases, not when the next one begins.
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
