//! Tests a service account with the same name as the control plane's own, which an attacker uses to impersonate it.

use std::sync::Arc;

use leno_discovery::{Certificate, ConnectError, IdentityClient, IdentityError};
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::plane::{Plane, mesh};

fn server(certificate: &Certificate) -> TlsAcceptor {
    let chain = certificate.chain_der.iter().cloned().map(CertificateDer::from).collect();
    let key = PrivateKeyDer::Pkcs8(certificate.key_der.clone().into());
    let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    TlsAcceptor::from(Arc::new(config))
}

/// The mesh's control plane runs in another namespace. A user who may create pods in a namespace called `leno-system`
/// gets a certificate for this service account. With this certificate the user must not receive the tokens of proxies.
#[tokio::test(flavor = "multi_thread")]
async fn a_leno_system_look_alike_is_not_taken_for_the_control_plane() {
    let plane = Plane::start(&mesh(&["10.89.0.7"])).await;
    let look_alike = plane.settings("leno-system/controller-0");
    let certificate = IdentityClient::new(Arc::new(look_alike)).issue().await.unwrap();
    let (_, leaf) = x509_parser::parse_x509_certificate(&certificate.chain_der[0]).unwrap();
    let names = leaf.subject_alternative_name().unwrap().unwrap().value;
    let names = format!("{names:?}");
    assert!(names.contains("/ns/leno-system/sa/controller"), "{names}");

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut settings = plane.settings("shop/web-0");
    settings.control = format!("https://{}", listener.local_addr().unwrap());
    let acceptor = server(&certificate);
    let served = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        acceptor.accept(stream).await.map(drop)
    });
    let refused = IdentityClient::new(Arc::new(settings)).issue().await.unwrap_err();
    assert!(matches!(refused, IdentityError::Connect(ConnectError::Tls(..))), "{refused:?}");
    assert!(served.await.unwrap().is_err(), "no token was sent to it");
}
