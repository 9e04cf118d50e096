//! A certificate authority for workloads.

use leno_tls::Credentials;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    SanType,
};
use rustls_pki_types::{CertificateDer, PrivatePkcs8KeyDer};

/// A root certificate with its key.
pub(super) struct Ca {
    issuer: Issuer<'static, KeyPair>,
    root: CertificateDer<'static>,
}

impl Ca {
    pub(super) fn new(name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let root = params.self_signed(&key).unwrap().der().clone();
        Self { issuer: Issuer::new(params, key), root }
    }

    /// The certificates of a workload that trusts only this authority.
    pub(super) fn credentials(&self, of: &str) -> Credentials {
        self.credentials_trusting(of, self)
    }

    pub(super) fn credentials_trusting(&self, of: &str, trusted: &Self) -> Credentials {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![SanType::URI(of.try_into().unwrap())];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let key = PrivatePkcs8KeyDer::from(key.serialize_der());
        let chain = vec![certificate.der().clone()];
        Credentials::from_der(chain, key.into(), vec![trusted.root.clone()]).unwrap()
    }
}
