//! Verifies clients' certificates against the roots that the authority trusts at the time of each handshake.

use std::sync::{Arc, PoisonError, RwLock};

use leno_identity::{Authority, AuthorityTrust};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme};

use super::{TlsError, provider};

/// Accepts clients with a certificate that a root of the trust bundle has signed, and clients without a
/// certificate.
#[derive(Debug)]
pub(super) struct ClientVerifier {
    authority: Arc<Authority>,
    built: RwLock<BuiltVerifier>,
}

/// A verifier, and the trust bundle from which it was built.
#[derive(Clone, Debug)]
struct BuiltVerifier {
    trust: Arc<AuthorityTrust>,
    chain: Arc<dyn ClientCertVerifier>,
}

impl ClientVerifier {
    pub(super) fn new(authority: Arc<Authority>) -> Result<Self, TlsError> {
        let built = RwLock::new(BuiltVerifier::new(authority.trust())?);
        Ok(Self { authority, built })
    }

    /// The verifier for the present trust bundle. If that bundle cannot be used, the verifier of the earlier one
    /// stays.
    fn chain(&self) -> Arc<dyn ClientCertVerifier> {
        let trust = self.authority.trust();
        let built = self.built.read().unwrap_or_else(PoisonError::into_inner).clone();
        if Arc::ptr_eq(&built.trust, &trust) {
            return built.chain;
        }
        match BuiltVerifier::new(trust) {
            Ok(next) => {
                let chain = Arc::clone(&next.chain);
                *self.built.write().unwrap_or_else(PoisonError::into_inner) = next;
                chain
            }
            Err(error) => {
                let error: &dyn std::error::Error = &error;
                tracing::error!(
                    error,
                    "the trust bundle cannot be used; the last one stays in \
                     effect"
                );
                built.chain
            }
        }
    }
}

impl BuiltVerifier {
    fn new(trust: Arc<AuthorityTrust>) -> Result<Self, TlsError> {
        let mut roots = RootCertStore::empty();
        for root in trust.bundle_der() {
            roots.add(CertificateDer::from(root))?;
        }
        let chain = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider())
            .allow_unauthenticated()
            // Every client has only one certificate, so hints for choosing one would only cost bytes.
            .clear_root_hint_subjects()
            .build()?;
        Ok(Self { trust, chain })
    }
}

impl ClientCertVerifier for ClientVerifier {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.chain().verify_client_cert(end_entity, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain().verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain().verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain().supported_verify_schemes()
    }
}
