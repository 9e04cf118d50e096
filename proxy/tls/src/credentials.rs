//! The certificate that proves a workload's identity, and the roots that it trusts.
#![expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "the chain is checked to be non-empty, and every `i64` of seconds fits a `SystemTime`"
)]

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leno_types::{Identity, Revocations, TrustDomain};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::Refusal;
use crate::verify::Svid;

/// The largest number of certificates in a chain or bundle. A chain has a leaf with a few issuers, and a bundle has the
/// roots of two rotations.
const MAX_CERTIFICATES: usize = 32;

/// A certificate chain with its key, and the trust bundle. The key never leaves the process.
pub struct Credentials {
    pub(crate) chain: Vec<CertificateDer<'static>>,
    pub(crate) key: PrivateKeyDer<'static>,
    pub(crate) roots: Vec<CertificateDer<'static>>,
    identity: Identity,
    not_before: SystemTime,
    not_after: SystemTime,
    pub(crate) not_after_s: i64,
    revoked: Revocations,
    federated: FederatedRoots,
}

/// The roots of other trust domains. The roots of a domain only prove identities of this domain.
pub type FederatedRoots = BTreeMap<TrustDomain, Vec<CertificateDer<'static>>>;

/// Why credentials are not usable.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// The text is not PEM, or not PEM of this kind.
    #[error("the {0} is not valid PEM")]
    Pem(&'static str, #[source] rustls_pki_types::pem::Error),
    /// The chain or bundle is empty.
    #[error("no certificate in the {0}")]
    Empty(&'static str),
    /// There are more certificates than any workload needs.
    #[error("more than {MAX_CERTIFICATES} certificates in the {0}")]
    TooMany(&'static str),
    /// The workload's certificate cannot be read, or does not name exactly one identity.
    #[error("the workload's own certificate is not usable")]
    Identity(#[source] Refusal),
    /// webpki cannot use a root, or the key does not fit the certificate.
    #[error("the {0} is not usable")]
    Unusable(&'static str, #[source] rustls::Error),
}

impl Credentials {
    /// Builds credentials from DER: the chain, which begins with the workload's certificate, its
    /// key, and the roots to trust.
    ///
    /// # Errors
    /// [`CredentialsError`]. [`crate::Keyring::rotate`] checks whether the key fits.
    pub fn from_der(
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
        roots: Vec<CertificateDer<'static>>,
    ) -> Result<Self, CredentialsError> {
        for (what, list) in [("certificate chain", &chain), ("trust bundle", &roots)] {
            if list.len() > MAX_CERTIFICATES {
                return Err(CredentialsError::TooMany(what));
            }
            if list.is_empty() {
                return Err(CredentialsError::Empty(what));
            }
        }
        let svid = Svid::read(&chain[0]).map_err(CredentialsError::Identity)?;
        Ok(Self {
            chain,
            key,
            roots,
            not_before: at(svid.not_before_s),
            not_after: at(svid.not_after_s),
            not_after_s: svid.not_after_s,
            identity: svid.identity,
            revoked: Revocations::default(),
            federated: FederatedRoots::new(),
        })
    }

    /// Returns these credentials, which then also verify peers of other trust domains.
    #[must_use]
    pub fn with_federated(mut self, mut federated: FederatedRoots) -> Self {
        // Only the trust bundle can prove identities of this trust domain.
        federated.remove(self.identity.trust_domain());
        self.federated = federated;
        self
    }

    /// The roots of other trust domains.
    #[must_use]
    pub fn federated(&self) -> &FederatedRoots {
        &self.federated
    }

    /// Returns these credentials, which then reject peers whose certificates are revoked.
    #[must_use]
    pub fn with_revoked(self, revoked: Revocations) -> Self {
        Self { revoked, ..self }
    }

    /// The certificates of peers that are revoked.
    #[must_use]
    pub fn revoked(&self) -> &Revocations {
        &self.revoked
    }

    /// Builds credentials from PEM.
    ///
    /// # Errors
    /// [`CredentialsError`].
    pub fn from_pem(chain: &[u8], key: &[u8], roots: &[u8]) -> Result<Self, CredentialsError> {
        let chain = certificates("certificate chain", chain)?;
        let roots = certificates("trust bundle", roots)?;
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|error| CredentialsError::Pem("private key", error))?;
        Self::from_der(chain, key, roots)
    }

    /// The workload's identity.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// When the credentials become valid.
    #[must_use]
    pub fn not_before(&self) -> SystemTime {
        self.not_before
    }

    /// When the credentials expire.
    #[must_use]
    pub fn not_after(&self) -> SystemTime {
        self.not_after
    }
}

/// Shows everything except the key.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("identity", &self.identity)
            .field("not_after", &self.not_after)
            .field("roots", &self.roots.len())
            .finish_non_exhaustive()
    }
}

fn certificates(
    what: &'static str,
    pem: &[u8],
) -> Result<Vec<CertificateDer<'static>>, CredentialsError> {
    CertificateDer::pem_slice_iter(pem)
        .take(MAX_CERTIFICATES + 1)
        .collect::<Result<_, _>>()
        .map_err(|error| CredentialsError::Pem(what, error))
}

fn at(unix_s: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(u64::try_from(unix_s).unwrap_or(0))
}
