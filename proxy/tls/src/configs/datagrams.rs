//! The configurations for QUIC between proxies, which carries datagrams of applications. Certificates, roots and
//! checks are those of TLS connections.
//!
//! A session is never resumed, and no data is sent before the handshake is done, so that each connection proves both
//! identities by its own certificates.

use std::sync::Arc;

use leno_types::Identity;
use leno_types::authorization::CertificateValidity;
use rustls::client::Resumption;
use rustls::server::NoServerSessionStorage;
use rustls::version::TLS13;
use rustls::{ClientConfig, ServerConfig};
use rustls_pki_types::CertificateDer;

use super::TlsConfigs;
use crate::verify::Svid;
use crate::{CredentialsError, HandshakeError, Refusal, ShownCertificate};

/// The ALPN name of datagrams between proxies.
pub const DATAGRAM_ALPN: &str = "leno-udp/1";

/// The identity that the peer of a QUIC connection has proven.
#[derive(Clone, Debug)]
pub struct ProvenPeer(Svid);

impl ProvenPeer {
    /// The identity of the peer.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.0.identity
    }

    /// The certificate that proves it.
    #[must_use]
    pub fn certificate(&self) -> ShownCertificate {
        let Svid { not_before_s, not_after_s, .. } = self.0;
        ShownCertificate::once(CertificateValidity { not_before_s, not_after_s })
    }

    /// Checks, against the current credentials, that the certificate has neither expired nor been revoked.
    ///
    /// # Errors
    /// [`HandshakeError::Refused`], with the reason.
    pub fn check(&self, now: &TlsConfigs) -> Result<(), HandshakeError> {
        self.0.check_time(now.now()?)?;
        now.check_revoked(&self.0)?;
        Ok(())
    }
}

impl TlsConfigs {
    /// The configuration of a server of datagrams, which requires a certificate of every client.
    ///
    /// # Errors
    /// [`CredentialsError::Unusable`]: the provider has no suite for it.
    pub fn datagram_server(&self) -> Result<ServerConfig, CredentialsError> {
        let unusable = |error| CredentialsError::Unusable("provider", error);
        let details = (Arc::clone(&self.provider), Arc::clone(&self.clock));
        let mut server = ServerConfig::builder_with_details(details.0, details.1)
            .with_protocol_versions(&[&TLS13])
            .map_err(unusable)?
            .with_client_cert_verifier(Arc::clone(&self.verifier) as _)
            .with_cert_resolver(Arc::clone(&self.key) as _);
        server.alpn_protocols = vec![DATAGRAM_ALPN.as_bytes().to_vec()];
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        leno_crypto::check(server.fips()).map_err(unusable)?;
        Ok(server)
    }

    /// The configuration of a client of datagrams that accepts the server `expected` only.
    #[must_use]
    pub fn datagram_client(&self, expected: Identity) -> ClientConfig {
        let mut client = self.client_of(expected);
        client.alpn_protocols = vec![DATAGRAM_ALPN.as_bytes().to_vec()];
        client.resumption = Resumption::disabled();
        client
    }

    /// The proven identity of a client whose chain [`Self::datagram_server`] has verified. It is checked again against
    /// the current credentials, which may have changed since the handshake began.
    ///
    /// # Errors
    /// [`HandshakeError::Refused`], with the reason.
    pub fn datagram_peer(
        &self,
        chain: &[CertificateDer<'_>],
    ) -> Result<ProvenPeer, HandshakeError> {
        let peer = self.proven_peer(chain)?;
        self.check_domain(&peer.0)?;
        Ok(peer)
    }

    /// The proven identity of the server that [`Self::datagram_client`] expects.
    ///
    /// # Errors
    /// [`HandshakeError::Refused`], with the reason.
    pub fn datagram_peer_as(
        &self,
        chain: &[CertificateDer<'_>],
        expected: &Identity,
    ) -> Result<ProvenPeer, HandshakeError> {
        let peer = self.proven_peer(chain)?;
        peer.0.check_identity(expected)?;
        Ok(peer)
    }

    fn proven_peer(&self, chain: &[CertificateDer<'_>]) -> Result<ProvenPeer, HandshakeError> {
        let peer = ProvenPeer(Svid::read(chain.first().ok_or(Refusal::NoCertificate)?)?);
        peer.check(self)?;
        Ok(peer)
    }
}
