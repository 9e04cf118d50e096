//! The certificate that proves a proxy's identity.

use std::fmt;
use std::time::SystemTime;

use leno_types::{Identity, Revocations};
use leno_wire::trust::TrustBundle;
use x509_parser::extensions::GeneralName;
use x509_parser::parse_x509_certificate;

/// A certificate with its key and the trust bundle.
#[derive(Clone, PartialEq, Eq)]
pub struct Certificate {
    /// The chain in DER, leaf first, without the root. The control plane has issued it.
    pub chain_der: Vec<Vec<u8>>,
    /// The private key, PKCS #8 in DER. This proxy made it and never sends it anywhere.
    pub key_der: Vec<u8>,
    /// The trust bundle in DER.
    pub roots_der: Vec<Vec<u8>>,
    /// When the leaf expires.
    pub not_after: SystemTime,
    /// The key that signed the leaf, as the control plane calls it; empty if that is of an earlier release.
    pub issuer: String,
    /// Certificates of peers that are accepted no longer.
    pub revoked: Revocations,
}

impl Certificate {
    /// Whether it is to be renewed early: another key signs now, or it was revoked.
    pub(crate) fn is_outdated(&self, bundle: &TrustBundle) -> bool {
        let is_of_another = !bundle.issuer.is_empty() && bundle.issuer != self.issuer;
        is_of_another || self.is_revoked(&bundle.revoked)
    }

    /// Whether it is one of these.
    pub(crate) fn is_revoked(&self, revoked: &Revocations) -> bool {
        if revoked.is_empty() {
            return false;
        }
        let leaf = self.chain_der.first();
        let Some((_, leaf)) = leaf.and_then(|der| parse_x509_certificate(der).ok()) else {
            return false;
        };
        let Ok(Some(names)) = leaf.subject_alternative_name() else { return false };
        names.value.general_names.iter().any(|name| match name {
            GeneralName::URI(uri) => uri.parse::<Identity>().is_ok_and(|identity| {
                revoked.covers(&identity, leaf.validity().not_before.timestamp())
            }),
            _ => false,
        })
    }
}

impl fmt::Debug for Certificate {
    /// Leaves the key out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificate")
            .field("chain", &self.chain_der.len())
            .field("roots", &self.roots_der.len())
            .field("not_after", &self.not_after)
            .finish_non_exhaustive()
    }
}
