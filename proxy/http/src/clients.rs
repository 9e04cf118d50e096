//! HTTP/2 connections to a server, each shared by many requests.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

use leno_h2::Client;
use leno_transport::{Io, spawn_contained};
use tokio::sync::oneshot;
use tokio::time::{Duration, Instant};

use crate::reuse::CONN_IDLE;

/// Most connections to one server. Each takes as many requests at once as the server allows
/// (mostly 100 to 250), so that this is thousands of them.
pub const MAX_CLIENTS: usize = 16;
/// Longest wait for a stream when all connections are in full use.
pub const STREAM_WAIT: Duration = Duration::from_secs(5);

/// A connection to a server, lent to one request.
#[derive(Debug, Clone)]
pub struct Lent<T> {
    /// Opens streams on it.
    pub client: Client,
    /// It was there before this request came.
    pub reused: bool,
    /// All streams were in use, and one was waited for.
    pub waited: bool,
    /// What came with the connection when it was made.
    pub tag: T,
}

impl<T> Lent<T> {
    /// Opens no more streams on it, because it does not seem to be alive.
    pub fn retire(&self) {
        self.client.drain();
    }
}

/// Why no connection could be had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientError<E> {
    /// None could be made.
    Connect(E),
    /// All of them were in full use for [`STREAM_WAIT`].
    Full,
}

/// The connections of one worker to one server that speaks HTTP/2.
///
/// Requests share the first connection that has room; those that come while it is being made wait
/// for it together. Where all are full, or strained ([`Client::is_strained`]), another one is made,
/// up to [`MAX_CLIENTS`].
#[derive(Debug)]
pub struct ClientPool<T, E> {
    limits: Rc<leno_h2::Limits>,
    kept: RefCell<Vec<Kept<T>>>,
    connecting: Cell<bool>,
    /// Those who wait for the connection that is being made; bounded by the requests taken.
    waiting: RefCell<Vec<oneshot::Sender<Made<E>>>>,
}

#[derive(Debug)]
struct Kept<T> {
    client: Client,
    tag: T,
    /// It was lent since the last sweep.
    used: Cell<bool>,
    idle_since: Cell<Instant>,
}

/// What became of a connection that was to be made.
#[derive(Debug, Clone)]
enum Made<E> {
    Connected,
    /// The server speaks no HTTP/2.
    Other,
    Failed(E),
}

impl<T: Clone, E: Clone> ClientPool<T, E> {
    /// Without connections; `limits` for those to come.
    #[must_use]
    pub fn new(limits: Rc<leno_h2::Limits>) -> Self {
        Self {
            limits,
            kept: RefCell::default(),
            connecting: Cell::new(false),
            waiting: RefCell::default(),
        }
    }

    /// A connection with room for a stream, which is to be opened before anything is awaited.
    /// `connect` makes one where that is needed: `None` when the server turned out to speak no
    /// HTTP/2, which all who wait are told.
    ///
    /// # Errors
    /// [`ClientError`]. When making a connection fails, all who wait for it fail.
    pub async fn get<S: Io + 'static>(
        &self,
        connect: impl AsyncFnOnce() -> Result<Option<(S, T)>, E>,
    ) -> Result<Option<Lent<T>>, ClientError<E>> {
        let (mut reused, mut waited) = (true, false);
        loop {
            if let Some(lent) = self.lend(reused, waited, |client| !client.is_strained()) {
                return Ok(Some(lent));
            }
            if self.connecting.get() {
                let (made, outcome) = oneshot::channel();
                self.waiting.borrow_mut().push(made);
                match outcome.await {
                    Ok(Made::Failed(error)) => return Err(ClientError::Connect(error)),
                    Ok(Made::Other) => return Ok(None),
                    // Whoever was making it has gone: somebody else must.
                    Ok(Made::Connected) | Err(_) => reused = false,
                }
            } else if self.kept.borrow().len() < MAX_CLIENTS {
                let made = self.make(connect).await;
                return match made {
                    Err(error) => self.lend(reused, waited, |_| true).map(Some).ok_or(error),
                    made => made,
                };
            } else if let Some(lent) = self.lend(reused, waited, |_| true) {
                return Ok(Some(lent));
            } else {
                waited = true;
                self.room().await?;
            }
        }
    }

    /// Closes what nobody has used for [`CONN_IDLE`]. To be called every few seconds.
    pub fn sweep(&self) {
        let now = Instant::now();
        self.kept.borrow_mut().retain(|kept| {
            if kept.used.replace(false) || kept.client.streams() > 0 {
                kept.idle_since.set(now);
            }
            kept.client.is_open() && now < kept.idle_since.get() + CONN_IDLE
        });
    }

    /// Whether there is no connection that takes requests, and none is being made.
    pub fn is_empty(&self) -> bool {
        !self.connecting.get() && !self.kept.borrow().iter().any(|kept| kept.client.is_open())
    }

    /// The first connection with room that `suits`, so that those not needed grow old.
    fn lend(&self, reused: bool, waited: bool, suits: impl Fn(&Client) -> bool) -> Option<Lent<T>> {
        let mut kept = self.kept.borrow_mut();
        kept.retain(|kept| kept.client.is_open());
        let found = kept.iter().find(|kept| kept.client.has_room() && suits(&kept.client))?;
        found.used.set(true);
        let (client, tag) = (found.client.clone(), found.tag.clone());
        Some(Lent { client, reused, waited, tag })
    }

    async fn make<S: Io + 'static>(
        &self,
        connect: impl AsyncFnOnce() -> Result<Option<(S, T)>, E>,
    ) -> Result<Option<Lent<T>>, ClientError<E>> {
        let making = Making::begin(self);
        match connect().await {
            Ok(Some((stream, tag))) => {
                let (client, driver) = leno_h2::client(stream, &self.limits);
                spawn_contained(async move {
                    if let Err(error) = driver.run().await {
                        tracing::debug!(%error, "a connection to a server ended");
                    }
                });
                let idle_since = Cell::new(Instant::now());
                let used = Cell::new(true);
                let lent =
                    Lent { client: client.clone(), reused: false, waited: false, tag: tag.clone() };
                self.kept.borrow_mut().push(Kept { client, tag, used, idle_since });
                making.end(&Made::Connected);
                Ok(Some(lent))
            }
            Ok(None) => {
                making.end(&Made::Other);
                Ok(None)
            }
            Err(error) => {
                making.end(&Made::Failed(error.clone()));
                Err(ClientError::Connect(error))
            }
        }
    }

    /// Waits until one of the connections may have room.
    async fn room(&self) -> Result<(), ClientError<E>> {
        let clients: Vec<Client> =
            self.kept.borrow().iter().map(|kept| kept.client.clone()).collect();
        let mut openings: Vec<_> = clients.iter().map(Client::ready).collect();
        // One that has closed meanwhile is left out by the next look.
        let any = poll_fn(|cx| {
            let ready = openings.iter_mut().any(|opening| Pin::new(opening).poll(cx).is_ready());
            if ready { Poll::Ready(()) } else { Poll::Pending }
        });
        tokio::time::timeout(STREAM_WAIT, any).await.map_err(|_| ClientError::Full)
    }
}

/// A connection being made. Dropped before its end, because the request has gone, it leaves the
/// making to the next one.
struct Making<'a, T, E> {
    pool: &'a ClientPool<T, E>,
}

impl<'a, T, E> Making<'a, T, E> {
    fn begin(pool: &'a ClientPool<T, E>) -> Self {
        pool.connecting.set(true);
        Self { pool }
    }

    fn end(self, made: &Made<E>)
    where
        E: Clone,
    {
        for waiting in self.pool.waiting.take() {
            // It may have given up.
            let _gone = waiting.send(made.clone());
        }
    }
}

impl<T, E> Drop for Making<'_, T, E> {
    fn drop(&mut self) {
        self.pool.connecting.set(false);
        self.pool.waiting.take();
    }
}

#[cfg(test)]
mod tests;
