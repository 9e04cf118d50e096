//! One HTTP/2 connection to the control plane.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tonic::body::Body;
use tower_service::Service;

use crate::certificate::Certificate;
use crate::settings::Settings;
use crate::tls;

/// Longest wait for TCP, TLS and HTTP/2 together. The control plane is near. If it takes longer it
/// does not work, and another attempt follows.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How often a silent connection is probed, and how long the reply may take. A control plane that
/// vanished without closing is noticed within the sum of both.
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(10));
/// HTTP/2 window. Large responses come one at a time, so a service with thousands of endpoints
/// needs few round trips.
const WINDOW: u32 = 1 << 20;
/// Sent as SNI and `:authority`. The certificate is checked for the SPIFFE ID instead.
const SERVER_NAME: &str = "leno-controller";

/// Why there is no connection to the control plane.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The file with the roots cannot be read or holds no certificate.
    #[error("cannot use the roots in {0}")]
    Roots(PathBuf, #[source] io::Error),
    /// Our own certificate or a root is unusable.
    #[error("cannot set up TLS")]
    Config(#[source] rustls::Error),
    /// The name does not resolve, or nothing listens there.
    #[error("cannot connect to {0}")]
    Tcp(String, #[source] io::Error),
    /// TLS failed: the server is not this mesh's control plane, or it refuses our certificate.
    #[error("the TLS handshake with {0} failed")]
    Tls(SocketAddr, #[source] io::Error),
    /// HTTP/2 failed.
    #[error("the HTTP/2 handshake failed")]
    Http(#[source] hyper::Error),
    /// Connecting took too long.
    #[error("no connection within {CONNECT_TIMEOUT:?}")]
    Timeout,
}

/// An open connection, the transport of a tonic client. Dropping it closes it.
#[derive(Debug)]
pub(crate) struct Connection {
    sender: SendRequest<Body>,
    /// Drives the connection. It ends when this value is dropped or the control plane closes.
    task: JoinHandle<()>,
}

impl Connection {
    /// Connects and authenticates the control plane. Presents the certificate `own` if there is
    /// one.
    pub(crate) async fn open(
        settings: &Settings,
        own: Option<&Certificate>,
    ) -> Result<Self, ConnectError> {
        Self::open_as(settings, own, own).await
    }

    /// The same, which trusts the roots of `current` and presents `own`.
    pub(crate) async fn open_as(
        settings: &Settings,
        current: Option<&Certificate>,
        own: Option<&Certificate>,
    ) -> Result<Self, ConnectError> {
        let roots = roots(settings, current)?;
        let config = tls::config(roots, settings.trust_domain.control_plane(), own)
            .map_err(ConnectError::Config)?;
        let connector = TlsConnector::from(Arc::new(config));
        timeout(CONNECT_TIMEOUT, Self::handshake(settings.authority(), connector))
            .await
            .map_err(|_| ConnectError::Timeout)?
    }

    async fn handshake(authority: &str, connector: TlsConnector) -> Result<Self, ConnectError> {
        let failed = |error| ConnectError::Tcp(authority.to_owned(), error);
        let stream = TcpStream::connect(authority).await.map_err(failed)?;
        // Requests are small and answered one by one, so waiting for more bytes would only delay
        // them.
        stream.set_nodelay(true).map_err(failed)?;
        let address = stream.peer_addr().map_err(failed)?;
        let name = ServerName::try_from(SERVER_NAME).expect("it is a DNS name");
        let stream = connector
            .connect(name, stream)
            .await
            .map_err(|error| ConnectError::Tls(address, error))?;
        let (sender, connection) = Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(KEEP_ALIVE.0)
            .keep_alive_timeout(KEEP_ALIVE.1)
            .keep_alive_while_idle(true)
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(ConnectError::Http)?;
        let task = tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "the connection to the control plane broke");
            }
        });
        Ok(Self { sender, task })
    }

    /// The origin of requests, which a tonic client needs.
    pub(crate) fn origin() -> http::Uri {
        http::Uri::from_static("https://leno-controller")
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Service<http::Request<Body>> for Connection {
    type Response = http::Response<Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.sender.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(self.sender.send_request(request))
    }
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
    for certificate in own.iter().flat_map(|own| &own.roots_der) {
        roots.add(certificate.clone().into()).map_err(ConnectError::Config)?;
    }
    if roots.is_empty() {
        return Err(failed(io::Error::other("it holds no certificate")));
    }
    Ok(roots)
}
