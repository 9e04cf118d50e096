//! A TLS peer without the rules of this crate, so that it can present any certificate.

use std::sync::Arc;

use rustls::client::ResolvesClientCert;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::server::WebPkiClientVerifier;
use rustls::{
    ClientConfig, DigitallySignedStruct, Error, RootCertStore, ServerConfig, SignatureScheme,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

type Certified = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// Accepts every server.
#[derive(Debug)]
struct AnyServer;

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        default_provider().signature_verification_algorithms.supported_schemes()
    }
}

/// Connects as a client with any certificate or none, and offers any protocols.
pub(super) async fn connect(
    tcp: TcpStream,
    certified: Option<Certified>,
    alpn: &[&str],
) -> std::io::Result<client::TlsStream<TcpStream>> {
    let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyServer));
    let mut config = match certified {
        Some((chain, key)) => builder.with_client_auth_cert(chain, key).unwrap(),
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    let name = ServerName::try_from("cart.shop").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, tcp).await
}

/// Presents one certificate, and signs with the key of another.
#[derive(Debug)]
struct Mismatched(Arc<rustls::sign::CertifiedKey>);

impl ResolvesClientCert for Mismatched {
    fn resolve(
        &self,
        _root_hint_subjects: &[&[u8]],
        _schemes: &[SignatureScheme],
    ) -> Option<Arc<rustls::sign::CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// Connects as a client that presents a certificate and does not have its key.
pub(super) async fn connect_without_key(
    tcp: TcpStream,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> std::io::Result<client::TlsStream<TcpStream>> {
    let key = default_provider().key_provider.load_private_key(key).unwrap();
    let presented = Mismatched(Arc::new(rustls::sign::CertifiedKey::new(chain, key)));
    let mut config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyServer))
        .with_client_cert_resolver(Arc::new(presented));
    config.alpn_protocols = vec![b"leno-h1".to_vec()];
    let name = ServerName::try_from("cart.shop").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, tcp).await
}

/// Accepts as a server that presents any certificate. It does not trust the mesh, so its own side fails if the client
/// presents a certificate.
pub(super) async fn accept(
    tcp: TcpStream,
    (chain, key): Certified,
    alpn: &str,
) -> std::io::Result<server::TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(super::ca::Ca::new("nobody").root).unwrap();
    let provider = Arc::new(default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), Arc::clone(&provider))
        .allow_unauthenticated()
        .build()
        .unwrap();
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)
        .unwrap();
    config.alpn_protocols = vec![alpn.as_bytes().to_vec()];
    TlsAcceptor::from(Arc::new(config)).accept(tcp).await
}
