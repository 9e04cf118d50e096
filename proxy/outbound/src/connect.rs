//! Opens connections to endpoints, whether or not they have a proxy in front of them.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use leno_telemetry::Counter;
use leno_tls::{Alpn, Channel, HandshakeError, OriginationError};
use leno_transport::{CONNECT_TIMEOUT, ConnectError, own_addresses};
use leno_types::Identity;
use leno_types::mesh::{Endpoint, WireForm};
use tokio::net::TcpStream;

use crate::Worker;
use crate::backends::Remote;
use crate::external::{Outside, UNREACHABLE, with_remedy};
use crate::hbone::TunnelError;

/// The cause, for `leno-error` and metrics, if the server's proxy refused this proxy's certificate. The client's side
/// of a handshake ends before the server has checked the certificate, so the refusal arrives with the first read.
pub(crate) const REFUSED_BY_SERVER: &str = "refused-by-server";

/// The cause if there is no connection to the endpoint, for a reason without a cause of its own.
pub(crate) const CONNECT_FAILED: &str = "connect-failed";

/// The cause if there is no connection in time.
pub(crate) const CONNECT_TIMEOUT_CAUSE: &str = "connect-timeout";

/// The cause if the endpoint is a listener of this proxy. [`leno_http`] has the same cause for requests that a route
/// sends to their own workload again and again.
pub(crate) const LOOP: &str = "loop";

/// Why there is no connection. Nothing of the request was sent, so another endpoint can be tried.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("TLS with {0}")]
    Handshake(SocketAddr, #[source] HandshakeError),
    #[error("TLS with {1}, which is {0}")]
    Outside(Arc<str>, SocketAddr, #[source] HandshakeError),
    #[error("{0}")]
    Origination(#[from] OriginationError),
    #[error("the TrafficPolicy permits no more connections to the service")]
    Full,
    #[error("{0} is an address on which this proxy itself listens")]
    Loop(SocketAddr),
    #[error("HBONE with {0}")]
    Tunnel(SocketAddr, #[source] TunnelError),
    #[error("the waypoint {0} cannot be used for a service without an address")]
    Waypoint(SocketAddr),
}

impl OpenError {
    /// The cause for `leno-error` and metrics.
    pub(crate) fn cause(&self) -> &'static str {
        match self {
            Self::Connect(ConnectError::Refused(_)) => "connect-refused",
            Self::Connect(ConnectError::Timeout(..)) => CONNECT_TIMEOUT_CAUSE,
            Self::Connect(ConnectError::Unreachable(..)) => UNREACHABLE,
            Self::Connect(_) => CONNECT_FAILED,
            Self::Handshake(..) => "tls-handshake-failed",
            Self::Outside(_, _, error) => error.outside_cause(),
            Self::Origination(OriginationError::Roots(_)) => "external-authorities-missing",
            Self::Origination(OriginationError::Name(_)) => "external-wrong-name",
            Self::Full => "connections-in-use",
            Self::Loop(_) => LOOP,
            Self::Tunnel(_, error) => error.cause(),
            Self::Waypoint(_) => CONNECT_FAILED,
        }
    }
}

impl OpenError {
    /// Whether policies of the server deny the connection, which is not the endpoint's fault.
    pub(crate) fn is_denied(&self) -> bool {
        matches!(self, Self::Tunnel(_, error) if error.is_denied())
    }
}

/// Whether another proxy of this mesh is in front of an endpoint. A proxy that accepts HBONE does not count as such: it
/// only relays bytes, so the server behind it is treated like a server without a proxy.
pub(crate) fn is_mesh(shared: &Worker, remote: &Remote) -> bool {
    let Endpoint { identity, wire, .. } = &remote.endpoint;
    identity.is_some() && *wire == WireForm::Leno && !shared.local.is_local(remote.address.ip())
}

/// Whether an endpoint is this workload itself. An endpoint outside of the mesh never is, even if its name resolves to
/// a local address: DNS is not trusted, and the endpoint must prove its name.
pub(crate) fn is_own(shared: &Worker, remote: &Remote) -> bool {
    remote.outside.is_none() && shared.local.is_local(remote.address.ip())
}

/// Opens a connection to an endpoint. The first of these cases that applies decides:
/// - The endpoint is this workload itself: plaintext to the application, not through the inbound side.
/// - It must be reached through a proxy that accepts HBONE, or through a waypoint: a tunnel.
/// - It has an identity: mTLS.
/// - It is outside of the mesh and policy demands TLS: TLS that the proxy originates, unless `own_tls` says that the
///   client itself has begun TLS with the server.
/// - Otherwise: plaintext.
pub(crate) async fn open(
    shared: &Worker,
    remote: &Remote,
    offered: &[Alpn],
    own_tls: bool,
) -> Result<Channel, OpenError> {
    let outside = remote.outside.as_ref().filter(|_| !own_tls);
    let place = Rc::new(remote.connections.try_enter().ok_or(OpenError::Full)?);
    shared.local.refresh();
    if outside.is_none() && shared.local.is_local(remote.address.ip()) {
        if shared.is_listener(remote.address) {
            return Err(OpenError::Loop(remote.address));
        }
        return Ok(Channel::from(to_own_application(remote.address).await?).guarded(place));
    }
    if let Some(outside) = outside
        && let Err(error) = &outside.originator
    {
        return Err(OpenError::Origination(error.clone()));
    }
    if let Some((to, identity)) = tunnel(remote).map_err(OpenError::Waypoint)? {
        let opened = shared.tunnels.open(to, (remote.address.ip(), identity)).await;
        let failed = |error| OpenError::Tunnel(remote.address, error);
        return Ok(opened.map_err(failed)?.guarded(place));
    }
    let tcp = leno_transport::connect(remote.address, CONNECT_TIMEOUT).await?;
    let Some(identity) = &remote.endpoint.identity else {
        let channel = match outside {
            None => Channel::from(tcp),
            Some(outside) => originate(shared, remote.address, outside, (tcp, offered)).await?,
        };
        return Ok(channel.guarded(place));
    };
    match shared.tls.connect(tcp, identity, offered).await {
        Ok(stream) => {
            shared.registry.count(Counter::OutboundHandshake);
            Ok(Channel::from(stream).guarded(place))
        }
        Err(error) => {
            shared.registry.count(Counter::OutboundHandshakeFailed);
            Err(OpenError::Handshake(remote.address, error))
        }
    }
}

/// The target of a tunnel to an endpoint, and the identity of its proxy; `None` if no tunnel is needed. The error is
/// the address of a waypoint that has no identity, or whose service has no address that could be requested from it.
fn tunnel(remote: &Remote) -> Result<Option<(SocketAddr, &Identity)>, SocketAddr> {
    let address = remote.address;
    match &remote.endpoint {
        Endpoint { wire: WireForm::Leno, .. } => Ok(None),
        // A waypoint without an identity cannot be used. It has none while the mesh is being removed.
        Endpoint { identity: None, wire: WireForm::Waypoint, .. } => Err(address),
        Endpoint { identity: None, .. } => Ok(None),
        Endpoint { identity: Some(identity), wire: WireForm::Hbone, .. } => {
            Ok(Some((address, identity)))
        }
        Endpoint { identity: Some(identity), wire: WireForm::Waypoint, .. } => {
            let to = remote.behind.ok_or(address)?;
            Ok(Some((to, identity)))
        }
    }
}

/// Makes TLS with a server outside of the mesh, for an application that sends plaintext.
async fn originate(
    shared: &Worker,
    address: SocketAddr,
    outside: &Outside,
    (tcp, offered): (TcpStream, &[Alpn]),
) -> Result<Channel, OpenError> {
    let originator = outside.originator.as_ref().map_err(Clone::clone)?;
    match originator.connect(tcp, offered).await {
        Ok(stream) => {
            shared.registry.count(Counter::ExternalHandshake);
            Ok(Channel::from(stream))
        }
        Err(error) => {
            shared.registry.count(Counter::ExternalHandshakeFailed);
            let hostname = Arc::clone(&outside.how.hostname);
            let (cause, source) = (error.outside_cause(), &outside.how.source);
            let remedy = with_remedy(cause);
            let reason: &dyn std::error::Error = &error;
            tracing::warn!(%hostname, %address, %source, reason, remedy, "no TLS with an external service");
            Err(OpenError::Outside(hostname, address, error))
        }
    }
}

/// Connects to the application of this workload: at the dialled address, or on loopback if the application listens only
/// there.
pub(crate) async fn to_own_application(address: SocketAddr) -> Result<TcpStream, ConnectError> {
    let mut refused = None;
    for candidate in own_addresses(address) {
        match leno_transport::connect(candidate, CONNECT_TIMEOUT).await {
            Err(error @ ConnectError::Refused(_)) => refused = refused.or(Some(error)),
            other => return other,
        }
    }
    Err(refused.unwrap_or(ConnectError::Refused(address)))
}
