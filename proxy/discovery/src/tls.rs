//! TLS to the control plane, whose certificate must have its SPIFFE ID.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, aws_lc_rs, verify_tls13_signature,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};
use x509_parser::extensions::GeneralName;

use crate::certificate::Certificate;

/// The protocol inside TLS.
const ALPN: &[u8] = b"h2";

/// A configuration that accepts `control_plane` if its certificate is signed by one of `roots`. It
/// presents the certificate `own` if there is one.
pub(crate) fn config(
    roots: RootCertStore,
    control_plane: String,
    own: Option<&Certificate>,
) -> Result<ClientConfig, Error> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier = Verifier::new(roots, control_plane, &provider);
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    let mut config = match own {
        None => builder.with_no_client_auth(),
        Some(own) => {
            let chain = own.chain_der.iter().cloned().map(CertificateDer::from).collect();
            let key = PrivateKeyDer::Pkcs8(own.key_der.clone().into());
            builder.with_client_auth_cert(chain, key)?
        }
    };
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(config)
}

/// Checks the chain as usual, and the SPIFFE ID instead of a DNS name.
#[derive(Debug)]
struct Verifier {
    roots: RootCertStore,
    expected: String,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Verifier {
    fn new(roots: RootCertStore, expected: String, provider: &CryptoProvider) -> Self {
        Self { roots, expected, algorithms: provider.signature_verification_algorithms }
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let certificate = ParsedCertificate::try_from(end_entity)?;
        verify_server_cert_signed_by_trust_anchor(
            &certificate,
            &self.roots,
            intermediates,
            now,
            self.algorithms.all,
        )?;
        if names_exactly(end_entity, &self.expected) {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(CertificateError::NotValidForName.into())
        }
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("only TLS 1.3 was offered".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Whether the certificate's only alternative name is this URI (X509-SVID section 2).
fn names_exactly(certificate: &CertificateDer<'_>, uri: &str) -> bool {
    let Ok((_, parsed)) = x509_parser::parse_x509_certificate(certificate) else {
        return false;
    };
    let Ok(Some(names)) = parsed.subject_alternative_name() else {
        return false;
    };
    matches!(names.value.general_names.as_slice(), [GeneralName::URI(name)] if *name == uri)
}
