//! One HTTP/2 connection to the control plane.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use leno_wire::ClientConnection;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::certificate::Certificate;
use crate::settings::Settings;
use crate::tls;

/// How long TCP, TLS and HTTP/2 together may take. The control plane is near. If it takes longer it does not work, and
/// another attempt follows.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How often a silent connection is probed, and how long the reply may take. A control plane that vanished without
/// closing the connection is noticed within the sum of both.
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(10));
/// The name that is sent as SNI and `:authority`. It is not checked: the control plane's certificate must have its
/// SPIFFE ID.
const SERVER_NAME: &str = "leno-controller";

/// Why there is no connection to the control plane.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The file with the roots cannot be read or holds no certificate.
    #[error("cannot use the roots in {0}")]
    Roots(PathBuf, #[source] io::Error),
    /// The proxy's own certificate or a root is unusable.
    #[error("cannot set up TLS")]
    Config(#[source] rustls::Error),
    /// The name does not resolve, or nothing listens there.
    #[error("cannot connect to {0}")]
    Tcp(String, #[source] io::Error),
    /// TLS failed: the server is not this mesh's control plane, or it refuses the proxy's certificate.
    #[error("the TLS handshake with {0} failed")]
    Tls(SocketAddr, #[source] io::Error),
    /// By this machine's clock, the control plane's certificate is not valid yet or has expired.
    #[error(
        "the TLS handshake with {0} failed because of the time: check the clocks of this machine \
         and of that of the control plane"
    )]
    Clock(SocketAddr, #[source] io::Error),
    /// HTTP/2 failed.
    #[error("the HTTP/2 handshake failed")]
    Http(#[source] hyper::Error),
    /// Connecting took too long.
    #[error("no connection within {CONNECT_TIMEOUT:?}")]
    Timeout,
}

/// Connects, and authenticates the control plane. Presents the certificate `own` if there is one.
pub(crate) async fn connect(
    settings: &Settings,
    own: Option<&Certificate>,
) -> Result<ClientConnection, ConnectError> {
    connect_as(settings, own, own).await
}

/// Like [`connect`], but trusts the roots of `current` and presents `own`.
pub(crate) async fn connect_as(
    settings: &Settings,
    current: Option<&Certificate>,
    own: Option<&Certificate>,
) -> Result<ClientConnection, ConnectError> {
    let roots = roots(settings, current)?;
    let config = tls::config(roots, settings.trust_domain.control_plane(), own)
        .map_err(ConnectError::Config)?;
    let connector = TlsConnector::from(Arc::new(config));
    // In a box that is freed after the handshake, because several long-lived futures each connect once.
    timeout(CONNECT_TIMEOUT, Box::pin(handshake(settings.authority(), connector)))
        .await
        .map_err(|_| ConnectError::Timeout)?
}

async fn handshake(
    authority: &str,
    connector: TlsConnector,
) -> Result<ClientConnection, ConnectError> {
    let failed = |error| ConnectError::Tcp(authority.to_owned(), error);
    let stream = TcpStream::connect(authority).await.map_err(failed)?;
    // Requests are small and answered one by one, so waiting for more bytes would only delay
    // them.
    stream.set_nodelay(true).map_err(failed)?;
    let address = stream.peer_addr().map_err(failed)?;
    let name = ServerName::try_from(SERVER_NAME).expect("it is a DNS name");
    let stream = connector.connect(name, stream).await.map_err(|error| {
        let failed = if is_of_time(&error) { ConnectError::Clock } else { ConnectError::Tls };
        failed(address, error)
    })?;
    ClientConnection::open(stream, Some(KEEP_ALIVE)).await.map_err(ConnectError::Http)
}

/// Whether the server's certificate was refused only because it has expired or is not valid yet.
fn is_of_time(error: &io::Error) -> bool {
    use rustls::CertificateError as E;
    let refused = error.get_ref().and_then(|error| error.downcast_ref());
    let Some(rustls::Error::InvalidCertificate(why)) = refused else { return false };
    matches!(
        why,
        E::NotValidYet | E::NotValidYetContext { .. } | E::Expired | E::ExpiredContext { .. }
    )
}

/// The origin of requests, which tonic's clients need.
pub(crate) fn origin() -> http::Uri {
    http::Uri::from_static("https://leno-controller")
}

/// The roots of the bootstrap file and those of the certificate in use. Either set may be newer.
fn roots(settings: &Settings, own: Option<&Certificate>) -> Result<RootCertStore, ConnectError> {
    let failed = |error| ConnectError::Roots(settings.roots.clone(), error);
    let pem = std::fs::read(&settings.roots).map_err(failed)?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|error| failed(io::Error::other(error)))?;
        roots.add(certificate).map_err(ConnectError::Config)?;
    }
    for certificate in own.iter().flat_map(|own| own.roots_der()) {
        roots.add(certificate.into()).map_err(ConnectError::Config)?;
    }
    if roots.is_empty() {
        return Err(failed(io::Error::other("it contains no certificate")));
    }
    Ok(roots)
}
