//! The connections of one worker to one server: made, shared, kept and closed.
//!
//! ```text
//!            ┌─ HTTP/2 ─► ClientPool: connections that requests share
//! request ─► Pool ─ either: by whether others are in flight (Single)
//!            └─ HTTP/1 ─► Dialer: connections being made ─► ConnPool: idle ones, one request at a time each
//! ```
//!
//! A connection is made in a task of its own: a request that leaves, because its deadline has passed or
//! its client has gone, leaves the attempt to the next one. How to connect, and what a failure is, the
//! caller says. This crate knows no endpoints, no policies and no TLS; connections that are relayed as
//! bytes belong to one client and end with it, so that none is pooled.
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

/// The connections of one worker to one server, of both versions of HTTP. `S` is a connection of HTTP/1,
/// `T` what comes with one of HTTP/2, `E` why there is none.
#[derive(Debug)]
pub struct Pool<S, T, E> {
    http1: Dialer<S, E>,
    http2: ClientPool<T, Rc<E>>,
    /// Which request has the connection of those that come alone.
    single: Single,
    /// The server has agreed on HTTP/1 when HTTP/2 was offered.
    http1_only: Rc<Cell<bool>>,
    /// How long a shared connection waits for its next request.
    shared_idle: Duration,
}

/// What a request goes over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// HTTP/1.
    Http1,
    /// HTTP/2, unless the server is known to speak HTTP/1 alone.
    Http2,
    /// HTTP/1 while no other request to the server is in flight or was a moment ago, as far as a connection is made for
    /// that; HTTP/2 otherwise. For a server that speaks both.
    Either,
}

/// A connection for one request.
#[derive(Debug)]
pub enum Pooled<S, T> {
    /// For this request alone.
    Http1 {
        /// The connection.
        conn: Conn<S>,
        /// It was there before this request came.
        reused: bool,
        /// It is the one for requests that come alone ([`Carrier::Either`]).
        claim: Option<Claim>,
    },
    /// Shared with other requests.
    Http2(Lent<T>),
}

/// What a server has agreed on when HTTP/2 was offered to it.
#[derive(Debug)]
pub enum Agreed<S, T> {
    /// HTTP/1 on this connection.
    Http1(S),
    /// HTTP/2, and what comes with the connection.
    Http2(S, T),
}

/// Why there is no connection. Nothing of the request was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolError<E> {
    /// The attempt to connect failed.
    Connect(Rc<E>),
    /// All streams of all connections stayed in use for [`STREAM_WAIT`].
    Full,
    /// There was none within [`DIAL_WAIT`], since many others are being made.
    Late,
}

impl<S: Io + 'static, T: Clone + 'static, E: 'static> Pool<S, T, E> {
    /// Without connections. `limits` are for those of HTTP/2, of which an idle one is kept for
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

    /// A connection for a request over `carrier`: one that waits, a stream's place, or a new one. `over_http2` and
    /// `over_http1` connect, within a time of their own.
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

    /// What [`Self::get`] gives without a wait, if it does: most requests need no future for it.
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

    /// Makes the connection for requests that come alone, if enough of them went over HTTP/2 for lack of one. No
    /// request waits for it. `connect` connects, within a time of its own.
    pub fn prepare<B>(&self, connect: impl FnOnce() -> B)
    where
        B: Future<Output = Result<S, E>> + 'static,
    {
        if self.single.is_due() && !self.http1_only.get() && !self.http2.is_in_use() {
            self.single.made();
            self.http1.dial_ahead(connect());
        }
    }

    /// A stream's place on a connection to a server that is known to speak HTTP/2.
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

    /// An idle connection of HTTP/1 that is still good.
    pub fn take(&self) -> Option<Conn<S>> {
        self.http1.idle().take()
    }

    /// Keeps a connection that stands between two exchanges; `announced` is how long the server says that
    /// it keeps it.
    pub fn put(&self, conn: Conn<S>, announced: Option<Duration>) {
        self.http1.idle().put(conn, announced);
    }

    /// The same for the connection of requests that come alone. It waits as long as a shared one.
    pub fn put_single(&self, conn: Conn<S>) {
        self.http1.idle().keep(conn, self.shared_idle);
    }

    /// Closes what is too old or was closed by the server. To be called every few seconds.
    pub fn sweep(&self) {
        self.http1.idle().sweep();
        self.http2.sweep(self.shared_idle);
    }

    /// Whether a shared connection is open, or is being made.
    pub fn is_shared(&self) -> bool {
        !self.http2.is_empty()
    }

    /// Whether no connection waits for a request, or is being made for several.
    pub fn is_empty(&self) -> bool {
        self.http1.idle().is_empty() && self.http2.is_empty()
    }

    /// The right to a new connection for requests that come alone, if one is to be made.
    fn claim_new(&self, carrier: Carrier) -> Option<Claim> {
        if carrier != Carrier::Either || !self.single.is_due() || self.http2.is_in_use() {
            return None;
        }
        let claim = self.single.claim()?;
        self.single.made();
        Some(claim)
    }

    /// Keeps what a server has agreed on.
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
