//! Identities for the proxies of others: one authority a lab, a SPIFFE certificate a workload.

use std::fs;
use std::os::unix::fs::chown;
use std::path::Path;

use anyhow::{Context, Result};
use leno_types::ports::PROXY_UID;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SanType,
};

/// The trust domain, as `leno up` has it.
const TRUST_DOMAIN: &str = "cluster.local";

/// A certificate authority that lives as long as the lab.
pub(super) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    roots: String,
}

impl Authority {
    pub(super) fn new() -> Result<Self> {
        let mut params = CertificateParams::default();
        // OpenSSL takes a leaf without a name under an authority without one for self-signed.
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "leno bench");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate().context("cannot make a key")?;
        let roots = params.self_signed(&key)?.pem();
        Ok(Self { issuer: Issuer::new(params, key), roots })
    }

    /// Writes `chain.pem`, `key.pem`, `both.pem` and `roots.pem` for one workload, readable by the
    /// user that proxies run as.
    pub(super) fn write(&self, directory: &Path, workload: &str) -> Result<()> {
        let identity = format!("spiffe://{TRUST_DOMAIN}/ns/bench/sa/{workload}");
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.subject_alt_names = vec![SanType::URI(identity.try_into()?)];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        // ECDSA P-256, as Leno and the other meshes have it.
        let key = KeyPair::generate().context("cannot make a key")?;
        let chain = params.signed_by(&key, &self.issuer)?.pem();
        let key = key.serialize_pem();
        let both = format!("{chain}{key}");
        for (name, text) in [
            ("chain.pem", &chain),
            ("key.pem", &key),
            ("both.pem", &both),
            ("roots.pem", &self.roots),
        ] {
            let path = directory.join(name);
            fs::write(&path, text)?;
            chown(&path, Some(PROXY_UID), Some(PROXY_UID))?;
        }
        Ok(())
    }
}
