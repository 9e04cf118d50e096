//! Shared by the tests: an inbound side in front of an application, and a client that accepts every server.

use std::net::SocketAddr;
use std::rc::Rc;

use leno_discovery::Directory;
use leno_http::Limits;
use leno_inbound::{Inbound, Parts};
use leno_telemetry::Registry;
use leno_tls::Acceptor;
use leno_types::mesh::{Resolution, ServerPolicy};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::{DigitallySignedStruct, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

/// The inbound side of the policy's workload, with these counters.
pub(crate) fn inbound(
    policy: ServerPolicy,
    tls: Acceptor,
    application: SocketAddr,
) -> (Inbound, Rc<Registry>) {
    let workload = policy.workload.clone();
    let directory = Directory::fixed(|_| Resolution::Unknown).with_server_policy(policy);
    let registry = Rc::new(Registry::new());
    let inbound = Inbound::new(Parts {
        workload,
        policy: directory.server_policy(),
        directory,
        services: Rc::new(leno_inbound::NoServices),
        tls,
        registry: Rc::clone(&registry),
        activity: Rc::default(),
        limits: Limits::default(),
        application: Some(application),
        limit_table: leno_inbound::LimitTable::default(),
        max_tunnels: 64,
        own_ports: Vec::new(),
    });
    (inbound, registry)
}

/// Accepts every server certificate, because these tests check how servers verify clients.
#[derive(Debug)]
pub(crate) struct AnyServer;

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        default_provider().signature_verification_algorithms.supported_schemes()
    }
}
