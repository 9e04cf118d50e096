//! The identities of a pair of proxies: two P-256 certificates of one authority, as files.

use std::fs;
use std::path::Path;

use anyhow::Result;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    PKCS_ECDSA_P256_SHA256, SanType,
};

/// The identity of the client's proxy.
pub(super) const CLIENT: &str = "spiffe://bench.local/ns/bench/sa/client";
/// The identity of the server's proxy.
pub(super) const SERVER: &str = "spiffe://bench.local/ns/bench/sa/server";

/// Writes `client/` and `server/` into `directory`, each with the files that a proxy needs.
pub(super) fn write(directory: &Path) -> Result<()> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "leno-bench");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let roots = params.self_signed(&key)?.pem();
    let issuer = Issuer::new(params, key);
    for (name, uri) in [("client", CLIENT), ("server", SERVER)] {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![SanType::URI(uri.try_into()?)];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&key, &issuer)?.pem();
        let own = directory.join(name);
        fs::create_dir_all(&own)?;
        fs::write(own.join("roots.pem"), &roots)?;
        fs::write(own.join("both.pem"), format!("{certificate}{}", key.serialize_pem()))?;
        fs::write(own.join("certificate.pem"), certificate)?;
        fs::write(own.join("key.pem"), key.serialize_pem())?;
    }
    Ok(())
}
