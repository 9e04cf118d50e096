//! Verifies JSON Web Tokens (RFC 7519) that requests carry, and compares their claims.
//!
//! A token is believed once its signature is by a key that its issuer has for exactly that algorithm: the
//! token's own `alg` chooses among keys and never how a key is used, so that neither `none` nor a public key
//! taken for a shared secret (RFC 8725 section 2.1) passes. Headers that ask for keys from elsewhere (`jwk`,
//! `jku`, `x5u`) have no effect.
//!
//! It does not know where tokens come from, what policies are, or how keys were fetched.
//!
//! ```text
//! token ─► TokenCache ─ known ─────────────────────────────────► Claims ─ fulfil(ClaimMatch)
//!              └─ new ─ verify(issuers, time) ─► signature, time ─┘
//! ```

#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]

mod cache;
mod claims;
mod error;
mod verify;

pub use cache::{TokenCache, TokenUse};
pub use claims::Claims;
pub use error::TokenError;
pub use verify::{MAX_TOKEN_BYTES, verify};
