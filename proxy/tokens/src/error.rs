//! Why a token is not valid.

/// Why a request has no valid token. No reason reveals the contents of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenError {
    /// There is no token.
    Missing,
    /// The text is not a token in compact form, or the header that carries it is repeated.
    Malformed,
    /// The token is longer than [`MAX_TOKEN_BYTES`](crate::MAX_TOKEN_BYTES).
    TooLarge,
    /// The token is not from an issuer of the policy.
    Issuer,
    /// The issuer has no key for the token's `alg` and `kid`. The number is its position in the list of issuers with
    /// which the token was verified.
    Key(usize),
    /// None of the issuer's keys for the token's `alg` and `kid` has made the signature.
    Signature,
    /// The token has expired, or its times are missing or malformed.
    Expired,
    /// The token is not valid before its `nbf`.
    NotYet,
    /// The token is for other audiences.
    Audience,
}

impl TokenError {
    /// The label in answers and logs.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Missing => "token-missing",
            Self::Malformed => "token-malformed",
            Self::TooLarge => "token-too-large",
            Self::Issuer => "token-issuer",
            Self::Key(_) => "token-key",
            Self::Signature => "token-signature",
            Self::Expired => "token-expired",
            Self::NotYet => "token-not-yet-valid",
            Self::Audience => "token-audience",
        }
    }
}
