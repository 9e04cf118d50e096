//! Why a token is not believed.

/// Why a request has no valid token. None of them tells what a token holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenError {
    /// There is none.
    Missing,
    /// It is no token in compact form, or repeats the header that carries it.
    Malformed,
    /// It is longer than [`MAX_TOKEN_BYTES`](crate::MAX_TOKEN_BYTES).
    TooLarge,
    /// No issuer of the policy has issued it.
    Issuer,
    /// The issuer, at this position among those that were asked for, has no key for its algorithm and `kid`.
    Key(usize),
    /// The signature is not by that key.
    Signature,
    /// It was valid until `exp`, or has no such time.
    Expired,
    /// It is valid from `nbf` on.
    NotYet,
    /// It is for other audiences.
    Audience,
}

impl TokenError {
    /// The name in answers and logs.
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
