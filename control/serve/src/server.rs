//! The server, which offers discovery, identity and rate limits on one port with TLS.

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use leno_identity::Authority;
use leno_wire::MAX_MESSAGE;
use leno_wire::proto::discovery_server::{self, DiscoveryServer};
use leno_wire::proto::identity_server::{self, IdentityServer};
use leno_wire::proto::limits_server::{self, LimitsServer};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;
use tower_service::Service;

use crate::authenticate::Authenticator;
use crate::discovery::DiscoveryService;
use crate::identity::{IdentityService, Issuer};
use crate::incoming;
use crate::leases::LeaseService;
use crate::metrics::Metrics;
use crate::peer::ConnectionPeer;
use crate::recognise::Recogniser;
use crate::requests::{RequestBudget, bounded};
use crate::state::PlaneState;
use crate::tls::{ServerCredentials, TlsError};

/// Most simultaneous calls on one connection. A proxy has two streams and a renewal, and may repeat a call.
const MAX_CALLS: u32 = 4;
/// Largest message with a certificate request, in bytes: a request of 4 KiB and a token of 8 KiB, and some room.
/// If every call without a certificate sends such a message, they use 64 MiB together.
const MAX_IDENTITY_MESSAGE: usize = 16 << 10;
/// Largest request for leases.
const MAX_LEASE_MESSAGE: usize = 64 << 10;
/// Bytes of requests that a client may send before the server reads them, per call and per connection.
const WINDOW: u32 = 64 << 10;
/// Largest head of a call, in bytes. Real ones have a few hundred.
const MAX_HEAD: u32 = 8 << 10;
/// How often an idle client is pinged. A proxy that has disappeared is noticed within this time and
/// [`KEEPALIVE_TIMEOUT`].
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(20);
/// Longest wait for the answer to a ping.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long to wait for connections to end after their streams were asked to end. Proxies keep their state and
/// reconnect.
const GRACE: Duration = Duration::from_millis(500);

/// How long a stream lasts, plus or minus a quarter. After a rolling update all proxies are connected to the
/// replicas that were started first. Within this time, they spread over all replicas. With 2,000 proxies, about
/// one reconnects per second.
pub const STREAM_AGE: Duration = Duration::from_mins(30);

/// How a server issues certificates.
#[derive(Clone, Debug)]
pub struct ServerSettings {
    /// Signs workloads' certificates and the server's own.
    pub authority: Arc<Authority>,
    /// Verifies tokens, and returns their owners.
    pub authenticator: Arc<dyn Authenticator>,
    /// The lifetime of workloads' certificates.
    pub lifetime: Duration,
}

/// Why a server could not be started.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The server cannot listen on the address.
    #[error("cannot listen on {0}")]
    Listen(SocketAddr, #[source] io::Error),
    /// TLS cannot be set up.
    #[error("cannot set up TLS")]
    Tls(#[from] TlsError),
    /// The server ended by itself.
    #[error("the server ended")]
    Ended(#[source] tonic::transport::Error),
}

/// A server that listens. [`PlaneServer::run`] serves.
pub struct PlaneServer {
    listener: TcpListener,
    address: SocketAddr,
    credentials: Arc<ServerCredentials>,
    acceptor: TlsAcceptor,
    settings: ServerSettings,
    stream_age: Duration,
    state: Arc<PlaneState>,
}

impl PlaneServer {
    /// Binds the address and listens on it. Clients that connect before [`PlaneServer::run`] wait.
    ///
    /// # Errors
    /// [`ServeError`] if the address is in use or the authority signs no certificate.
    pub async fn bind(
        address: SocketAddr,
        settings: ServerSettings,
        state: Arc<PlaneState>,
    ) -> Result<Self, ServeError> {
        let listen = |error| ServeError::Listen(address, error);
        let listener = leno_program::listen(address).await.map_err(listen)?;
        let bound = listener.local_addr().map_err(listen)?;
        let authority = Arc::clone(&settings.authority);
        let credentials = Arc::new(ServerCredentials::new(authority, settings.lifetime)?);
        let acceptor = TlsAcceptor::from(Arc::new(credentials.server_config()?));
        state.publish_trust(&settings.authority);
        let stream_age = STREAM_AGE;
        Ok(Self { listener, address: bound, credentials, acceptor, settings, stream_age, state })
    }

    /// Makes proxies reconnect after `age` instead of [`STREAM_AGE`].
    #[must_use]
    pub fn with_stream_age(self, age: Duration) -> Self {
        Self { stream_age: age, ..self }
    }

    /// The address on which it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop` is true or its sender is dropped. Then every stream is asked to end, and
    /// connections that do not end in time are cut.
    ///
    /// # Errors
    /// [`ServeError::Ended`] if the server itself fails. No client can cause it.
    pub async fn run(self, stop: watch::Receiver<bool>) -> Result<(), ServeError> {
        let Self { listener, credentials, acceptor, settings, stream_age, state, .. } = self;
        let (trusted, authority) = (Arc::clone(&state), Arc::clone(&settings.authority));
        let issuer = Issuer {
            authority: settings.authority,
            authenticator: settings.authenticator,
            lifetime: settings.lifetime,
        };
        let recogniser = Recogniser::new(Arc::clone(&issuer.authenticator), Arc::clone(&state));
        let services = Services {
            discovery: DiscoveryServer::new(DiscoveryService::new(
                recogniser.clone(),
                stop.clone(),
                stream_age,
            ))
            .max_decoding_message_size(MAX_MESSAGE)
            .max_encoding_message_size(MAX_MESSAGE),
            limits: LimitsServer::new(LeaseService::new(recogniser, stop.clone()))
                .max_decoding_message_size(MAX_LEASE_MESSAGE),
            identity: IdentityServer::new(IdentityService::new(
                Arc::new(issuer),
                Arc::clone(&state.metrics),
            ))
            .max_decoding_message_size(MAX_IDENTITY_MESSAGE),
            budget: RequestBudget::default(),
            metrics: Arc::clone(&state.metrics),
        };
        let connections = incoming::accept(listener, acceptor, Arc::clone(&state.metrics));
        let mut asked = stop.clone();
        let server = tonic::transport::Server::builder()
            .max_concurrent_streams(MAX_CALLS)
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
            .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
            .http2_max_header_list_size(MAX_HEAD)
            .serve_with_incoming_shutdown(services, ReceiverStream::new(connections), async move {
                // An error means that the sender was dropped, which also stops the server.
                let _ = asked.wait_for(|stop| *stop).await;
            });
        let mut asked = stop;
        let cut = async move {
            let _ = asked.wait_for(|stop| *stop).await;
            tokio::time::sleep(GRACE).await;
        };
        tokio::select! {
            ended = server => ended.map_err(ServeError::Ended),
            () = credentials.keep_fresh() => Ok(()),
            // This does not end before the others, because `authority` keeps the sender of the changes alive.
            () = trusted.follow_trust(&authority) => Ok(()),
            () = cut => Ok(()),
        }
    }
}

impl fmt::Debug for PlaneServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("address", &self.address).finish_non_exhaustive()
    }
}

/// All services. The path of a call decides which service handles it.
#[derive(Clone)]
struct Services {
    discovery: DiscoveryServer<DiscoveryService>,
    identity: IdentityServer<IdentityService>,
    limits: LimitsServer<LeaseService>,
    budget: RequestBudget,
    metrics: Arc<Metrics>,
}

type Call = Pin<Box<dyn Future<Output = Result<http::Response<Body>, Infallible>> + Send>>;

impl Service<http::Request<Body>> for Services {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Call;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Call {
        // Clients without a certificate need no such bound: the services with streams reject them, and Identity reads
        // one small message.
        let certificate =
            request.extensions().get::<ConnectionPeer>().and_then(|peer| peer.certificate.as_ref());
        let request = match certificate.map(|certificate| certificate.identity.clone()) {
            Some(identity) => bounded(request, identity, (&self.budget, &self.metrics)),
            None => request,
        };
        let path = request.uri().path();
        let service = path.strip_prefix('/').and_then(|path| path.split('/').next());
        match service {
            Some(discovery_server::SERVICE_NAME) => self.discovery.call(request),
            Some(identity_server::SERVICE_NAME) => self.identity.call(request),
            Some(limits_server::SERVICE_NAME) => self.limits.call(request),
            _ => {
                let status = tonic::Status::unimplemented("no such service");
                Box::pin(std::future::ready(Ok(status.into_http())))
            }
        }
    }
}
