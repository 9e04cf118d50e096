//! Connections to a server that wait for another request.
#![expect(clippy::arithmetic_side_effects, reason = "a wait with a bound after an instant")]

use std::cell::RefCell;
use std::time::Duration;

use leno_http::{Conn, Limits};
use leno_transport::{Io, spawn_contained};
use tokio::time::Instant;

/// How many idle connections to one server are kept. HTTP/1 needs one for each request in flight; connections beyond
/// this number are closed after use.
pub const MAX_IDLE_CONNS: usize = 256;
/// How long a connection waits for its next request. Servers commonly close after 60 s or more (Node.js after 5 s,
/// which it announces in `Keep-Alive: timeout`). The proxy closes first, so that no request is sent on a connection
/// that the server is just closing.
pub const CONN_IDLE: Duration = Duration::from_secs(50);
/// How long a connection between two proxies waits for its next request. It is long, so that a workload that calls
/// another one every few minutes does not need a handshake each time. The proxy need not close first: the server's
/// proxy keeps idle connections for an hour, and reports which requests it has not seen when it closes one.
pub const MESH_IDLE: Duration = Duration::from_secs(900);
/// The proxy closes a connection this much earlier than the server has announced to close it.
const ANNOUNCED_MARGIN: Duration = Duration::from_secs(1);

/// The idle connections of one worker (a thread of the proxy) to one server.
#[derive(Debug)]
pub struct ConnPool<S> {
    idle: RefCell<Vec<Idle<S>>>,
}

#[derive(Debug)]
struct Idle<S> {
    conn: Conn<S>,
    /// When the connection is closed.
    until: Instant,
}

impl<S> Default for ConnPool<S> {
    fn default() -> Self {
        Self { idle: RefCell::default() }
    }
}

impl<S: Io + 'static> ConnPool<S> {
    /// Returns the connection that was used last and is still open. The others grow old, so that those that are not
    /// needed are closed.
    pub fn take(&self) -> Option<Conn<S>> {
        let now: Instant = leno_transport::now().into();
        let mut idle = self.idle.borrow_mut();
        while let Some(mut last) = idle.pop() {
            if now < last.until && last.conn.is_quiet() {
                return Some(last.conn);
            }
            end(last.conn);
        }
        None
    }

    /// Closes connections that are too old, or that the server has closed. To be called every few seconds.
    pub fn sweep(&self) {
        let now: Instant = leno_transport::now().into();
        let mut idle = self.idle.borrow_mut();
        let is_over = |idle: &mut Idle<S>| now >= idle.until || !idle.conn.is_quiet();
        idle.extract_if(.., is_over).for_each(|idle| end(idle.conn));
    }

    /// Keeps a connection between two exchanges. `announced` is how long the server has said that it keeps the
    /// connection.
    pub fn put(&self, conn: Conn<S>, announced: Option<Duration>) {
        let keep = announced.map_or(CONN_IDLE, |announced| {
            announced.saturating_sub(ANNOUNCED_MARGIN).min(CONN_IDLE)
        });
        self.keep(conn, keep);
    }

    /// Keeps a connection for this time.
    pub(crate) fn keep(&self, conn: Conn<S>, keep: Duration) {
        let mut idle = self.idle.borrow_mut();
        if idle.len() < MAX_IDLE_CONNS && !keep.is_zero() {
            idle.push(Idle { conn, until: Instant::from_std(leno_transport::now()) + keep });
        } else {
            end(conn);
        }
    }

    /// The number of idle connections.
    pub fn len(&self) -> usize {
        self.idle.borrow().len()
    }

    /// Whether there is no idle connection.
    pub fn is_empty(&self) -> bool {
        self.idle.borrow().is_empty()
    }
}

/// Closes an idle connection properly, so that the server does not treat its end as a failure. If a tunnel were only
/// dropped, it would be reset; if a TLS connection were only dropped, it would send no `close_notify`.
fn end<S: Io + 'static>(conn: Conn<S>) {
    if !conn.io().ends_when_dropped() {
        // The task ends when the server closes, too, or after `Limits::linger`.
        spawn_contained(async move { conn.close(&Limits::default()).await });
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::task::LocalSet;

    use super::*;

    fn pooled() -> (ConnPool<tokio::net::UnixStream>, tokio::net::UnixStream) {
        let pool = ConnPool::default();
        let (near, far) = tokio::net::UnixStream::pair().unwrap();
        pool.put(Conn::new(near), None);
        (pool, far)
    }

    async fn local(test: impl Future<Output = ()>) {
        LocalSet::new().run_until(test).await;
    }

    #[tokio::test]
    async fn a_connection_that_the_server_closed_is_not_handed_out() {
        local(async {
            let (pool, far) = pooled();
            assert_eq!(pool.len(), 1);
            drop(far);
            tokio::task::yield_now().await;
            let mut waited = 0;
            while !pool.is_empty() && waited < 1000 {
                pool.sweep();
                tokio::task::yield_now().await;
                waited += 1;
            }
            assert!(pool.take().is_none());
        })
        .await;
    }

    #[tokio::test]
    async fn a_connection_with_unasked_bytes_is_not_handed_out() {
        local(async {
            let pool: ConnPool<DuplexStream> = ConnPool::default();
            let (near, mut far) = duplex(64);
            pool.put(Conn::new(near), None);
            far.write_all(b"HTTP/1.1 408 Request Timeout\r\n\r\n").await.unwrap();
            assert!(pool.take().is_none());
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn the_announced_time_is_kept() {
        local(async {
            let pool: ConnPool<DuplexStream> = ConnPool::default();
            let (near, _far) = duplex(64);
            pool.put(Conn::new(near), Some(Duration::from_secs(5)));
            tokio::time::advance(Duration::from_secs(4)).await;
            assert!(pool.take().is_none());
            let (near, _far) = duplex(64);
            pool.put(Conn::new(near), Some(Duration::from_millis(300)));
            assert!(pool.is_empty(), "too short to be worth keeping");
        })
        .await;
    }

    /// If a connection is too old or not needed, the server sees a proper close and not a reset, whichever call notices
    /// it.
    #[tokio::test(start_paused = true)]
    async fn a_connection_that_is_not_kept_ends_in_order() {
        let drops: [fn(&ConnPool<DuplexStream>); 3] = [
            |pool| pool.sweep(),
            |pool| assert!(pool.take().is_none()),
            |pool| {
                let conn = pool.idle.borrow_mut().pop().expect("one waits").conn;
                pool.put(conn, Some(Duration::ZERO));
            },
        ];
        for drops in drops {
            local(async {
                let (pool, (near, mut far)) = (ConnPool::default(), duplex(64));
                pool.put(Conn::new(near), None);
                tokio::time::advance(CONN_IDLE).await;
                drops(&pool);
                assert!(pool.is_empty());
                assert_eq!(far.read(&mut [0; 8]).await.unwrap(), 0);
                far.write_all(b"late").await.expect("the closing task reads on");
            })
            .await;
        }
    }
}
