//! The configurations of rustls, which are built once for each set of credentials.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use leno_types::{Identity, TrustDomain};
use rustls::client::{ClientSessionMemoryCache, Resumption};
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::Ticketer;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, ProducesTickets, VerifierBuilderError};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::time_provider::{DefaultTimeProvider, TimeProvider};
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use rustls_pki_types::{CertificateDer, UnixTime};

use crate::binding::Bindings;
use crate::stream::Alpn;
use crate::verify::{ClientVerifier, ServerVerifier, Svid};
use crate::{Credentials, CredentialsError, HandshakeError, Refusal};

mod datagrams;

pub use datagrams::{DATAGRAM_ALPN, ProvenPeer};

/// How many sessions a worker caches for each server identity. rustls keeps eight tickets per server address, so this
/// is enough for 16 endpoints. A session takes about 2 KiB.
const SESSIONS_PER_IDENTITY: usize = 128;

/// How many tickets are sent after a handshake. One is enough: a pool opens a connection when another one has ended, so
/// each connection leads to at most one resumption.
const TICKETS: usize = 1;

/// The TLS configurations for one set of [`Credentials`]: three for servers, and one for clients of
/// each expected identity. Sessions and tickets belong to them, so after a rotation peers make a
/// full handshake.
#[derive(Debug)]
pub struct TlsConfigs {
    credentials: Credentials,
    provider: Arc<CryptoProvider>,
    clock: Arc<dyn TimeProvider>,
    roots: Arc<RootCertStore>,
    /// The roots of other trust domains.
    federated: BTreeMap<TrustDomain, Arc<RootCertStore>>,
    key: Arc<SingleCertAndKey>,
    verifier: Arc<ClientVerifier>,
    server: Arc<ServerConfig>,
    open_server: Arc<ServerConfig>,
    hbone_server: Arc<ServerConfig>,
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
        let provider = Arc::new(leno_crypto::mesh_provider());
        let roots = store(&credentials.roots).map_err(unusable("trust bundle"))?;
        let federated = credentials.federated().iter().map(|(domain, roots)| {
            let roots = store(roots).map_err(unusable("trust bundle of another trust domain"))?;
            Ok((domain.clone(), roots))
        });
        let federated: BTreeMap<_, _> = federated.collect::<Result<_, CredentialsError>>()?;
        let (chain, key) = (credentials.chain.clone(), credentials.key.clone_key());
        let certified =
            CertifiedKey::from_der(chain, key, &provider).map_err(unusable("private key"))?;
        let key = Arc::new(SingleCertAndKey::from(certified));
        let domain = credentials.identity().trust_domain().clone();
        let verifier = ClientVerifier::new((&roots, &federated), &provider, domain)
            .map_err(as_rustls)
            .map_err(unusable("trust bundle"))?;
        let verifier = Arc::new(verifier.without(credentials.revoked().clone()));
        let server = |clients: Arc<dyn ClientCertVerifier>, protocols: &[Alpn]| {
            server((&provider, &clock), &key, (clients, protocols)).map_err(unusable("provider"))
        };
        let hbone_server = server(Arc::clone(&verifier) as _, &[Alpn::Hbone])?;
        let open_server = server(Arc::new(verifier.optional()), &Alpn::ALL)?;
        let server = server(Arc::clone(&verifier) as _, &Alpn::ALL)?;
        Ok(Self {
            credentials,
            provider,
            clock,
            roots,
            federated,
            key,
            verifier,
            server,
            open_server,
            hbone_server,
        })
    }

    /// The credentials that these configurations use.
    #[must_use]
    pub fn credentials(&self) -> &Credentials {
        &self.credentials
    }

    /// When the credentials expire.
    #[must_use]
    pub fn not_after(&self) -> SystemTime {
        self.credentials.not_after()
    }

    /// The configuration of a server that requires every client to have a certificate of its own trust domain or of a
    /// federated one.
    #[must_use]
    pub fn server(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.server)
    }

    /// The configuration of a server that accepts clients with any certificate or none. After the handshake
    /// [`Self::identify`] decides who the client is. Tickets of this server are not valid for [`Self::server`], because
    /// otherwise clients could use them to avoid its check.
    pub(crate) fn open_server(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.open_server)
    }

    /// The configuration of an HBONE server, which requires a certificate of every client.
    pub(crate) fn hbone_server(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.hbone_server)
    }

    /// The certificate of a client with this chain, by the same rules as in [`Self::server`].
    ///
    /// # Errors
    /// [`HandshakeError::Refused`], with the reason why the chain proves no identity.
    pub(crate) fn identify(&self, chain: &[CertificateDer<'_>]) -> Result<Svid, HandshakeError> {
        let (own, intermediates) = chain.split_first().ok_or(Refusal::NoCertificate)?;
        self.verifier.verify_client_cert(own, intermediates, self.now()?)?;
        Ok(Svid::read(own)?)
    }

    /// The configuration of a client that accepts the server `expected` only. Each configuration
    /// has its own session cache, so keep it as long as connections to that identity are opened. No
    /// ALPN is set.
    #[must_use]
    pub fn client(&self, expected: Identity) -> Arc<ClientConfig> {
        let mut client = self.client_of(expected);
        let sessions = ClientSessionMemoryCache::new(SESSIONS_PER_IDENTITY);
        client.resumption = Resumption::store(Arc::new(sessions));
        client.key_log = Arc::new(Bindings);
        Arc::new(client)
    }

    /// The common part of the configurations of all clients that accept only the server `expected`.
    fn client_of(&self, expected: Identity) -> ClientConfig {
        let verifier = ServerVerifier {
            roots: self.roots_of(expected.trust_domain()),
            algorithms: self.provider.signature_verification_algorithms,
            check: expected,
        };
        let details = (Arc::clone(&self.provider), Arc::clone(&self.clock));
        let mut client = ClientConfig::builder_with_details(details.0, details.1)
            .with_protocol_versions(&[&TLS13])
            .expect("the provider has TLS 1.3 suites")
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_client_cert_resolver(Arc::clone(&self.key) as _);
        // A server is verified by its identity, so an SNI would only reveal information to observers of the network.
        client.enable_sni = false;
        client
    }

    /// The roots that prove identities of a trust domain; empty for an unknown one.
    fn roots_of(&self, domain: &TrustDomain) -> Arc<RootCertStore> {
        if domain == self.credentials.identity().trust_domain() {
            return Arc::clone(&self.roots);
        }
        self.federated.get(domain).cloned().unwrap_or_else(|| Arc::new(RootCertStore::empty()))
    }

    /// Checks that a client belongs to this workload's trust domain or to a federated one.
    pub(crate) fn check_domain(&self, svid: &Svid) -> Result<(), Refusal> {
        if self.federated.contains_key(svid.identity.trust_domain()) {
            return Ok(());
        }
        svid.check_domain(self.credentials.identity().trust_domain())
    }

    /// Checks that a peer's certificate was not revoked.
    pub(crate) fn check_revoked(&self, svid: &Svid) -> Result<(), Refusal> {
        svid.check_revoked(self.credentials.revoked())
    }

    /// The time against which certificates are checked.
    pub(crate) fn now(&self) -> Result<UnixTime, rustls::Error> {
        self.clock.current_time().ok_or(rustls::Error::FailedToGetCurrentTime)
    }
}

fn store(roots: &[CertificateDer<'static>]) -> Result<Arc<RootCertStore>, rustls::Error> {
    let mut store = RootCertStore::empty();
    roots.iter().try_for_each(|root| store.add(root.clone()))?;
    Ok(Arc::new(store))
}

/// A server configuration with its own ticket keys.
fn server(
    (provider, clock): (&Arc<CryptoProvider>, &Arc<dyn TimeProvider>),
    key: &Arc<SingleCertAndKey>,
    (clients, protocols): (Arc<dyn ClientCertVerifier>, &[Alpn]),
) -> Result<Arc<ServerConfig>, rustls::Error> {
    let details = (Arc::clone(provider), Arc::clone(clock));
    let mut server = ServerConfig::builder_with_details(details.0, details.1)
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(clients)
        .with_cert_resolver(Arc::clone(key) as _);
    server.alpn_protocols = protocols.iter().map(|alpn| alpn.as_bytes().to_vec()).collect();
    server.session_storage = Arc::new(NoServerSessionStorage {});
    server.ticketer = Arc::new(Tickets::default());
    server.send_tls13_tickets = TICKETS;
    server.key_log = Arc::new(Bindings);
    leno_crypto::check(server.fips())?;
    Ok(Arc::new(server))
}

/// The tickets of a server. Their keys are created for the first ticket, because they take 2 KiB and most servers of an
/// idle workload never need any.
#[derive(Debug, Default)]
struct Tickets(OnceLock<Option<Arc<dyn ProducesTickets>>>);

impl Tickets {
    /// The keys; `None` if the system has no random bytes. Clients then make full handshakes.
    fn keys(&self) -> Option<&Arc<dyn ProducesTickets>> {
        let make = || {
            let failed = |error: &rustls::Error| tracing::error!(%error, "no keys for tickets");
            Ticketer::new().inspect_err(failed).ok()
        };
        self.0.get_or_init(make).as_ref()
    }
}

impl ProducesTickets for Tickets {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        self.keys().map_or(0, |keys| keys.lifetime())
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        self.keys()?.encrypt(plain)
    }

    fn decrypt(&self, cipher: &[u8]) -> Option<Vec<u8>> {
        self.keys()?.decrypt(cipher)
    }
}

fn as_rustls(error: VerifierBuilderError) -> rustls::Error {
    rustls::Error::General(error.to_string())
}
