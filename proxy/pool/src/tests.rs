//! Which version a request goes over.

use std::future::{Ready, pending, ready};

use tokio::io::{DuplexStream, duplex};
use tokio::task::LocalSet;

use super::*;

type TestPool = Pool<DuplexStream, (), &'static str>;
type Answer = Ready<Result<Agreed<DuplexStream, ()>, &'static str>>;

fn pool() -> TestPool {
    Pool::new(Rc::default(), CONN_IDLE)
}

/// A connection whose other end stays open.
fn open() -> DuplexStream {
    let (near, far) = duplex(1 << 16);
    std::mem::forget(far);
    near
}

fn http1() -> Ready<Result<DuplexStream, &'static str>> {
    ready(Ok(open()))
}

async fn local<T>(work: impl Future<Output = T>) -> T {
    LocalSet::new().run_until(work).await
}

#[tokio::test]
async fn a_server_that_agrees_on_http1_is_offered_http2_once() {
    local(async {
        let (pool, offered) = (pool(), Cell::new(0));
        let offer = || -> Answer {
            offered.set(offered.get() + 1);
            ready(Ok(Agreed::Http1(open())))
        };
        for reused in [true, false] {
            let Pooled::Http1 { reused: was, .. } = pool.get(true, offer, http1).await.unwrap()
            else {
                panic!("HTTP/2 was not agreed on")
            };
            assert_eq!(was, reused, "the first takes the connection that was made for the offer");
        }
        assert_eq!(offered.get(), 1);
    })
    .await;
}

#[tokio::test]
async fn requests_of_http2_share_what_those_of_http1_do_not_take() {
    local(async {
        let pool = pool();
        let offer = || -> Answer { ready(Ok(Agreed::Http2(open(), ()))) };
        let never = || pending::<Result<DuplexStream, &'static str>>();
        assert!(matches!(pool.get(true, offer, never).await, Ok(Pooled::Http2(_))));
        assert!(pool.is_shared());
        let refuse = || -> Answer { panic!("there is a connection") };
        assert!(matches!(pool.get(true, refuse, never).await, Ok(Pooled::Http2(_))));
        let Ok(Pooled::Http1 { conn, reused: false }) = pool.get(false, refuse, http1).await else {
            panic!("HTTP/1 was asked for")
        };
        pool.put(conn, None);
        let again = pool.get(false, refuse, http1).await;
        assert!(matches!(again, Ok(Pooled::Http1 { reused: true, .. })));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn idle_connections_of_each_version_are_kept_for_their_time() {
    local(async {
        let pool: TestPool = Pool::new(Rc::default(), MESH_IDLE);
        let offer = || -> Answer { ready(Ok(Agreed::Http2(open(), ()))) };
        drop(pool.get(true, offer, http1).await.unwrap());
        pool.put(Conn::new(open()), None);
        pool.sweep();
        tokio::time::advance(CONN_IDLE).await;
        pool.sweep();
        assert!(pool.is_shared() && pool.take().is_none());
        tokio::time::advance(MESH_IDLE).await;
        pool.sweep();
        assert!(pool.is_empty());
    })
    .await;
}

#[tokio::test]
async fn a_failure_is_told_as_the_caller_has_it() {
    local(async {
        let pool = pool();
        let offer = || -> Answer { ready(Err("refused")) };
        let failed = pool.get(true, offer, http1).await.err();
        assert_eq!(failed, Some(PoolError::Connect(Rc::new("refused"))));
        let failed = pool.get(false, offer, || ready(Err("reset"))).await.err();
        assert_eq!(failed, Some(PoolError::Connect(Rc::new("reset"))));
    })
    .await;
}
