//! Creates the root certificate, stores it in a directory, and checks it when it is loaded.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use leno_types::TrustDomain;
use rcgen::{
    BasicConstraints, DistinguishedName, DnType, IsCa, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256, PublicKeyData, SanType,
};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;

use super::signer::{SignerPem, not_after};
use super::{CLOCK_SKEW, fields};
use crate::files::{self, Durability, FileError};
use crate::p256::P256Key;

/// The root's lifetime: ten years, longer than any mesh is likely to run without a rotation.
const ROOT_LIFETIME: Duration = Duration::from_hours(3652 * 24);

/// Longest `ca.pem` and `ca-key.pem`, in bytes. A P-256 root has less than 1 KiB.
const MAX_PEM: u64 = 16 * 1024;

const CERTIFICATE_FILE: &str = "ca.pem";
const KEY_FILE: &str = "ca-key.pem";

/// Why an authority cannot be opened, or cannot use a state. A path in an error is that of a file, or the name that the
/// caller has given to the place of the state.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory or a file in it cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// One file of the pair exists and the other does not.
    #[error("{} exists, but {} does not: restore it, or remove the other to create a new authority", present.display(), missing.display())]
    Half {
        /// The existing file.
        present: PathBuf,
        /// The missing file.
        missing: PathBuf,
    },
    /// The key file does not contain a P-256 private key.
    #[error("{} does not contain one P-256 private key in PEM", path.display())]
    Key {
        /// The key file.
        path: PathBuf,
    },
    /// A root, an issuer or its key cannot be used.
    #[error("{} {reason}", path.display())]
    Certificate {
        /// The file or place.
        path: PathBuf,
        /// Why it cannot be used; continues a sentence that begins with the path.
        reason: &'static str,
    },
    /// The certificate is a root of another trust domain.
    #[error("{} is the root of {found}, not of {wanted}", path.display())]
    Foreign {
        /// The file or place of the certificate.
        path: PathBuf,
        /// The SPIFFE ID in the certificate.
        found: String,
        /// The SPIFFE ID of the trust domain that was expected.
        wanted: String,
    },
    /// The state file cannot be parsed.
    #[error("{} does not contain the state of an authority: restore it, or remove it to create a \
             new authority", path.display())]
    State {
        /// The file or place of the state.
        path: PathBuf,
        /// The parser's error.
        #[source]
        source: serde_json::Error,
    },
    /// An issuer was provided, but one of its files is missing.
    #[error("{} is missing: an issuer needs tls.crt, tls.key and ca.crt", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// A new key or certificate could not be created.
    #[error("cannot create a root")]
    Generate(#[source] rcgen::Error),
}

/// A root certificate and its key.
pub(super) struct Root {
    pub(super) pem: String,
    pub(super) key: KeyPair,
}

impl Root {
    /// Loads the pair of files, or creates it. The caller must hold the directory's lock.
    pub(super) fn open(
        directory: &Path,
        trust_domain: &TrustDomain,
        now: SystemTime,
    ) -> Result<Self, OpenError> {
        let (certificate_path, key_path) =
            (directory.join(CERTIFICATE_FILE), directory.join(KEY_FILE));
        let certificate = files::read_bounded(&certificate_path, MAX_PEM)?;
        let key = files::read_secret(&key_path, MAX_PEM)?;
        match (certificate, key) {
            (Some(certificate), Some(key)) => {
                let key = parse_key(&key).ok_or(OpenError::Key { path: key_path })?;
                Self::load(&certificate_path, &certificate, key, (trust_domain, now))
            }
            (Some(_), None) => {
                Err(OpenError::Half { present: certificate_path, missing: key_path })
            }
            (None, Some(_)) => {
                Err(OpenError::Half { present: key_path, missing: certificate_path })
            }
            (None, None) => {
                let root = Self::generate(trust_domain, now)?;
                // The key is written first. If the process is killed before it writes the certificate, only a key
                // remains, which has signed nothing and may be removed.
                let key = root.key.serialize_pem();
                files::write_private(&key_path, key.as_bytes(), Durability::Durable)?;
                files::write_private(&certificate_path, root.pem.as_bytes(), Durability::Durable)?;
                Ok(root)
            }
        }
    }

    /// Whether either file of the pair is in the directory.
    pub(super) fn is_in(directory: &Path) -> bool {
        [CERTIFICATE_FILE, KEY_FILE].iter().any(|name| directory.join(name).exists())
    }

    /// Removes both files of the pair.
    pub(super) fn remove_from(directory: &Path) -> Result<(), FileError> {
        for path in [KEY_FILE, CERTIFICATE_FILE].map(|name| directory.join(name)) {
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(files::failed("remove", &path)(error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// A new key and a self-signed certificate for it.
    pub(super) fn generate(trust_domain: &TrustDomain, now: SystemTime) -> Result<Self, OpenError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(OpenError::Generate)?;
        let not_after = fields::seconds(now + ROOT_LIFETIME);
        let mut params =
            fields::params(now - CLOCK_SKEW, not_after).map_err(OpenError::Generate)?;

        let mut name = DistinguishedName::new();
        name.push(DnType::OrganizationName, "Leno");
        // Verifiers tell roots apart by their names during a rotation, so each root of a mesh needs a different
        // name.
        let tag = key.der_bytes().last_chunk::<4>().expect("a P-256 point has 65 bytes");
        name.push(DnType::CommonName, format!("mesh root {}", files::hex(tag)));
        params.subject_alt_names =
            vec![SanType::URI(spiffe_id(trust_domain).try_into().map_err(OpenError::Generate)?)];
        params.distinguished_name = name;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&key).map_err(OpenError::Generate)?;
        Ok(Self { pem: certificate.pem(), key })
    }

    /// Converts the root to a signer.
    pub(super) fn signer(&self) -> SignerPem {
        SignerPem {
            certificates: self.pem.clone(),
            key: self.key.serialize_pem(),
            roots: self.pem.clone(),
        }
    }

    fn load(
        path: &Path,
        pem: &[u8],
        key: KeyPair,
        (trust_domain, now): (&TrustDomain, SystemTime),
    ) -> Result<Self, OpenError> {
        let bad = |reason| OpenError::Certificate { path: path.to_owned(), reason };
        let mut certificates = CertificateDer::pem_slice_iter(pem);
        let (Some(Ok(certificate)), None) = (certificates.next(), certificates.next()) else {
            return Err(bad("does not contain exactly one certificate in PEM"));
        };
        let Ok(([], parsed)) = X509Certificate::from_der(&certificate) else {
            return Err(bad("does not contain an X.509 certificate"));
        };
        check_own(path, &parsed, trust_domain)?;
        if parsed.public_key().raw != key.subject_public_key_info() {
            return Err(bad("does not belong to the key beside it, ca-key.pem"));
        }
        if not_after(&certificate).is_none_or(|end| end <= now) {
            return Err(bad("has expired: remove it and ca-key.pem to create a new authority"));
        }
        let pem = String::from_utf8_lossy(pem).into_owned();
        Ok(Self { pem, key })
    }
}

/// Checks that a certificate is a root of this mesh.
pub(super) fn check_own(
    path: &Path,
    certificate: &X509Certificate<'_>,
    trust_domain: &TrustDomain,
) -> Result<(), OpenError> {
    let bad = |reason| OpenError::Certificate { path: path.to_owned(), reason };
    check_root(certificate).map_err(bad)?;
    let wanted = spiffe_id(trust_domain);
    let found = uris(certificate).join(", ");
    if found != wanted {
        return Err(OpenError::Foreign { path: path.to_owned(), found, wanted });
    }
    Ok(())
}

/// Checks that a certificate is a root: self-signed by a P-256 key, and permitted to sign others.
fn check_root(certificate: &X509Certificate<'_>) -> Result<(), &'static str> {
    let key = P256Key::from_spki(certificate.public_key()).ok_or("has a key other than P-256")?;
    let signed = key.verify(
        &certificate.signature_algorithm,
        certificate.tbs_certificate.as_ref(),
        &certificate.signature_value,
    );
    if !signed {
        return Err("is not signed by its own key");
    }
    check_authority(certificate)
}

/// Checks that a certificate is permitted to sign others.
pub(super) fn check_authority(certificate: &X509Certificate<'_>) -> Result<(), &'static str> {
    let authority = matches!(certificate.basic_constraints(), Ok(Some(basic)) if basic.value.ca);
    let signs = matches!(certificate.key_usage(), Ok(Some(usage)) if usage.value.key_cert_sign());
    if authority && signs { Ok(()) } else { Err("is not a certificate authority's") }
}

fn parse_key(pem: &[u8]) -> Option<KeyPair> {
    let key = KeyPair::from_pem(std::str::from_utf8(pem).ok()?).ok()?;
    (*key.algorithm() == PKCS_ECDSA_P256_SHA256).then_some(key)
}

/// The URI names of a certificate.
fn uris<'a>(certificate: &'a X509Certificate<'_>) -> Vec<&'a str> {
    let Ok(Some(names)) = certificate.subject_alternative_name() else {
        return Vec::new();
    };
    let uri = |name: &'a GeneralName<'_>| match name {
        GeneralName::URI(uri) => Some(*uri),
        _ => None,
    };
    names.value.general_names.iter().filter_map(uri).collect()
}

/// The SPIFFE ID of the trust domain itself (X509-SVID section 2).
fn spiffe_id(trust_domain: &TrustDomain) -> String {
    format!("spiffe://{trust_domain}")
}
