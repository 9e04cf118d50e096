//! Opens HTTP/1 connections to a server, each in a task of its own.
//!
//! ```text
//! dial() ─► waits ─┬─ an attempt succeeds ─► the request that has waited longest gets the connection
//!                  ├─ an attempt fails ────► the request that has waited longest gets the error
//!                  └─ an attempt ends, and more requests wait than attempts are left
//!                                    ──────► the request that came last may start an attempt of its own
//! an attempt succeeds, and no request waits any more ─► the connection joins the idle ones
//! ```
#![expect(clippy::arithmetic_side_effects, reason = "a wait with a bound after an instant")]

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use leno_http::Conn;
use leno_transport::{Io, spawn_contained};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use crate::idle::{ConnPool, MAX_IDLE_CONNS};

/// How many connections to one server are opened at the same time. If all requests that wait for them leave, the pool
/// can keep every one of the connections.
pub const MAX_CONNECTING: usize = MAX_IDLE_CONNS;

/// How long a request waits for a new connection: long enough for a connection with its handshake, and for some earlier
/// attempts to end.
pub const DIAL_WAIT: Duration = Duration::from_secs(10);

/// Why there is no new connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DialError<E> {
    /// An attempt failed.
    Failed(E),
    /// No connection was available within [`DIAL_WAIT`].
    Late,
}

/// The HTTP/1 connections of one worker (a thread of the proxy) to one server: idle ones, and those that are being
/// opened.
///
/// If a request leaves because its deadline has passed or its client is gone, the attempt that was started for it
/// continues. The connection then serves the next request that waits, or becomes idle.
#[derive(Debug)]
pub struct Dialer<S, E> {
    state: Rc<DialerState<S, E>>,
}

#[derive(Debug)]
struct DialerState<S, E> {
    idle: ConnPool<S>,
    /// The number of attempts in progress.
    connecting: Cell<usize>,
    /// The waiting requests. Their number is limited by the number of requests that the proxy accepts.
    waiting: RefCell<VecDeque<oneshot::Sender<Dialed<S, E>>>>,
}

/// What a waiting request receives.
#[derive(Debug)]
enum Dialed<S, E> {
    Connected(Conn<S>),
    Failed(E),
    /// An attempt has ended, and some requests have no attempt of their own, so this one may start an attempt.
    Turn,
}

impl<S, E> Clone for Dialer<S, E> {
    fn clone(&self) -> Self {
        Self { state: Rc::clone(&self.state) }
    }
}

impl<S, E> Default for Dialer<S, E> {
    fn default() -> Self {
        let (connecting, waiting) = (Cell::new(0), RefCell::default());
        Self { state: Rc::new(DialerState { idle: ConnPool::default(), connecting, waiting }) }
    }
}

impl<S: Io + 'static, E: 'static> Dialer<S, E> {
    /// The idle connections.
    pub fn idle(&self) -> &ConnPool<S> {
        &self.state.idle
    }

    /// Opens a connection that was not used before. `connect` connects, and limits its own time.
    ///
    /// # Errors
    /// [`DialError`]; nothing of the request was sent.
    pub async fn dial<C>(&self, connect: impl Fn() -> C) -> Result<Conn<S>, DialError<E>>
    where
        C: Future<Output = Result<S, E>> + 'static,
    {
        let deadline = Instant::now() + DIAL_WAIT;
        loop {
            let (sender, receiver) = oneshot::channel();
            let mut waiter = Waiter { state: &self.state, receiver };
            if self.state.enqueue(sender) {
                self.begin(connect());
            }
            match timeout_at(deadline, &mut waiter.receiver).await {
                Ok(Ok(Dialed::Connected(conn))) => return Ok(conn),
                Ok(Ok(Dialed::Failed(error))) => return Err(DialError::Failed(error)),
                Ok(Ok(Dialed::Turn) | Err(_)) => {}
                Err(_late) => return Err(DialError::Late),
            }
        }
    }
}

impl<S: Io + 'static, E: 'static> Dialer<S, E> {
    /// Opens a connection before a request needs it, and adds it to the idle ones. A failure is not reported to any
    /// request.
    pub fn dial_ahead<C>(&self, connecting: C)
    where
        C: Future<Output = Result<S, E>> + 'static,
    {
        if self.state.connecting.get() < MAX_CONNECTING {
            self.begin(connecting);
        }
    }

    fn begin<C>(&self, connecting: C)
    where
        C: Future<Output = Result<S, E>> + 'static,
    {
        self.state.connecting.set(self.state.connecting.get().saturating_add(1));
        let under_way = UnderWay { state: Rc::clone(&self.state) };
        spawn_contained(async move { under_way.end(connecting.await) });
    }
}

impl<S, E> DialerState<S, E> {
    /// Adds a request to those that wait. Returns whether it needs an attempt of its own.
    fn enqueue(&self, sender: oneshot::Sender<Dialed<S, E>>) -> bool {
        let mut waiting = self.waiting.borrow_mut();
        waiting.retain(|sender| !sender.is_closed());
        waiting.push_back(sender);
        self.connecting.get() < waiting.len().min(MAX_CONNECTING)
    }

    /// Sends an outcome to a waiting request. A connection or a failure goes to the request that has waited longest. A
    /// [`Dialed::Turn`] goes to the request that came last, because the attempts in progress are for those before it. A
    /// connection that no request waits for becomes idle.
    fn give(&self, mut dialed: Dialed<S, E>)
    where
        S: Io + 'static,
    {
        loop {
            let next = match dialed {
                Dialed::Turn => self.waiting.borrow_mut().pop_back(),
                _ => self.waiting.borrow_mut().pop_front(),
            };
            match (next, dialed) {
                (Some(sender), given) => match sender.send(given) {
                    Ok(()) => return,
                    // This request has left.
                    Err(returned) => dialed = returned,
                },
                (None, Dialed::Connected(conn)) => {
                    tracing::debug!("a connection was made that no request waits for any more");
                    return self.idle.put(conn, None);
                }
                (None, _) => return,
            }
        }
    }
}

/// A waiting request. If it leaves, an outcome that it has not taken goes to the next waiting request.
struct Waiter<'a, S: Io + 'static, E> {
    state: &'a DialerState<S, E>,
    receiver: oneshot::Receiver<Dialed<S, E>>,
}

impl<S: Io + 'static, E> Drop for Waiter<'_, S, E> {
    fn drop(&mut self) {
        self.receiver.close();
        if let Ok(dialed) = self.receiver.try_recv() {
            self.state.give(dialed);
        }
    }
}

/// An attempt to connect. It ends when this value is dropped.
struct UnderWay<S: Io + 'static, E> {
    state: Rc<DialerState<S, E>>,
}

impl<S: Io + 'static, E> UnderWay<S, E> {
    fn end(self, outcome: Result<S, E>) {
        self.state.give(match outcome {
            Ok(stream) => Dialed::Connected(Conn::new(stream)),
            Err(error) => Dialed::Failed(error),
        });
    }
}

impl<S: Io + 'static, E> Drop for UnderWay<S, E> {
    fn drop(&mut self) {
        let connecting = self.state.connecting.get().saturating_sub(1);
        self.state.connecting.set(connecting);
        self.state.waiting.borrow_mut().retain(|sender| !sender.is_closed());
        // If some requests have no attempt of their own, one of them may start one.
        if self.state.waiting.borrow().len() > connecting {
            self.state.give(Dialed::Turn);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{DuplexStream, duplex};
    use tokio::task::{LocalSet, yield_now};
    use tokio::time::{sleep, timeout};

    use super::*;

    type Pool = Dialer<DuplexStream, &'static str>;

    async fn local<T>(work: impl Future<Output = T>) -> T {
        LocalSet::new().run_until(work).await
    }

    async fn after(wait: Duration) -> Result<DuplexStream, &'static str> {
        sleep(wait).await;
        let (near, far) = duplex(64);
        // The other end must stay open.
        std::mem::forget(far);
        Ok(near)
    }

    const HANDSHAKE: Duration = Duration::from_millis(300);
    const DEADLINE: Duration = Duration::from_millis(150);

    #[tokio::test(start_paused = true)]
    async fn an_attempt_outlives_its_request_and_serves_the_next() {
        local(async {
            let (pool, made) = (Pool::default(), Rc::new(Cell::new(0)));
            let connect = || {
                made.set(made.get() + 1);
                after(HANDSHAKE)
            };
            assert!(timeout(DEADLINE, pool.dial(connect)).await.is_err());
            // The second request comes while the attempt for the first one is in progress.
            assert!(timeout(DEADLINE + DEADLINE, pool.dial(connect)).await.unwrap().is_ok());
            assert_eq!(made.get(), 1);
            assert!(timeout(DEADLINE, pool.dial(connect)).await.is_err());
            sleep(HANDSHAKE).await;
            assert_eq!((made.get(), pool.idle().len(), pool.state.connecting.get()), (2, 1, 0));
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn the_attempts_of_requests_that_left_are_bounded() {
        local(async {
            let (pool, made) = (Pool::default(), Rc::new(Cell::new(0)));
            let connect = || {
                made.set(made.get() + 1);
                after(HANDSHAKE)
            };
            for _ in 0..10 {
                let all: Vec<_> = (0..MAX_CONNECTING).map(|_| pool.dial(connect)).collect();
                let all = futures(all);
                assert!(timeout(Duration::from_millis(1), all).await.is_err());
            }
            assert_eq!((made.get(), pool.state.connecting.get()), (MAX_CONNECTING, MAX_CONNECTING));
            sleep(HANDSHAKE).await;
            assert_eq!((pool.idle().len(), pool.state.connecting.get()), (MAX_IDLE_CONNS, 0));
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn requests_beyond_the_bound_have_their_turn() {
        local(async {
            let (pool, made) = (Pool::default(), Rc::new(Cell::new(0)));
            let connect = || {
                made.set(made.get() + 1);
                after(HANDSHAKE)
            };
            let all: Vec<_> = (0..MAX_CONNECTING + 3).map(|_| pool.dial(connect)).collect();
            let began = Instant::now();
            assert!(futures(all).await.iter().all(Result::is_ok));
            assert_eq!((made.get(), began.elapsed()), (MAX_CONNECTING + 3, 2 * HANDSHAKE));
            assert_eq!(pool.state.connecting.get(), 0);
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn each_failure_fails_one_request() {
        local(async {
            let pool = Pool::default();
            let fails = || async {
                yield_now().await;
                Err("refused")
            };
            let (one, two) = tokio::join!(pool.dial(fails), pool.dial(fails));
            for outcome in [one, two] {
                assert_eq!(outcome.err(), Some(DialError::Failed("refused")));
            }
            let never = pool.dial(std::future::pending);
            assert_eq!(never.await.err(), Some(DialError::Late));
        })
        .await;
    }

    /// Polls all futures concurrently and returns their results.
    async fn futures<F: Future>(all: Vec<F>) -> Vec<F::Output> {
        let mut all: Vec<_> = all.into_iter().map(|one| (Box::pin(one), None)).collect();
        std::future::poll_fn(|cx| {
            for (one, output) in &mut all {
                if output.is_none()
                    && let std::task::Poll::Ready(done) = one.as_mut().poll(cx)
                {
                    *output = Some(done);
                }
            }
            let over = all.iter().all(|(_, output)| output.is_some());
            if over { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
        })
        .await;
        all.into_iter().filter_map(|(_, output)| output).collect()
    }
}
