//! HTTP/2 connections to a server, each shared by many requests.
#![expect(clippy::arithmetic_side_effects, reason = "a wait with a bound after an instant")]

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

use leno_h2::Client;
use leno_transport::{Io, spawn_contained};
use tokio::sync::oneshot;
use tokio::time::{Duration, Instant};

/// How many connections to one server there may be. Each carries as many requests at once as the server allows (mostly
/// 100 to 250), so this allows thousands of requests.
pub const MAX_CLIENTS: usize = 16;
/// How long to wait for a stream when all connections are in full use.
pub const STREAM_WAIT: Duration = Duration::from_secs(5);

/// A connection to a server, lent to one request.
#[derive(Debug, Clone)]
pub struct Lent<T> {
    /// Opens streams on the connection.
    pub client: Client,
    /// Whether the connection was open before this request came.
    pub reused: bool,
    /// Whether all streams were in use, so that the request waited for one.
    pub waited: bool,
    /// The data that came with the connection.
    pub tag: T,
}

impl<T> Lent<T> {
    /// Opens no more streams on the connection. Open streams continue.
    pub fn retire(&self) {
        self.client.drain();
    }
}

/// Why there is no connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientError<E> {
    /// The attempt to connect failed.
    Connect(E),
    /// All connections were in full use for [`STREAM_WAIT`].
    Full,
}

/// The connections of one worker (a thread of the proxy) to one server that speaks HTTP/2.
///
/// A request gets the first connection that has room. Requests that come while a connection is being opened wait for it
/// together. If all connections are full, or strained ([`Client::is_strained`]), another one is opened, one at a time,
/// up to [`MAX_CLIENTS`].
///
/// Each connection is opened in a task of its own, which continues when the requests that wait for it have left. So if
/// the deadline of a request is shorter than a handshake, the request fails, and the next one finds the connection.
#[derive(Debug)]
pub struct ClientPool<T, E> {
    limits: Rc<leno_h2::Limits>,
    state: Rc<PoolState<T, E>>,
}

/// The state that the pool shares with the task that connects for it.
#[derive(Debug)]
struct PoolState<T, E> {
    connections: RefCell<Vec<PooledClient<T>>>,
    /// Whether a connection is being opened.
    connecting: Cell<bool>,
    /// The requests that wait for the connection that is being opened. Their number is limited by the number of
    /// requests that the proxy accepts.
    waiting: RefCell<Vec<oneshot::Sender<Attempt<E>>>>,
}

#[derive(Debug)]
struct PooledClient<T> {
    client: Client,
    tag: T,
    /// Whether the connection was lent since the last sweep.
    used: Cell<bool>,
    /// When a sweep last found that the connection had been used, or when it was opened.
    idle_since: Cell<Instant>,
}

/// The result of an attempt to connect.
#[derive(Debug, Clone)]
enum Attempt<E> {
    Connected,
    /// The server does not accept HTTP/2.
    OtherProtocol,
    Failed(E),
}

impl<T: Clone + 'static, E: Clone + 'static> ClientPool<T, E> {
    /// A pool without connections. `limits` apply to its connections.
    #[must_use]
    pub fn new(limits: Rc<leno_h2::Limits>) -> Self {
        Self { limits, state: Rc::default() }
    }

    /// Returns a connection with room for a stream, which the caller must open before it awaits anything. If a
    /// connection is needed, `connect` opens it, and limits its own time. If the server does not accept HTTP/2,
    /// `connect` returns `None`, and all requests that wait get `None`.
    ///
    /// # Errors
    /// [`ClientError`]. If opening a connection fails, all requests that wait for it fail, unless a strained connection
    /// has room.
    pub async fn get<S, C>(
        &self,
        connect: impl Fn() -> C,
    ) -> Result<Option<Lent<T>>, ClientError<E>>
    where
        S: Io + 'static,
        C: Future<Output = Result<Option<(S, T)>, E>> + 'static,
    {
        let (mut reused, mut waited) = (true, false);
        loop {
            if let Some(lent) = self.lend_unstrained(reused, waited) {
                return Ok(Some(lent));
            }
            let is_connecting = self.state.connecting.get();
            if is_connecting || self.state.connections.borrow().len() < MAX_CLIENTS {
                let (attempt, outcome) = oneshot::channel();
                self.state.waiting.borrow_mut().push(attempt);
                if !is_connecting {
                    self.connect(connect());
                }
                match outcome.await {
                    Ok(Attempt::Failed(error)) => {
                        let strained = self.lend(reused, waited, |_| true);
                        return strained.map(Some).ok_or(ClientError::Connect(error));
                    }
                    Ok(Attempt::OtherProtocol) => return Ok(None),
                    // If the task that connected has panicked, the next repetition makes another attempt.
                    Ok(Attempt::Connected) | Err(_) => reused = false,
                }
            } else if let Some(lent) = self.lend(reused, waited, |_| true) {
                return Ok(Some(lent));
            } else {
                waited = true;
                self.room().await?;
            }
        }
    }

    /// The connection that [`Self::get`] would return without a wait, if there is one.
    pub fn at_once(&self) -> Option<Lent<T>> {
        self.lend_unstrained(true, false)
    }

    /// Whether a request is in flight on one of the connections.
    pub fn is_in_use(&self) -> bool {
        self.state.connections.borrow().iter().any(|pooled| pooled.client.streams() > 0)
    }

    /// Closes connections that no request has used for `idle`. To be called every few seconds.
    pub fn sweep(&self, idle: Duration) {
        let now = Instant::now();
        self.state.connections.borrow_mut().retain(|pooled| {
            if pooled.used.replace(false) || pooled.client.streams() > 0 {
                pooled.idle_since.set(now);
            }
            pooled.client.is_open() && now < pooled.idle_since.get() + idle
        });
    }

    /// Whether no connection accepts requests, and none is being opened.
    pub fn is_empty(&self) -> bool {
        let connections = self.state.connections.borrow();
        !self.state.connecting.get() && !connections.iter().any(|pooled| pooled.client.is_open())
    }

    fn lend_unstrained(&self, reused: bool, waited: bool) -> Option<Lent<T>> {
        self.lend(reused, waited, |client| !client.is_strained())
    }

    /// Lends the first connection with room for which `suits` returns true, so that unneeded connections grow old.
    fn lend(&self, reused: bool, waited: bool, suits: impl Fn(&Client) -> bool) -> Option<Lent<T>> {
        let mut connections = self.state.connections.borrow_mut();
        connections.retain(|pooled| pooled.client.is_open());
        let suitable =
            |pooled: &&PooledClient<T>| pooled.client.has_room() && suits(&pooled.client);
        let pooled = connections.iter().find(suitable)?;
        pooled.used.set(true);
        Some(Lent { client: pooled.client.clone(), reused, waited, tag: pooled.tag.clone() })
    }

    /// Connects in a task of its own, which ends with the attempt. The caller limits the time of the attempt.
    fn connect<S, C>(&self, connecting: C)
    where
        S: Io + 'static,
        C: Future<Output = Result<Option<(S, T)>, E>> + 'static,
    {
        let (state, limits) = (Rc::clone(&self.state), Rc::clone(&self.limits));
        state.connecting.set(true);
        spawn_contained(async move {
            let under_way = UnderWay { state };
            let attempt = match connecting.await {
                Ok(Some((stream, tag))) => under_way.keep(stream, tag, &limits),
                Ok(None) => Attempt::OtherProtocol,
                Err(error) => Attempt::Failed(error),
            };
            under_way.end(&attempt);
        });
    }

    /// Waits until one of the connections may have room.
    async fn room(&self) -> Result<(), ClientError<E>> {
        let clients: Vec<Client> =
            self.state.connections.borrow().iter().map(|pooled| pooled.client.clone()).collect();
        let mut openings: Vec<_> = clients.iter().map(Client::ready).collect();
        // The next repetition leaves out a connection that has closed meanwhile.
        let any = poll_fn(|cx| {
            let ready = openings.iter_mut().any(|opening| Pin::new(opening).poll(cx).is_ready());
            if ready { Poll::Ready(()) } else { Poll::Pending }
        });
        tokio::time::timeout(STREAM_WAIT, any).await.map_err(|_| ClientError::Full)
    }
}

/// An attempt to connect. It ends when this value is dropped.
struct UnderWay<T, E> {
    state: Rc<PoolState<T, E>>,
}

impl<T, E: Clone> UnderWay<T, E> {
    /// Adds the connection to the pool, unless the pool was dropped meanwhile.
    fn keep<S: Io + 'static>(&self, stream: S, tag: T, limits: &Rc<leno_h2::Limits>) -> Attempt<E> {
        if Rc::strong_count(&self.state) == 1 {
            return Attempt::Connected;
        }
        let (client, driver) = leno_h2::client(stream, limits);
        spawn_contained(async move {
            if let Err(error) = driver.run().await {
                tracing::debug!(%error, "a connection to a server ended");
            }
        });
        let (used, idle_since) = (Cell::new(true), Cell::new(Instant::now()));
        let pooled = PooledClient { client, tag, used, idle_since };
        self.state.connections.borrow_mut().push(pooled);
        Attempt::Connected
    }

    fn end(self, attempt: &Attempt<E>) {
        self.state.connecting.set(false);
        for waiting in self.state.waiting.take() {
            // The request may have left.
            let _left = waiting.send(attempt.clone());
        }
    }
}

/// If the attempt panicked, requests still wait, and make another attempt.
impl<T, E> Drop for UnderWay<T, E> {
    fn drop(&mut self) {
        self.state.connecting.set(false);
        self.state.waiting.take();
    }
}

impl<T, E> Default for PoolState<T, E> {
    fn default() -> Self {
        Self {
            connections: RefCell::default(),
            connecting: Cell::new(false),
            waiting: RefCell::default(),
        }
    }
}

#[cfg(test)]
mod tests;
