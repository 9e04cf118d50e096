//! The certificate that proves a proxy's identity.

use std::fmt;
use std::time::SystemTime;

use leno_types::{Identity, Revocations};
use leno_wire::trust::{FederatedRoots, TrustBundle, bundle_hash};
use x509_parser::extensions::GeneralName;
use x509_parser::parse_x509_certificate;

/// A certificate with its key and the trust bundle.
#[derive(Clone, PartialEq, Eq)]
pub struct Certificate {
    /// The chain in DER, leaf first, without the root.
    pub chain_der: Vec<Vec<u8>>,
    /// The private key, PKCS #8 in DER. It was made by this proxy, or by the server of a Workload API on its machine,
    /// and never leaves the machine.
    pub key_der: Vec<u8>,
    /// The roots that the control plane has published, in DER.
    pub published_der: Vec<Vec<u8>>,
    /// Roots that came with a certificate of a Workload API, in DER. They stay valid whatever the control plane
    /// publishes. Empty for a certificate of the control plane.
    pub lasting_der: Vec<Vec<u8>>,
    /// When the leaf expires.
    pub not_after: SystemTime,
    /// The control plane's name for the key that signed the leaf; empty if the control plane is of an earlier release.
    /// A certificate of a Workload API is not signed by the control plane; it gets the name of the key that signs now,
    /// so that no rotation waits for it.
    pub issuer: String,
    /// Certificates of peers that are no longer accepted.
    pub revoked: Revocations,
    /// The roots of other trust domains whose workloads are accepted.
    pub federated: FederatedRoots,
}

impl Certificate {
    /// The trust bundle in DER, which consists of all roots that verify peers.
    #[must_use]
    pub fn roots_der(&self) -> Vec<Vec<u8>> {
        let published = self.published_der.iter().filter(|root| !self.lasting_der.contains(root));
        self.lasting_der.iter().chain(published).cloned().collect()
    }

    /// What the proxy acknowledges to the control plane when it uses this certificate: the hash of the published roots
    /// that peers are verified with, and the key that signed the certificate. Roots of a Workload API are not part of
    /// it: the control plane cannot replace them, and while that API is unreachable they may differ from the roots that
    /// the control plane has published.
    #[must_use]
    pub fn acknowledged(&self) -> (String, String) {
        (bundle_hash(&self.published_der), self.issuer.clone())
    }

    /// The same certificate with the trust bundle that the control plane has published.
    pub(crate) fn under(&self, bundle: &TrustBundle) -> Self {
        let published_der = bundle.roots.iter().map(|root| root.to_vec()).collect();
        let issuer = if self.lasting_der.is_empty() { &self.issuer } else { &bundle.issuer };
        let (issuer, revoked) = (issuer.clone(), bundle.revoked.clone());
        let federated = bundle.federated.clone();
        Self { published_der, issuer, revoked, federated, ..self.clone() }
    }

    /// Whether the certificate must be renewed early, because another key signs now or because it was revoked.
    pub(crate) fn is_outdated(&self, bundle: &TrustBundle) -> bool {
        let is_of_another = !bundle.issuer.is_empty() && bundle.issuer != self.issuer;
        is_of_another || self.is_revoked(&bundle.revoked)
    }

    /// The SPIFFE ID in the certificate.
    pub(crate) fn id(&self) -> Option<String> {
        let (_, leaf) = parse_x509_certificate(self.chain_der.first()?).ok()?;
        let names = leaf.subject_alternative_name().ok()??;
        names.value.general_names.iter().find_map(|name| match name {
            GeneralName::URI(uri) => Some((*uri).to_owned()),
            _ => None,
        })
    }

    /// Whether these revocations cover the certificate.
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
    /// Omits the private key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificate")
            .field("chain", &self.chain_der.len())
            .field("roots", &self.roots_der().len())
            .field("not_after", &self.not_after)
            .finish_non_exhaustive()
    }
}
