//! A connection to an endpoint for one request: its own, or a stream's place on a shared one.

use std::cell::Cell;
use std::rc::Rc;

use leno_http::{
    Cause, ClientError, ClientPool, Conn, Exchange, Failure, Judge, Lent, Order, Place,
};
use leno_telemetry::Counter;
use leno_tls::{Alpn, Channel};
use tokio::time::Instant;

use crate::Shared;
use crate::backends::Remote;
use crate::connect::{self, OpenError};
use crate::request::Request;

/// The connections to one endpoint that its requests share.
pub(crate) type Clients = ClientPool<Refused, Rc<OpenError>>;

/// Whether the server's proxy has refused the own certificate, of a shared connection.
pub(crate) type Refused = Rc<Cell<bool>>;

/// What a request is sent over.
pub(crate) struct Server {
    /// It was there before this request came.
    pub(crate) reused: bool,
    /// Another proxy is on the other side.
    pub(crate) is_mesh: bool,
    way: Way,
    /// What the shared connection had heard before this request.
    heard: u64,
}

enum Way {
    /// A connection to itself.
    Http1(Conn<Channel>),
    /// A stream of a connection that others share.
    Http2(Lent<Refused>),
}

/// Said in `leno-error` when every stream of every connection to the server stayed in use.
pub(crate) const STREAMS_IN_USE: &str = "streams-in-use";

/// Why there is none. Nothing of the request was sent, so that it can go elsewhere.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GetError {
    #[error("{0}")]
    Connect(Rc<OpenError>),
    #[error("all streams of all connections are in use")]
    Full,
    #[error("the client's deadline has passed")]
    Deadline,
}

impl GetError {
    /// For `leno-error` and metrics.
    pub(crate) fn cause(&self) -> &'static str {
        match self {
            Self::Connect(error) => error.cause(),
            Self::Full => STREAMS_IN_USE,
            Self::Deadline => "deadline",
        }
    }

    /// What the client is answered.
    pub(crate) fn status(&self) -> u16 {
        if matches!(self, Self::Deadline) { 504 } else { 503 }
    }

    /// Whether policy allows the service no more connections.
    pub(crate) fn is_full(&self) -> bool {
        matches!(self, Self::Connect(error) if matches!(**error, OpenError::Full))
    }

    /// Whether the endpoint cannot be connected to.
    pub(crate) fn is_of_endpoint(&self) -> bool {
        matches!(self, Self::Connect(error) if !matches!(**error, OpenError::Full))
    }
}

impl From<OpenError> for GetError {
    fn from(error: OpenError) -> Self {
        Self::Connect(Rc::new(error))
    }
}

impl From<ClientError<Rc<OpenError>>> for GetError {
    fn from(error: ClientError<Rc<OpenError>>) -> Self {
        match error {
            ClientError::Connect(error) => Self::Connect(error),
            ClientError::Full => Self::Full,
        }
    }
}

/// A connection to an endpoint: pooled, or a new one. To another proxy requests of both versions
/// share one HTTP/2 connection; an unmeshed server is spoken to as the client speaks. `deadline` is the
/// mesh's own, beside the client's.
pub(crate) async fn get<R: Request>(
    shared: &Shared,
    remote: &Remote,
    request: &R,
    deadline: Option<Instant>,
) -> Result<Server, GetError> {
    let found = find(shared, remote, request.is_http2());
    match [request.deadline(), deadline].into_iter().flatten().min() {
        None => found.await,
        Some(deadline) => match tokio::time::timeout_at(deadline, found).await {
            Ok(found) => found,
            Err(_) => Err(GetError::Deadline),
        },
    }
}

async fn find(shared: &Shared, remote: &Remote, http2: bool) -> Result<Server, GetError> {
    let is_mesh = connect::is_mesh(shared, remote);
    if (is_mesh || http2) && !remote.http1_only.get() {
        let connect = async || over_http2(shared, remote).await;
        let lent = remote.clients.get(connect).await?;
        if let Some(lent) = lent {
            count(shared, lent.reused);
            if lent.waited {
                shared.registry.count(Counter::OutboundStreamWaited);
            }
            let heard = lent.client.heard();
            return Ok(Server { reused: lent.reused, is_mesh, way: Way::Http2(lent), heard });
        }
    }
    if let Some(pooled) = remote.pool.take() {
        count(shared, true);
        return Ok(Server { reused: true, is_mesh, way: Way::Http1(pooled), heard: 0 });
    }
    let channel = connect::open(shared, remote, &[Alpn::Http1], false).await?;
    count(shared, false);
    Ok(Server { reused: false, is_mesh, way: Way::Http1(Conn::new(channel)), heard: 0 })
}

fn count(shared: &Shared, reused: bool) {
    let counter = if reused { Counter::OutboundPoolReused } else { Counter::OutboundPoolOpened };
    shared.registry.count(counter);
}

/// A connection for streams. None where the other proxy takes only HTTP/1, which is remembered.
async fn over_http2(
    shared: &Shared,
    remote: &Remote,
) -> Result<Option<(Channel, Refused)>, Rc<OpenError>> {
    let channel = connect::open(shared, remote, Alpn::HTTP, false).await?;
    if channel.alpn() == Some(Alpn::Http1) {
        remote.http1_only.set(true);
        remote.pool.put(Conn::new(channel), None);
        return Ok(None);
    }
    let refused = channel.refused();
    Ok(Some((channel, refused)))
}

impl Server {
    /// Relays a request and its response.
    pub(crate) async fn exchange<R: Request, J: Judge>(
        &mut self,
        request: &mut R,
        order: &mut Order<'_, J>,
    ) -> Exchange {
        match &mut self.way {
            Way::Http1(conn) => request.to_http1(conn, order).await,
            Way::Http2(lent) => request.to_http2(&lent.client, order).await,
        }
    }

    /// Whether the server's proxy has refused the own certificate on a shared connection.
    pub(crate) fn was_refused(&self) -> bool {
        matches!(&self.way, Way::Http2(lent) if lent.tag.get())
    }

    /// A request has failed. If it has waited in vain and nothing else has come meanwhile either, the shared
    /// connection does not seem to be alive: no more requests are sent over it, and it is closed once those
    /// on it have ended.
    pub(crate) fn judge(&self, failure: &Failure) {
        let over_time = matches!(failure.cause, Cause::Stalled | Cause::Late | Cause::Deadline);
        if let Way::Http2(lent) = &self.way
            && over_time
            && failure.place == Place::Server
            && lent.client.heard() == self.heard
        {
            lent.retire();
        }
    }

    /// Keeps what can be used again.
    pub(crate) fn give_back(self, remote: &Remote, done: &Exchange) {
        if let Way::Http1(conn) = self.way
            && done.server_reusable
        {
            remote.pool.put(conn, done.server_idle);
        }
    }
}
