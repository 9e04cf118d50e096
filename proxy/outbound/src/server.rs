//! The connection for one request to an endpoint, which is a connection of its own or a stream of a shared connection.

use std::cell::{Cell, OnceCell};
use std::future::Future;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll};

use leno_http::{Cause, Exchange, Failure, Judge, Order, Party};
use leno_pool::{Agreed, Carrier, DIAL_WAIT, PoolError, Pooled};
use leno_telemetry::Counter;
use leno_tls::{Alpn, Channel};
use leno_transport::unless_gone;
use tokio::time::{Instant, sleep_until};

use crate::Worker;
use crate::backends::Remote;
use crate::connect::{self, CONNECT_TIMEOUT_CAUSE, OpenError};
use crate::request::Request;

/// The connections to one endpoint.
pub(crate) type Pool = leno_pool::Pool<Channel, Refused, OpenError>;

/// Whether, on a shared connection, the server's proxy has refused this proxy's certificate.
pub(crate) type Refused = Rc<Cell<bool>>;

/// The connection over which a request is sent.
pub(crate) struct Server {
    /// Whether the connection was open before this request came.
    pub(crate) reused: bool,
    /// Whether the server is another proxy of this mesh.
    pub(crate) is_mesh: bool,
    /// Whether mesh headers from the server are trusted. They are if the server is a proxy of this mesh, or a waypoint,
    /// which removes the mesh headers of servers behind it.
    pub(crate) is_believed: bool,
    connection: Pooled<Channel, Refused>,
    /// How many frames had arrived on the shared connection before this request.
    heard: u64,
}

/// The status Loop Detected (RFC 5842 section 7.2).
const LOOP_DETECTED: u16 = 508;
/// The status that a proxy of this mesh sends if policies deny a request.
const FORBIDDEN: u16 = 403;

/// The value of `leno-error` if every stream of every connection to the server stayed in use.
pub(crate) const STREAMS_IN_USE: &str = "streams-in-use";

/// Why there is no connection. Nothing of the request was sent, so it can go to another endpoint.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GetError {
    #[error("{0}")]
    Connect(Rc<OpenError>),
    #[error("all streams of all connections are in use")]
    Full,
    #[error("no connection within {:?}, since many others are being made", DIAL_WAIT)]
    Late,
    #[error("the client's deadline has passed")]
    Deadline,
    #[error("the client has left")]
    ClientGone(Failure),
}

impl GetError {
    /// The cause for `leno-error` and metrics.
    pub(crate) fn cause(&self) -> &'static str {
        match self {
            Self::Connect(error) => error.cause(),
            Self::Full => STREAMS_IN_USE,
            Self::Late => CONNECT_TIMEOUT_CAUSE,
            Self::Deadline => "deadline",
            Self::ClientGone(failure) => failure.cause.label(),
        }
    }

    /// The status of the answer to the client.
    pub(crate) fn status(&self) -> u16 {
        match self {
            Self::Deadline => 504,
            Self::Connect(error) if matches!(**error, OpenError::Loop(_)) => LOOP_DETECTED,
            Self::Connect(error) if error.is_denied() => FORBIDDEN,
            _ => 503,
        }
    }

    /// Whether policy allows no more connections to the service.
    pub(crate) fn is_full(&self) -> bool {
        matches!(self, Self::Connect(error) if matches!(**error, OpenError::Full))
    }

    /// Whether the cause is that the endpoint cannot be connected to.
    pub(crate) fn is_of_endpoint(&self) -> bool {
        let of_other = |error: &OpenError| {
            matches!(error, OpenError::Full | OpenError::Loop(_)) || error.is_denied()
        };
        matches!(self, Self::Connect(error) if !of_other(error))
    }
}

impl From<PoolError<OpenError>> for GetError {
    fn from(error: PoolError<OpenError>) -> Self {
        match error {
            PoolError::Connect(error) => Self::Connect(error),
            PoolError::Full => Self::Full,
            PoolError::Late => Self::Late,
        }
    }
}

/// Returns a pooled connection to an endpoint, or opens one. To another proxy, requests of both versions share one
/// HTTP/2 connection, except for an HTTP/1 request that comes alone ([`Carrier::Either`]). A server without a proxy
/// gets the client's version of HTTP. `deadline` is the mesh's own, in addition to the client's.
///
/// The wait ends at the first of the deadlines, or when the client leaves. A connection that is still being opened then
/// serves a later request.
pub(crate) async fn get<R: Request>(
    shared: &Rc<Worker>,
    remote: &Rc<Remote>,
    request: &mut R,
    deadline: Option<Instant>,
) -> Result<Server, GetError> {
    let is_mesh = connect::is_mesh(shared, remote);
    let is_believed = is_mesh || remote.behind.is_some();
    let carrier = carrier(is_mesh, request, remote);
    if let Some(connection) = remote.pool.at_once(carrier) {
        if carrier == Carrier::Either && matches!(connection, Pooled::Http2(_)) {
            remote.pool.prepare(|| ahead(Rc::clone(shared), Rc::clone(remote)));
        }
        return Ok(Server::over(connection, (is_mesh, is_believed), shared));
    }
    let deadline = [request.deadline(), deadline].into_iter().flatten().min();
    let connected = connect(shared, remote, carrier);
    let mut late = pin!(deadline.map(sleep_until));
    let over = |cx: &mut Context<'_>| {
        if let Poll::Ready(failure) = request.poll_gone(cx) {
            return Poll::Ready(GetError::ClientGone(failure));
        }
        match late.as_mut().as_pin_mut() {
            Some(late) => late.poll(cx).map(|()| GetError::Deadline),
            None => Poll::Pending,
        }
    };
    let connection = unless_gone(connected, over).await.unwrap_or_else(Err)?;
    Ok(Server::over(connection, (is_mesh, is_believed), shared))
}

/// Which kind of connection a request needs.
fn carrier<R: Request>(is_mesh: bool, request: &R, remote: &Remote) -> Carrier {
    match (is_mesh, request.is_http2()) {
        // If policy limits connections, a connection that all requests share is better than a cheaper connection for
        // one request.
        (true, _) if request.fits_http1() && remote.connections.is_unlimited() => Carrier::Either,
        (true, _) | (false, true) => Carrier::Http2,
        (false, false) => Carrier::Http1,
    }
}

/// Waits until the pool has a connection for the request, which may have to be opened first.
async fn connect(
    shared: &Rc<Worker>,
    remote: &Rc<Remote>,
    carrier: Carrier,
) -> Result<Pooled<Channel, Refused>, GetError> {
    // Set when a connection is being opened for this request. It exists as long as the request waits.
    let request = OnceCell::new();
    let parts = || {
        let waits = Rc::downgrade(request.get_or_init(Rc::default));
        (Rc::clone(shared), Rc::clone(remote), waits)
    };
    let got = remote.pool.get(carrier, || over_http2(parts()), || over_http1(parts()));
    Ok(got.await?)
}

/// The values that are needed to open a connection: the worker, the endpoint, and a reference that is dead once the
/// request no longer waits.
type Parts = (Rc<Worker>, Rc<Remote>, Weak<()>);

/// Opens a connection for streams, or for HTTP/1 if the other proxy accepts nothing else.
async fn over_http2(
    (shared, remote, request): Parts,
) -> Result<Agreed<Channel, Refused>, OpenError> {
    let channel = connect::open(&shared, &remote, Alpn::HTTP, false).await?;
    count_outlived(&shared, &request);
    if channel.alpn() == Some(Alpn::Http1) {
        return Ok(Agreed::Http1(channel));
    }
    let refused = channel.refused();
    Ok(Agreed::Http2(channel, refused))
}

async fn over_http1((shared, remote, request): Parts) -> Result<Channel, OpenError> {
    let channel = connect::open(&shared, &remote, &[Alpn::Http1], false).await?;
    count_outlived(&shared, &request);
    Ok(channel)
}

/// Opens a connection before any request needs it.
async fn ahead(shared: Rc<Worker>, remote: Rc<Remote>) -> Result<Channel, OpenError> {
    connect::open(&shared, &remote, &[Alpn::Http1], false).await
}

/// Counts a connection whose request no longer waits for it.
fn count_outlived(shared: &Worker, request: &Weak<()>) {
    if request.strong_count() == 0 {
        shared.registry.count(Counter::ConnectionsOutlived);
    }
}

impl Server {
    /// Counts whether the connection is new or reused, and prepares it for the request.
    fn over(
        connection: Pooled<Channel, Refused>,
        (is_mesh, is_believed): (bool, bool),
        shared: &Worker,
    ) -> Self {
        let (reused, heard) = match &connection {
            Pooled::Http1 { reused, .. } => (*reused, 0),
            Pooled::Http2(lent) => {
                if lent.waited {
                    shared.registry.count(Counter::OutboundStreamWaited);
                }
                (lent.reused, lent.client.heard())
            }
        };
        let counter =
            if reused { Counter::OutboundPoolReused } else { Counter::OutboundPoolOpened };
        shared.registry.count(counter);
        Self { reused, is_mesh, is_believed, connection, heard }
    }

    /// Relays a request and its response.
    pub(crate) async fn exchange<R: Request, J: Judge>(
        &mut self,
        request: &mut R,
        order: &mut Order<'_, J>,
    ) -> Exchange {
        match &mut self.connection {
            Pooled::Http1 { conn, .. } => request.to_http1(conn, order).await,
            Pooled::Http2(lent) => request.to_http2(&lent.client, order).await,
        }
    }

    /// Whether the server's proxy refused this proxy's certificate on a shared connection.
    pub(crate) fn was_refused(&self) -> bool {
        matches!(&self.connection, Pooled::Http2(lent) if lent.tag.get())
    }

    /// Judges a shared connection after a request failed. If the request waited without result, and the connection
    /// received nothing meanwhile, the connection seems dead: it gets no more requests, and is closed once its other
    /// requests have ended.
    pub(crate) fn judge(&self, failure: &Failure) {
        let over_time = matches!(failure.cause, Cause::Stalled | Cause::Late | Cause::Deadline);
        if let Pooled::Http2(lent) = &self.connection
            && over_time
            && failure.place == Party::Server
            && lent.client.heard() == self.heard
        {
            lent.retire();
        }
    }

    /// Returns a connection to the pool if it can be used again.
    pub(crate) fn give_back(self, remote: &Remote, done: &Exchange) {
        match self.connection {
            Pooled::Http1 { conn, claim: Some(_claim), .. } if done.server_reusable => {
                remote.pool.put_single(conn);
            }
            Pooled::Http1 { conn, claim: None, .. } if done.server_reusable => {
                remote.pool.put(conn, done.server_idle);
            }
            Pooled::Http1 { .. } | Pooled::Http2(_) => {}
        }
    }
}
