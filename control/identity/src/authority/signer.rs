//! Signs certificates with a root of the mesh's own, or with an issuer that the operator provides.

use std::fmt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use leno_types::TrustDomain;
use rcgen::{
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256,
    PublicKeyData, SanType,
};
use rustls::RootCertStore;
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::server::ParsedCertificate;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, UnixTime};
use serde::{Deserialize, Serialize};
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;

use super::root::{check_authority, check_own};
use super::{CLOCK_SKEW, OpenError, fields};
use crate::files;

/// Most certificates in a chain, and most roots.
const MAX_CERTIFICATES: usize = 16;

/// The lifetime of the certificate that is issued to check a chain, and then dropped.
const CHECK_LIFETIME: Duration = Duration::from_mins(1);

/// A certificate with its key, and the roots that verify it, all in PEM.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignerPem {
    /// The signing certificate, followed by the certificates between it and a root.
    pub certificates: String,
    /// The key of the signing certificate. With it, a program can impersonate any workload of the mesh.
    pub key: String,
    /// The roots that verifiers trust.
    pub roots: String,
}

/// A signer that was loaded and checked.
pub(super) struct Signer {
    pub(super) issuer: Issuer<'static, KeyPair>,
    /// The certificates that follow a workload's certificate in its chain, without the root.
    pub(super) above_der: Vec<Vec<u8>>,
    pub(super) roots: Vec<CertificateDer<'static>>,
    /// The identifier of the key, as certificates contain it, in lower-case hexadecimal.
    pub(super) key_id: String,
    /// When peers will no longer accept signed certificates: the earlier one of the next two times. In whole seconds.
    pub(super) not_after: SystemTime,
    /// When the last of the roots expires. If a root signs directly, this is when that root expires.
    pub(super) root_not_after: SystemTime,
    /// When the first certificate of the signing chain expires: the signing certificate or an intermediate.
    pub(super) issuer_not_after: SystemTime,
}

impl SignerPem {
    /// Whether this is one of the mesh's own roots, which sign certificates of workloads directly.
    #[must_use]
    pub fn is_own_root(&self) -> bool {
        self.certificates == self.roots
    }
}

impl fmt::Debug for SignerPem {
    /// Leaves out the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SignerPem")
            .field("certificates", &self.certificates)
            .field("roots", &self.roots)
            .finish_non_exhaustive()
    }
}

impl Signer {
    /// Loads a signer, and checks that verifiers will accept the certificates that it signs. `kept` is the place
    /// that errors name.
    pub(super) fn load(
        kept: &Path,
        pem: &SignerPem,
        (trust_domain, now): (&TrustDomain, SystemTime),
    ) -> Result<Self, OpenError> {
        let bad = |reason| OpenError::Certificate { path: kept.to_owned(), reason };
        let key = KeyPair::from_pem(&pem.key).map_err(|_| bad("has no usable private key"))?;
        let chain = certificates(&pem.certificates)
            .ok_or_else(|| bad("has no chain of 1 to 16 certificates in PEM"))?;
        let roots =
            certificates(&pem.roots).ok_or_else(|| bad("has no list of 1 to 16 roots in PEM"))?;
        let Ok(([], own)) = X509Certificate::from_der(&chain[0]) else {
            return Err(bad("does not contain an X.509 certificate"));
        };
        if pem.is_own_root() {
            check_own(kept, &own, trust_domain)?;
        }
        check_authority(&own).map_err(bad)?;
        if own.public_key().raw != key.subject_public_key_info() {
            return Err(bad("has a certificate that does not belong to its key"));
        }
        let own_root = roots.contains(&chain[0]);
        let above: Vec<_> = chain.iter().filter(|one| !roots.contains(one)).collect();
        let issuer_not_after = earliest(chain.iter()).ok_or_else(|| bad("has no validity"))?;
        let root_not_after = match own_root {
            true => issuer_not_after,
            // Of several roots, only the one that expires last counts, because it verifies certificates until then.
            false => latest(roots.iter()).unwrap_or(issuer_not_after),
        };
        let not_after = root_not_after.min(issuer_not_after);
        if not_after <= now {
            return Err(bad("has expired"));
        }
        let above_der = above.iter().map(|one| one.to_vec()).collect();
        let issuer = Issuer::from_ca_cert_der(&chain[0], key).map_err(OpenError::Generate)?;
        let key_id = String::new();
        let mut signer =
            Self { issuer, above_der, roots, key_id, not_after, root_not_after, issuer_not_after };
        signer.key_id = signer.check(trust_domain, now).map_err(bad)?;
        Ok(signer)
    }

    /// Signs a certificate and verifies it as a peer would. Returns the identifier of the signing key that the
    /// certificate contains.
    fn check(&self, trust_domain: &TrustDomain, now: SystemTime) -> Result<String, &'static str> {
        let refused = "signs certificates that its roots do not verify";
        let make = || {
            let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
            let mut params = fields::params(now - CLOCK_SKEW, now + CHECK_LIFETIME)?;
            params.subject_alt_names = vec![SanType::URI(trust_domain.control_plane().try_into()?)];
            params.is_ca = IsCa::ExplicitNoCa;
            params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
            params.use_authority_key_identifier_extension = true;
            params.signed_by(&key, &self.issuer)
        };
        let leaf = make().map_err(|_| "has a key that cannot sign")?;
        let mut store = RootCertStore::empty();
        for root in &self.roots {
            store.add(root.clone()).map_err(|_| "has a root that cannot be used")?;
        }
        let above: Vec<CertificateDer<'_>> =
            self.above_der.iter().map(|der| der.as_slice().into()).collect();
        let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let algorithms = default_provider().signature_verification_algorithms.all;
        let parsed = ParsedCertificate::try_from(leaf.der()).map_err(|_| refused)?;
        let now = UnixTime::since_unix_epoch(since);
        verify_server_cert_signed_by_trust_anchor(&parsed, &store, &above, now, algorithms)
            .map_err(|_| refused)?;
        let (_, read) = X509Certificate::from_der(leaf.der()).map_err(|_| refused)?;
        authority_key_id(&read).ok_or(refused)
    }
}

/// The identifier of the key that has signed a certificate.
fn authority_key_id(certificate: &X509Certificate<'_>) -> Option<String> {
    certificate.extensions().iter().find_map(|extension| match extension.parsed_extension() {
        x509_parser::extensions::ParsedExtension::AuthorityKeyIdentifier(id) => {
            id.key_identifier.as_ref().map(|id| files::hex(id.0))
        }
        _ => None,
    })
}

/// The certificates in a PEM text; `None` if there are none or too many, or if one cannot be parsed.
pub(super) fn certificates(pem: &str) -> Option<Vec<CertificateDer<'static>>> {
    let read = CertificateDer::pem_slice_iter(pem.as_bytes()).take(MAX_CERTIFICATES + 1);
    let read: Vec<_> = read.collect::<Result<_, _>>().ok()?;
    (1..=MAX_CERTIFICATES).contains(&read.len()).then_some(read)
}

fn earliest<'a>(all: impl Iterator<Item = &'a CertificateDer<'static>>) -> Option<SystemTime> {
    all.filter_map(not_after).min()
}

fn latest<'a>(all: impl Iterator<Item = &'a CertificateDer<'static>>) -> Option<SystemTime> {
    all.filter_map(not_after).max()
}

/// When a certificate expires; `None` if it cannot be parsed.
pub(super) fn not_after(der: &CertificateDer<'_>) -> Option<SystemTime> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let end = u64::try_from(certificate.validity().not_after.timestamp()).unwrap_or(0);
    Some(SystemTime::UNIX_EPOCH + Duration::from_secs(end))
}
