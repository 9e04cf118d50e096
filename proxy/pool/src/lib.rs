//! The connections of one worker (a thread of the proxy) to one server: opened, shared, kept and closed.
//!
//! ```text
//!            ┌─ HTTP/2 ─► ClientPool: connections that requests share
//! request ─► Pool
//!            └─ HTTP/1 ─► ConnPool: idle connections, each for one request at a time
//!                             └─ none is idle ─► Dialer: opens one
//! ```
//! If the server accepts both versions, [`Carrier::Either`] says which one a request uses.
//!
//! Each connection is opened in a task of its own. So if a request leaves because its deadline has passed or its client
//! is gone, the attempt continues for the next request. The caller defines how to connect, and what a failure is. This
//! crate does not deal with endpoints, policies or TLS. Opaque connections belong to one client and end with it, so
//! they are not pooled.
//!
//! Read first: [`Pool`], which chooses the version.

#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]

mod dial;
mod idle;
mod shared;
mod single;

use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;

use leno_http::Conn;
use leno_transport::Io;
use tokio::time::Duration;

pub use dial::{DIAL_WAIT, DialError, Dialer, MAX_CONNECTING};
pub use idle::{CONN_IDLE, ConnPool, MAX_IDLE_CONNS, MESH_IDLE};
pub use shared::{ClientError, ClientPool, Lent, MAX_CLIENTS, STREAM_WAIT};
pub use single::{ALONE_IN_A_ROW, Claim, REQUESTS_A_CONNECTION};

use single::Single;

/// The connections of one worker to one server, over both versions of HTTP. `S` is the stream of an HTTP/1 connection,
/// `T` the data that the caller attaches to an HTTP/2 connection, and `E` the reason why there is no connection.
#[derive(Debug)]
pub struct Pool<S, T, E> {
    http1: Dialer<S, E>,
    http2: ClientPool<T, Rc<E>>,
    /// The state of the HTTP/1 connection for requests that come alone ([`Carrier::Either`]).
    single: Single,
    /// Whether the server agreed on HTTP/1 although HTTP/2 was offered.
    http1_only: Rc<Cell<bool>>,
    /// How long a shared connection waits for its next request.
    shared_idle: Duration,
}

/// Which kind of connection a request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// HTTP/1.
    Http1,
    /// HTTP/2, unless the server is known to accept only HTTP/1.
    Http2,
    /// For a server that accepts both. HTTP/1 if this request and those just before it came alone ([`ALONE_IN_A_ROW`]),
    /// and the HTTP/1 connection for such requests is idle or may be opened. Otherwise HTTP/2.
    Either,
}

/// A connection for one request.
#[derive(Debug)]
pub enum Pooled<S, T> {
    /// A connection for this request alone.
    Http1 {
        /// The connection.
        conn: Conn<S>,
        /// Whether the connection was open before this request came.
        reused: bool,
        /// The claim to the connection, if it is the one for requests that come alone ([`Carrier::Either`]).
        claim: Option<Claim>,
    },
    /// A connection that is shared with other requests.
    Http2(Lent<T>),
}

/// The version on which a server agreed when HTTP/2 was offered.
#[derive(Debug)]
pub enum Agreed<S, T> {
    /// HTTP/1 on this connection.
    Http1(S),
    /// HTTP/2, with the data that comes with the connection.
    Http2(S, T),
}

/// Why there is no connection. Nothing of the request was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolError<E> {
    /// The attempt to connect failed.
    Connect(Rc<E>),
    /// All streams of all connections stayed in use for [`STREAM_WAIT`].
    Full,
    /// No connection was available within [`DIAL_WAIT`], because many others are being opened.
    Late,
}

impl<S: Io + 'static, T: Clone + 'static, E: 'static> Pool<S, T, E> {
    /// A pool without connections. `limits` apply to HTTP/2 connections. An idle HTTP/2 connection is kept for
    /// `shared_idle`.
    #[must_use]
    pub fn new(limits: Rc<leno_h2::Limits>, shared_idle: Duration) -> Self {
        Self {
            http1: Dialer::default(),
            http2: ClientPool::new(limits),
            single: Single::default(),
            http1_only: Rc::default(),
            shared_idle,
        }
    }

    /// Returns a connection for a request over `carrier`: an idle one, a stream of a shared one, or a new one.
    /// `over_http2` and `over_http1` connect, and limit their own time.
    ///
    /// # Errors
    /// [`PoolError`].
    pub async fn get<A, B>(
        &self,
        carrier: Carrier,
        over_http2: impl Fn() -> A,
        over_http1: impl Fn() -> B,
    ) -> Result<Pooled<S, T>, PoolError<E>>
    where
        A: Future<Output = Result<Agreed<S, T>, E>> + 'static,
        B: Future<Output = Result<S, E>> + 'static,
    {
        let mut claim = None;
        if carrier != Carrier::Http1 && !self.http1_only.get() {
            claim = self.claim_new(carrier);
            if claim.is_none()
                && let Some(lent) = self.http2.get(|| self.agree(over_http2())).await?
            {
                return Ok(Pooled::Http2(lent));
            }
        }
        if claim.is_none()
            && let Some(pooled) = self.at_once(Carrier::Http1)
        {
            return Ok(pooled);
        }
        let conn = self.http1.dial(over_http1).await?;
        Ok(Pooled::Http1 { conn, reused: false, claim })
    }

    /// The connection that [`Self::get`] would return without a wait, if there is one. Most requests thus need no
    /// future.
    pub fn at_once(&self, carrier: Carrier) -> Option<Pooled<S, T>> {
        if carrier == Carrier::Http1 || self.http1_only.get() {
            let conn = self.http1.idle().take()?;
            return Some(Pooled::Http1 { conn, reused: true, claim: None });
        }
        if carrier == Carrier::Either
            && self.single.counts_as_alone(self.http2.is_in_use())
            && let Some(claim) = self.single.claim()
            && let Some(conn) = self.http1.idle().take()
        {
            return Some(Pooled::Http1 { conn, reused: true, claim: Some(claim) });
        }
        self.http2.at_once().map(Pooled::Http2)
    }

    /// Opens the connection for requests that come alone, if enough of them have used HTTP/2 because it did not exist.
    /// No request waits for it. `connect` connects, and limits its own time.
    pub fn prepare<B>(&self, connect: impl FnOnce() -> B)
    where
        B: Future<Output = Result<S, E>> + 'static,
    {
        if self.single.is_due() && !self.http1_only.get() && !self.http2.is_in_use() {
            self.single.made();
            self.http1.dial_ahead(connect());
        }
    }

    /// Returns a connection with room for a stream, to a server that is known to accept HTTP/2.
    ///
    /// # Errors
    /// [`PoolError`].
    pub async fn stream<C, O>(&self, connect: impl Fn() -> C) -> Result<Lent<T>, PoolError<E>>
    where
        O: Io + 'static,
        C: Future<Output = Result<(O, T), E>> + 'static,
    {
        let connect = || {
            let connecting = connect();
            async move { connecting.await.map(Some).map_err(Rc::new) }
        };
        self.http2.get(connect).await?.ok_or(PoolError::Full)
    }

    /// Takes an idle HTTP/1 connection that is still open.
    pub fn take(&self) -> Option<Conn<S>> {
        self.http1.idle().take()
    }

    /// Keeps a connection between two exchanges. `announced` is how long the server has said that it keeps the
    /// connection.
    pub fn put(&self, conn: Conn<S>, announced: Option<Duration>) {
        self.http1.idle().put(conn, announced);
    }

    /// Keeps the connection for requests that come alone. It is kept for as long as a shared connection.
    pub fn put_single(&self, conn: Conn<S>) {
        self.http1.idle().keep(conn, self.shared_idle);
    }

    /// Closes connections that are too old, or that the server has closed. To be called every few seconds.
    pub fn sweep(&self) {
        self.http1.idle().sweep();
        self.http2.sweep(self.shared_idle);
    }

    /// Whether a shared connection is open or being opened.
    pub fn is_shared(&self) -> bool {
        !self.http2.is_empty()
    }

    /// Whether there is neither an idle connection nor a shared connection that is open or being opened.
    pub fn is_empty(&self) -> bool {
        self.http1.idle().is_empty() && self.http2.is_empty()
    }

    /// Claims a new connection for requests that come alone, if it is time for one.
    fn claim_new(&self, carrier: Carrier) -> Option<Claim> {
        if carrier != Carrier::Either || !self.single.is_due() || self.http2.is_in_use() {
            return None;
        }
        let claim = self.single.claim()?;
        self.single.made();
        Some(claim)
    }

    /// Waits for a connection that was offered HTTP/2. If the server agreed on HTTP/1, records that, adds the
    /// connection to the idle ones and returns `None`.
    fn agree<A>(
        &self,
        connecting: A,
    ) -> impl Future<Output = Result<Option<(S, T)>, Rc<E>>> + use<S, T, E, A>
    where
        A: Future<Output = Result<Agreed<S, T>, E>>,
    {
        let (http1, http1_only) = (self.http1.clone(), Rc::clone(&self.http1_only));
        async move {
            match connecting.await.map_err(Rc::new)? {
                Agreed::Http2(stream, tag) => Ok(Some((stream, tag))),
                Agreed::Http1(stream) => {
                    http1_only.set(true);
                    http1.idle().put(Conn::new(stream), None);
                    Ok(None)
                }
            }
        }
    }
}

impl<E> From<DialError<E>> for PoolError<E> {
    fn from(error: DialError<E>) -> Self {
        match error {
            DialError::Failed(error) => Self::Connect(Rc::new(error)),
            DialError::Late => Self::Late,
        }
    }
}

impl<E> From<ClientError<Rc<E>>> for PoolError<E> {
    fn from(error: ClientError<Rc<E>>) -> Self {
        match error {
            ClientError::Connect(error) => Self::Connect(error),
            ClientError::Full => Self::Full,
        }
    }
}

#[cfg(test)]
mod tests;
