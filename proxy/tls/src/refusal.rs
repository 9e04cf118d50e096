//! The reasons why certificates are refused.

use std::sync::Arc;

use leno_types::{Identity, IdentityError, TrustDomain};
use rustls::{CertificateError, OtherError};

/// Why the peer's certificate is refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Refusal {
    /// The peer presented no certificate.
    #[error("no certificate")]
    NoCertificate,
    /// The certificate is not an X.509 certificate.
    #[error("the certificate cannot be parsed")]
    Malformed,
    /// The certificate is not signed by any root of the trust bundle.
    #[error("the certificate is not issued by this mesh")]
    UnknownIssuer,
    /// The issuer has a root's name but another key, or the peer does not have the certificate's
    /// key.
    #[error("a signature does not verify")]
    BadSignature,
    /// The certificate has expired, according to the clock of this machine. That clock, or the clock of the
    /// certificate's issuer, may be wrong.
    #[error("the certificate has expired, if the clock of this machine is right")]
    Expired,
    /// The certificate is not valid yet, according to the clock of this machine. That clock, or the clock of the
    /// certificate's issuer, may be wrong.
    #[error("the certificate is not valid yet, if the clock of this machine is right")]
    NotYetValid,
    /// The certificate was issued for another use, for example for servers only.
    #[error("the certificate is not for this use")]
    Purpose,
    /// The certificate has no URI.
    #[error("the certificate has no SPIFFE identity")]
    NoIdentity,
    /// The certificate has more than one URI (X509-SVID section 2).
    #[error("the certificate has {0} URIs where one is allowed")]
    SeveralIdentities(usize),
    /// The certificate's URI is not a SPIFFE identity in the form that the mesh uses.
    #[error("the certificate's URI is not an identity")]
    NotAnIdentity(#[source] IdentityError),
    /// The certificate belongs to another trust domain.
    #[error("the certificate is of trust domain {presented}, expected {expected}")]
    TrustDomain {
        /// The trust domain that was expected. When a server checks a client: this workload's own. When a client checks
        /// a server: the domain of the expected identity.
        expected: TrustDomain,
        /// The certificate's trust domain.
        presented: TrustDomain,
    },
    /// The certificate belongs to another workload than the expected one.
    #[error("the certificate is of {presented}, expected {expected}")]
    Unexpected {
        /// The identity that the client expected.
        expected: Identity,
        /// The identity that the server presented.
        presented: Identity,
    },
    /// The certificate was revoked.
    #[error("the certificate was revoked")]
    Revoked,
    /// webpki found another error.
    #[error("the certificate is not valid: {0}")]
    Invalid(CertificateError),
}

impl Refusal {
    /// The label for metrics and logs.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::NoCertificate => "no-certificate",
            Self::Malformed => "malformed",
            Self::UnknownIssuer => "unknown-issuer",
            Self::BadSignature => "bad-signature",
            Self::Expired => "expired",
            Self::NotYetValid => "not-yet-valid",
            Self::Purpose => "purpose",
            Self::NoIdentity => "no-identity",
            Self::SeveralIdentities(_) => "several-identities",
            Self::NotAnIdentity(_) => "not-an-identity",
            Self::TrustDomain { .. } => "trust-domain",
            Self::Unexpected { .. } => "unexpected-identity",
            Self::Revoked => "revoked",
            Self::Invalid(_) => "invalid",
        }
    }

    /// The refusal in an error from rustls. `None` if the error is not about the peer's certificate.
    pub(crate) fn of(error: &rustls::Error) -> Option<Self> {
        match error {
            rustls::Error::NoCertificatesPresented => Some(Self::NoCertificate),
            rustls::Error::InvalidCertificate(error) => Some(Self::of_certificate(error)),
            _ => None,
        }
    }

    fn of_certificate(error: &CertificateError) -> Self {
        use CertificateError as E;
        match error {
            E::BadEncoding => Self::Malformed,
            E::Expired | E::ExpiredContext { .. } => Self::Expired,
            E::NotValidYet | E::NotValidYetContext { .. } => Self::NotYetValid,
            E::UnknownIssuer => Self::UnknownIssuer,
            E::BadSignature => Self::BadSignature,
            E::InvalidPurpose | E::InvalidPurposeContext { .. } => Self::Purpose,
            E::Other(OtherError(inner)) => match inner.downcast_ref::<Self>() {
                Some(own) => own.clone(),
                None => Self::Invalid(error.clone()),
            },
            _ => Self::Invalid(error.clone()),
        }
    }
}

/// Lets a certificate verifier return a refusal to rustls. `Malformed`, `Expired` and `NotYetValid` become the errors
/// of rustls, so that the peer gets the matching alert. All others are wrapped, and the peer gets a general alert.
/// [`Refusal::of`] restores the refusal from the error that the handshake returns.
impl From<Refusal> for rustls::Error {
    fn from(refusal: Refusal) -> Self {
        let certificate = match refusal {
            Refusal::Malformed => CertificateError::BadEncoding,
            Refusal::Expired => CertificateError::Expired,
            Refusal::NotYetValid => CertificateError::NotValidYet,
            own => CertificateError::Other(OtherError(Arc::new(own))),
        };
        Self::InvalidCertificate(certificate)
    }
}
