//! Verifies JSON Web Tokens (RFC 7519) that requests carry, and compares their claims.
//!
//! A token is valid only if it is signed by a key that its issuer has for exactly that algorithm. The token's own `alg`
//! selects among the keys, but does not decide how a key is used. So neither `none` nor a public key that is misused as
//! a shared secret (RFC 8725 section 2.1) is accepted. Headers that name keys elsewhere (`jwk`, `jku`, `x5u`) have no
//! effect.
//!
//! The crate does not deal with where tokens come from, with policies, or with fetching keys.
//!
//! ```text
//! token ─► TokenCache ─ known ─ its time ───────────────────────────────► Claims ─ fulfil(ClaimMatch)
//!              └─ new ─ verify(issuers, now): issuer, key, signature, time, audience ─┘
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
