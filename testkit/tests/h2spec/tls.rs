//! h2spec inside of TLS: what it says reaches the HTTP/2 server of an inbound side as it is, behind
//! ALPN `leno-h2`, as another proxy's requests do.

use std::net::{SocketAddr, TcpListener};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leno_testkit::proxy::Proxy;
use leno_testkit::{binaries, command};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::{ClientConfig, DigitallySignedStruct, Error, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::io::copy_bidirectional;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::Nginx;
use crate::suite::{Group, Suite};

/// How long openssl may take.
const OPENSSL_LIMIT: Duration = Duration::from_secs(20);

#[test]
fn an_inbound_side_passes_every_case_inside_tls() -> Result<()> {
    let Some(suite) = Suite::install()? else { return Ok(()) };
    let nginx = Nginx::start(true)?;
    let directory = tempfile::tempdir()?;
    let (key, certificate) = (directory.path().join("key"), directory.path().join("crt"));
    let mut make = Command::new(binaries::require("openssl", "openssl")?);
    make.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]);
    make.args(["-nodes", "-days", "1", "-subj", "/CN=web", "-addext"]);
    make.arg("subjectAltName=URI:spiffe://cluster.local/ns/t/sa/web");
    make.arg("-keyout").arg(&key).arg("-out").arg(&certificate);
    command::text(&mut make, OPENSSL_LIMIT)?;
    let (key, certificate) = (key.display(), certificate.display());
    let application = nginx.address;
    let proxy = Proxy::start_with(|address, admin| {
        format!(
            "apiVersion: leno.dev/v1alpha1\nkind: Proxy\nmetadata: {{name: web, namespace: t}}\n\
             spec:\n  workers: 1\n  admin: \"{admin}\"\n  mtls: permissive\n  \
             inbound: {{listen: \"{address}\", application: \"{application}\"}}\n  \
             identity: {{certificate: {certificate}, key: {key}, roots: {certificate}}}\n"
        )
    })?;
    let outcome = suite.run(tls_before(proxy.address())?, &Group::ALL)?;
    ensure!(outcome.failed.is_empty(), "{:#?}", outcome.failed);
    // It was HTTP/2 behind TLS that it passed, of a client without an identity.
    let mut curl = Command::new("curl");
    curl.args(["-sS", "--fail", "-m", "20"]).arg(format!("http://{}/metrics", proxy.admin()));
    let metrics = command::text(&mut curl, OPENSSL_LIMIT)?;
    let handshakes = metrics
        .lines()
        .find_map(|line| line.strip_prefix("leno_tls_handshakes_total{direction=\"inbound\"} "));
    ensure!(handshakes.is_some_and(|count| count.trim() != "0"), "{metrics}");
    Ok(())
}

/// Where connections are carried inside TLS to `proxy`, until the process ends.
fn tls_before(proxy: SocketAddr) -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    listener.set_nonblocking(true)?;
    let mut config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody))
        .with_no_client_auth();
    config.alpn_protocols = vec![b"leno-h2".to_vec()];
    let connector = TlsConnector::from(Arc::new(config));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::spawn(move || {
        runtime.block_on(async move {
            let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
            while let Ok((near, _)) = listener.accept().await {
                let connector = connector.clone();
                tokio::spawn(async move {
                    // A case that breaks off is the suite's to judge.
                    let _ = carry(near, proxy, &connector).await;
                });
            }
        });
    });
    Ok(address)
}

async fn carry(mut near: TcpStream, proxy: SocketAddr, connector: &TlsConnector) -> Result<()> {
    let far = TcpStream::connect(proxy).await?;
    far.set_nodelay(true)?;
    near.set_nodelay(true)?;
    let name = ServerName::try_from("web.t")?;
    let mut far = connector.connect(name, far).await.context("the handshake")?;
    copy_bidirectional(&mut near, &mut far).await?;
    Ok(())
}

/// Believes every server: the suite is not about certificates.
#[derive(Debug)]
struct Anybody;

impl ServerCertVerifier for Anybody {
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
