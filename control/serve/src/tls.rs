//! TLS of the control plane: its own certificate, which is renewed without a restart, and the verification of
//! clients' certificates.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use leno_identity::{Authority, AuthorityTrust, IssueError};
use rustls::ServerConfig;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::CertificateDer;
use rustls::server::{
    ClientHello, NoServerSessionStorage, ResolvesServerCert, VerifierBuilderError,
};
use rustls::sign::CertifiedKey;
use tokio::sync::watch;

mod clients;

use clients::ClientVerifier;

/// The share of the certificate's lifetime after which it is renewed, in percent.
const RENEW_AT: u32 = 70;
/// The pause after a failed renewal. The present certificate is still valid for 30 % of its lifetime.
const RENEW_PAUSE: Duration = Duration::from_secs(5);

/// Why the server's TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The authority could not sign.
    #[error("cannot issue the control plane's own certificate")]
    Issue(#[from] IssueError),
    /// The authority's certificate, or one that it has signed, cannot be used.
    #[error("the authority's certificate is not usable")]
    Certificate(#[from] rustls::Error),
    /// The verifier of clients' certificates cannot be built.
    #[error("the trust bundle is not usable")]
    Roots(#[from] VerifierBuilderError),
}

/// The control plane's own certificate, which is renewed before it expires.
pub struct ServerCredentials {
    authority: Arc<Authority>,
    /// Receives the changes of the authority. It is created before the first certificate is issued, so that a change
    /// between that and the call of [`keep_fresh`](Self::keep_fresh) is not missed.
    changes: watch::Receiver<Arc<AuthorityTrust>>,
    lifetime: Duration,
    /// The DNS names in the certificate. If there are none, the certificate has the control plane's identity.
    names: Vec<String>,
    /// The certificate with its key, and when it expires.
    current: RwLock<(Arc<CertifiedKey>, SystemTime)>,
}

impl ServerCredentials {
    /// Issues a certificate with the control plane's identity.
    ///
    /// # Errors
    /// [`TlsError::Issue`] if the authority cannot sign.
    pub fn new(authority: Arc<Authority>, lifetime: Duration) -> Result<Self, TlsError> {
        Self::with_names(authority, lifetime, Vec::new())
    }

    /// Issues a certificate with DNS names, for clients that verify the server by its name and have no identity.
    ///
    /// # Errors
    /// [`TlsError::Issue`] if the authority cannot sign.
    pub fn of_names(
        authority: Arc<Authority>,
        lifetime: Duration,
        names: Vec<String>,
    ) -> Result<Self, TlsError> {
        Self::with_names(authority, lifetime, names)
    }

    fn with_names(
        authority: Arc<Authority>,
        lifetime: Duration,
        names: Vec<String>,
    ) -> Result<Self, TlsError> {
        let changes = authority.changes();
        let current = RwLock::new(issue(&authority, lifetime, &names)?);
        Ok(Self { authority, changes, lifetime, names, current })
    }

    /// Renews the certificate at 70 % of its lifetime, and whenever the authority changes. Never returns. New
    /// handshakes use the new certificate.
    pub async fn keep_fresh(&self) {
        let mut changes = self.changes.clone();
        loop {
            let not_after = self.current.read().unwrap_or_else(PoisonError::into_inner).1;
            let left = not_after.duration_since(SystemTime::now()).unwrap_or_default();
            tokio::select! {
                () = tokio::time::sleep(left * RENEW_AT / 100) => {}
                // This cannot fail, because `self.authority` holds the sender.
                _ = changes.changed() => {}
            }
            match issue(&self.authority, self.lifetime, &self.names) {
                Ok(next) => {
                    *self.current.write().unwrap_or_else(PoisonError::into_inner) = next;
                    tracing::info!("the control plane's certificate was renewed");
                }
                Err(error) => {
                    warn(&error);
                    tokio::time::sleep(RENEW_PAUSE).await;
                }
            }
        }
    }

    /// TLS 1.3 and HTTP/1.1, for clients without a certificate.
    ///
    /// # Errors
    /// [`TlsError::Certificate`] if TLS 1.3 is not available.
    pub fn open_config(self: &Arc<Self>) -> Result<ServerConfig, TlsError> {
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_no_client_auth()
            .with_cert_resolver(Arc::clone(self) as Arc<dyn ResolvesServerCert>);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(config)
    }

    /// TLS 1.3 and HTTP/2. Clients show a certificate that a root of the trust bundle has signed, or none.
    /// Sessions cannot be resumed, so that the certificate is verified again with every connection.
    pub(crate) fn server_config(self: &Arc<Self>) -> Result<ServerConfig, TlsError> {
        let verifier = ClientVerifier::new(Arc::clone(&self.authority))?;
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_client_cert_verifier(Arc::new(verifier))
            .with_cert_resolver(Arc::clone(self) as Arc<dyn ResolvesServerCert>);
        config.alpn_protocols = vec![b"h2".to_vec()];
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(config)
    }
}

impl ResolvesServerCert for ServerCredentials {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner).0))
    }
}

impl fmt::Debug for ServerCredentials {
    /// Leaves out the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("lifetime", &self.lifetime).finish_non_exhaustive()
    }
}

fn issue(
    authority: &Authority,
    lifetime: Duration,
    names: &[String],
) -> Result<(Arc<CertifiedKey>, SystemTime), TlsError> {
    let made = if names.is_empty() {
        authority.server_certificate(lifetime)?
    } else {
        authority.serving_certificate(names, lifetime)?
    };
    let chain = made.issued.chain_der.into_iter().map(CertificateDer::from).collect();
    let key = CertifiedKey::from_der(chain, made.key.into(), &provider())?;
    Ok((Arc::new(key), made.issued.not_after))
}

fn warn(error: &TlsError) {
    let error: &dyn std::error::Error = error;
    tracing::error!(error, "the control plane's certificate cannot be renewed");
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}
