//! The issuers of users' tokens, and the keys with which tokens are verified (RFC 7519, RFC 7517).

use std::sync::Arc;
use std::time::Duration;

/// An issuer of tokens that a policy accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenIssuer {
    /// The value that the claim `iss` of a token must have.
    pub issuer: Arc<str>,
    /// The values of which the claim `aud` must contain one.
    pub audiences: Vec<Arc<str>>,
    /// The issuer's keys.
    pub keys: Vec<TokenKey>,
    /// The header of requests that carries the token after `Bearer `, in lower case.
    pub header: Arc<str>,
    /// How far the clocks of the issuer and of the proxy may differ.
    pub clock_skew: Duration,
    /// The claims of valid tokens that the application gets as headers.
    pub claim_headers: Vec<ClaimHeader>,
}

/// A header of requests that has the value of a claim. Clients cannot set it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimHeader {
    /// The name of the header, in lower case.
    pub header: Arc<str>,
    /// The name of the claim, as in [`ClaimMatch`].
    pub claim: Arc<str>,
}

/// A public key that verifies tokens of one algorithm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenKey {
    /// The value of `kid` in the headers of tokens. A key without an identifier verifies tokens with any `kid` and
    /// without one.
    pub id: Option<Arc<str>>,
    /// The only algorithm for which the key may be used.
    pub algorithm: TokenAlgorithm,
    /// The public key: `RSAPublicKey` in DER (RFC 8017), an uncompressed point (SEC 1), or the 32 bytes of an Ed25519
    /// key.
    pub public: Arc<[u8]>,
}

/// A signature algorithm (RFC 7518 section 3.1, RFC 8037). No symmetric algorithm is among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TokenAlgorithm {
    /// RSASSA-PKCS1-v1_5 with SHA-256.
    Rs256,
    /// RSASSA-PKCS1-v1_5 with SHA-384.
    Rs384,
    /// RSASSA-PKCS1-v1_5 with SHA-512.
    Rs512,
    /// RSASSA-PSS with SHA-256.
    Ps256,
    /// RSASSA-PSS with SHA-384.
    Ps384,
    /// RSASSA-PSS with SHA-512.
    Ps512,
    /// ECDSA with P-256 and SHA-256.
    Es256,
    /// ECDSA with P-384 and SHA-384.
    Es384,
    /// Ed25519.
    EdDsa,
}

/// A condition on a claim of a token.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClaimMatch {
    /// The name of a claim. If no claim has this name and it contains dots, it is the path to a claim inside other
    /// claims.
    pub name: Arc<str>,
    /// The claim, or an element of it, must equal one of these values. If there are none, the claim must only be
    /// present.
    pub values: Vec<Arc<str>>,
}

impl TokenAlgorithm {
    /// All algorithms.
    pub const ALL: [Self; 9] = [
        Self::Rs256,
        Self::Rs384,
        Self::Rs512,
        Self::Ps256,
        Self::Ps384,
        Self::Ps512,
        Self::Es256,
        Self::Es384,
        Self::EdDsa,
    ];

    /// The algorithm's name in tokens and keys (`alg`).
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Rs256 => "RS256",
            Self::Rs384 => "RS384",
            Self::Rs512 => "RS512",
            Self::Ps256 => "PS256",
            Self::Ps384 => "PS384",
            Self::Ps512 => "PS512",
            Self::Es256 => "ES256",
            Self::Es384 => "ES384",
            Self::EdDsa => "EdDSA",
        }
    }

    /// The algorithm with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.as_str() == name)
    }
}
