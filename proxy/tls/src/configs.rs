//! What rustls needs, made once for each set of credentials.

use std::sync::Arc;
use std::time::SystemTime;

use leno_types::Identity;
use rustls::client::{ClientSessionMemoryCache, Resumption};
use rustls::crypto::aws_lc_rs::{self, Ticketer, cipher_suite, kx_group};
use rustls::crypto::{CryptoProvider, SupportedKxGroup};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, VerifierBuilderError};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::time_provider::{DefaultTimeProvider, TimeProvider};
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig, SupportedCipherSuite};
use rustls_pki_types::{CertificateDer, UnixTime};

use crate::stream::Alpn;
use crate::verify::{AnyClient, ClientVerifier, ServerVerifier, Svid};
use crate::{Credentials, CredentialsError, HandshakeError, Refusal};

/// Hybrid post-quantum first, X25519 for a peer that does not know it.
const KEY_EXCHANGES: &[&dyn SupportedKxGroup] = &[kx_group::X25519MLKEM768, kx_group::X25519];

/// The fastest first on processors with AES instructions, which are all that matter today.
const CIPHER_SUITES: &[SupportedCipherSuite] = &[
    cipher_suite::TLS13_AES_128_GCM_SHA256,
    cipher_suite::TLS13_AES_256_GCM_SHA384,
    cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
];

/// Sessions a worker remembers for each server identity; rustls keeps them by server, eight tickets
/// each, so that this is 16 endpoints. About 2 KiB each.
const SESSIONS_PER_IDENTITY: usize = 128;

/// Tickets sent after a handshake: one connection begets at most one resumption, since a pool opens
/// a connection when another one has ended.
const TICKETS: usize = 1;

/// The TLS settings for one set of [`Credentials`]: two servers', and a client's for each identity that
/// it expects. Sessions and tickets end with them, so that a rotation asks for a full handshake.
#[derive(Debug)]
pub struct TlsConfigs {
    credentials: Credentials,
    provider: Arc<CryptoProvider>,
    clock: Arc<dyn TimeProvider>,
    roots: Arc<RootCertStore>,
    key: Arc<SingleCertAndKey>,
    verifier: Arc<ClientVerifier>,
    server: Arc<ServerConfig>,
    open_server: Arc<ServerConfig>,
}

impl TlsConfigs {
    /// Checks that the key fits the certificate and that the roots are usable.
    ///
    /// # Errors
    /// [`CredentialsError::Unusable`].
    pub fn new(credentials: Credentials) -> Result<Self, CredentialsError> {
        Self::with_clock(credentials, Arc::new(DefaultTimeProvider))
    }

    pub(crate) fn with_clock(
        credentials: Credentials,
        clock: Arc<dyn TimeProvider>,
    ) -> Result<Self, CredentialsError> {
        let unusable = |what| move |error| CredentialsError::Unusable(what, error);
        let provider = Arc::new(provider());
        let mut roots = RootCertStore::empty();
        for root in &credentials.roots {
            roots.add(root.clone()).map_err(unusable("trust bundle"))?;
        }
        let roots = Arc::new(roots);
        let (chain, key) = (credentials.chain.clone(), credentials.key.clone_key());
        let certified =
            CertifiedKey::from_der(chain, key, &provider).map_err(unusable("private key"))?;
        let key = Arc::new(SingleCertAndKey::from(certified));
        let domain = credentials.identity().trust_domain().clone();
        let verifier = ClientVerifier::new(Arc::clone(&roots), Arc::clone(&provider), domain)
            .map_err(as_rustls)
            .map_err(unusable("trust bundle"))?;
        let verifier = Arc::new(verifier);
        let server = |clients: Arc<dyn ClientCertVerifier>| {
            server((&provider, &clock), &key, clients).map_err(unusable("provider"))
        };
        let strict = server(Arc::clone(&verifier) as _)?;
        let open_server = server(Arc::new(AnyClient(Arc::clone(&verifier))))?;
        let server = strict;
        Ok(Self { credentials, provider, clock, roots, key, verifier, server, open_server })
    }

    /// The credentials they are made of.
    #[must_use]
    pub fn credentials(&self) -> &Credentials {
        &self.credentials
    }

    /// When the credentials expire.
    #[must_use]
    pub fn not_after(&self) -> SystemTime {
        self.credentials.not_after()
    }

    /// A server that asks every client for a certificate of the own trust domain.
    #[must_use]
    pub fn server(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.server)
    }

    /// A server that lets in clients with any certificate or none: who they are is for
    /// [`Self::identify`] to say, after the handshake. Its tickets are worth nothing to
    /// [`Self::server`], so that nobody gets in there with a session begun here.
    pub(crate) fn open_server(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.open_server)
    }

    /// Who a client with this chain is, by the same rules as [`Self::server`]'s.
    ///
    /// # Errors
    /// [`HandshakeError::Refused`], with the reason why it is nobody.
    pub(crate) fn identify(
        &self,
        chain: &[CertificateDer<'_>],
    ) -> Result<Identity, HandshakeError> {
        let (own, intermediates) = chain.split_first().ok_or(Refusal::NoCertificate)?;
        self.verifier.verify_client_cert(own, intermediates, self.now()?)?;
        Ok(Svid::read(own)?.identity)
    }

    /// A client that talks to `expected` only. Each one has its own sessions: keep it for as long as
    /// connections to that identity are made. No ALPN is set.
    #[must_use]
    pub fn client(&self, expected: Identity) -> Arc<ClientConfig> {
        let verifier = ServerVerifier {
            roots: Arc::clone(&self.roots),
            algorithms: self.provider.signature_verification_algorithms,
            expected,
        };
        let details = (Arc::clone(&self.provider), Arc::clone(&self.clock));
        let mut client = ClientConfig::builder_with_details(details.0, details.1)
            .with_protocol_versions(&[&TLS13])
            .expect("the provider has TLS 1.3 suites")
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_client_cert_resolver(Arc::clone(&self.key) as _);
        let sessions = ClientSessionMemoryCache::new(SESSIONS_PER_IDENTITY);
        client.resumption = Resumption::store(Arc::new(sessions));
        // The name of a server is its identity; an SNI would only tell it to onlookers.
        client.enable_sni = false;
        Arc::new(client)
    }

    /// The time that certificates are held against.
    pub(crate) fn now(&self) -> Result<UnixTime, rustls::Error> {
        self.clock.current_time().ok_or(rustls::Error::FailedToGetCurrentTime)
    }
}

/// A server with tickets of its own.
fn server(
    (provider, clock): (&Arc<CryptoProvider>, &Arc<dyn TimeProvider>),
    key: &Arc<SingleCertAndKey>,
    clients: Arc<dyn ClientCertVerifier>,
) -> Result<Arc<ServerConfig>, rustls::Error> {
    let details = (Arc::clone(provider), Arc::clone(clock));
    let mut server = ServerConfig::builder_with_details(details.0, details.1)
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(clients)
        .with_cert_resolver(Arc::clone(key) as _);
    server.alpn_protocols = Alpn::ALL.map(|alpn| alpn.as_bytes().to_vec()).into();
    server.session_storage = Arc::new(NoServerSessionStorage {});
    server.ticketer = Ticketer::new()?;
    server.send_tls13_tickets = TICKETS;
    Ok(Arc::new(server))
}

/// aws-lc-rs, TLS 1.3 only.
fn provider() -> CryptoProvider {
    CryptoProvider {
        cipher_suites: CIPHER_SUITES.to_vec(),
        kx_groups: KEY_EXCHANGES.to_vec(),
        ..aws_lc_rs::default_provider()
    }
}

fn as_rustls(error: VerifierBuilderError) -> rustls::Error {
    rustls::Error::General(error.to_string())
}
