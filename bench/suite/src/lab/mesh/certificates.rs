//! Identities for the proxies of other meshes: one certificate authority per lab, and one SPIFFE certificate per
//! workload.

use std::os::unix::fs::chown;
use std::path::Path;
use std::time::{Duration, SystemTime};
use std::{fmt, fs};

use anyhow::{Context, Result};
use leno_types::ports::PROXY_UID;
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, CertificateSigningRequestParams,
    DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SanType,
};

/// The trust domain, the same as that of `leno up`.
const TRUST_DOMAIN: &str = "cluster.local";

/// The validity of certificates: longer than any run.
const LIFE: Duration = Duration::from_hours(24);

/// The SPIFFE ID of a workload of the bench.
pub fn spiffe_id(workload: &str) -> String {
    format!("spiffe://{TRUST_DOMAIN}/ns/bench/sa/{workload}")
}

pub(crate) struct Signed {
    /// The certificate, in DER.
    pub(crate) certificate: Vec<u8>,
    /// When the client must request another certificate.
    pub(crate) until: SystemTime,
}

/// A certificate authority that exists as long as the lab.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    root: Certificate,
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The key must not be printed.
        f.debug_struct("Authority").finish_non_exhaustive()
    }
}

impl Authority {
    /// Creates an authority.
    pub fn new() -> Result<Self> {
        let mut params = CertificateParams::default();
        // The authority needs a name: OpenSSL mistakes a certificate without a name for a self-signed one if its
        // authority has no name either.
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "leno bench");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate().context("cannot make a key")?;
        let root = params.self_signed(&key)?;
        Ok(Self { issuer: Issuer::new(params, key), root })
    }

    /// The certificate of the authority itself.
    pub fn root(&self) -> &Certificate {
        &self.root
    }

    /// A certificate with these names, for clients and servers, and its key: ECDSA P-256, as in Leno and the other
    /// meshes.
    pub fn issue(&self, names: Vec<SanType>) -> Result<(Certificate, KeyPair)> {
        let key = KeyPair::generate().context("cannot make a key")?;
        Ok((of_names(names).signed_by(&key, &self.issuer)?, key))
    }

    /// Signs a certificate request (DER) of a workload that requests its own certificate. `name` is its DNS name.
    pub(crate) fn certify(&self, request: &[u8], name: &str) -> Result<Signed> {
        let mut request = CertificateSigningRequestParams::from_der(&request.into())
            .context("this is no certificate request")?;
        request.params = of_names(vec![SanType::DnsName(name.try_into()?)]);
        let certificate = request.signed_by(&self.issuer)?;
        Ok(Signed { certificate: certificate.der().to_vec(), until: SystemTime::now() + LIFE })
    }

    /// Writes a key and a certificate request, `key.p8` and `csr.der`, for a workload that requests its own
    /// certificate. The user of the proxies can read both.
    pub(crate) fn write_request(directory: &Path, name: &str) -> Result<()> {
        let key = KeyPair::generate().context("cannot make a key")?;
        let params = of_names(vec![SanType::DnsName(name.try_into()?)]);
        let request = params.serialize_request(&key)?;
        write_for_proxy(&directory.join("key.p8"), &key.serialize_der())?;
        write_for_proxy(&directory.join("csr.der"), request.der())
    }

    /// Writes `chain.pem`, `key.pem`, `both.pem` and `roots.pem` for one workload. The user of the proxies can read
    /// them.
    pub fn write(&self, directory: &Path, workload: &str) -> Result<()> {
        let (chain, key) = self.issue(vec![SanType::URI(spiffe_id(workload).try_into()?)])?;
        let (chain, key) = (chain.pem(), key.serialize_pem());
        let both = format!("{chain}{key}");
        for (name, text) in [
            ("chain.pem", &chain),
            ("key.pem", &key),
            ("both.pem", &both),
            ("roots.pem", &self.root.pem()),
        ] {
            write_for_proxy(&directory.join(name), text.as_bytes())?;
        }
        Ok(())
    }
}

/// The content of a certificate for clients and servers with these names.
fn of_names(names: Vec<SanType>) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.subject_alt_names = names;
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params
}

/// Writes a file that the user of the proxies can read.
fn write_for_proxy(path: &Path, bytes: &[u8]) -> Result<()> {
    fs::write(path, bytes)?;
    Ok(chown(path, Some(PROXY_UID), Some(PROXY_UID))?)
}
