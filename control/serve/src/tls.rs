//! TLS of the control plane: its own certificate, renewed in place, and the check of clients'.

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

/// Share of the certificate's life after which the next one is made, in percent.
const RENEW_AT: u32 = 70;
/// Pause after a failed renewal; the certificate in use still holds for 30 % of its life.
const RENEW_PAUSE: Duration = Duration::from_secs(5);

/// Why the server's TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The authority signed nothing.
    #[error("cannot issue the control plane's own certificate")]
    Issue(#[from] IssueError),
    /// What the authority has or made is not usable.
    #[error("the authority's certificate is not usable")]
    Certificate(#[from] rustls::Error),
    /// The check of clients' certificates cannot be built.
    #[error("the trust bundle is not usable")]
    Roots(#[from] VerifierBuilderError),
}

/// A certificate of the control plane's own, always one that holds.
pub struct ServerCredentials {
    authority: Arc<Authority>,
    /// The changes of the authority since the first certificate was made.
    changes: watch::Receiver<Arc<AuthorityTrust>>,
    lifetime: Duration,
    /// The names of DNS that it is for; without any it is the control plane's identity.
    names: Vec<String>,
    current: RwLock<(Arc<CertifiedKey>, SystemTime)>,
}

impl ServerCredentials {
    /// The control plane's identity.
    ///
    /// # Errors
    /// [`TlsError::Issue`] where the authority signs nothing.
    pub fn new(authority: Arc<Authority>, lifetime: Duration) -> Result<Self, TlsError> {
        Self::with_names(authority, lifetime, Vec::new())
    }

    /// For clients that know the server by names of DNS and have no identity.
    ///
    /// # Errors
    /// [`TlsError::Issue`] where the authority signs nothing.
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

    /// Replaces the certificate at 70 % of its life, and when the authority has changed, for ever. New handshakes see
    /// the new one.
    pub async fn keep_fresh(&self) {
        let mut changes = self.changes.clone();
        loop {
            let not_after = self.current.read().unwrap_or_else(PoisonError::into_inner).1;
            let left = not_after.duration_since(SystemTime::now()).unwrap_or_default();
            tokio::select! {
                () = tokio::time::sleep(left * RENEW_AT / 100) => {}
                // It is held here, so its sender does not end.
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

    /// TLS 1.3 and HTTP/1.1 for anybody: who calls is not asked.
    ///
    /// # Errors
    /// [`TlsError::Certificate`] where TLS 1.3 is not to be had.
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

    /// TLS 1.3, HTTP/2, a client certificate of the trust bundle or none. Nothing is resumed, so
    /// every connection shows a certificate that holds now.
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
    /// Leaves the key out.
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
