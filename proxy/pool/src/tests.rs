//! Tests which version of HTTP a request uses.

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
            let Pooled::Http1 { reused: was, .. } =
                pool.get(Carrier::Http2, offer, http1).await.unwrap()
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
        assert!(matches!(pool.get(Carrier::Http2, offer, never).await, Ok(Pooled::Http2(_))));
        assert!(pool.is_shared());
        let refuse = || -> Answer { panic!("there is a connection") };
        assert!(matches!(pool.get(Carrier::Http2, refuse, never).await, Ok(Pooled::Http2(_))));
        let Ok(Pooled::Http1 { conn, reused: false, .. }) =
            pool.get(Carrier::Http1, refuse, http1).await
        else {
            panic!("HTTP/1 was asked for")
        };
        pool.put(conn, None);
        let again = pool.get(Carrier::Http1, refuse, http1).await;
        assert!(matches!(again, Ok(Pooled::Http1 { reused: true, .. })));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn idle_connections_of_each_version_are_kept_for_their_time() {
    local(async {
        let pool: TestPool = Pool::new(Rc::default(), MESH_IDLE);
        let offer = || -> Answer { ready(Ok(Agreed::Http2(open(), ()))) };
        drop(pool.get(Carrier::Http2, offer, http1).await.unwrap());
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
        let failed = pool.get(Carrier::Http2, offer, http1).await.err();
        assert_eq!(failed, Some(PoolError::Connect(Rc::new("refused"))));
        let failed = pool.get(Carrier::Http1, offer, || ready(Err("reset"))).await.err();
        assert_eq!(failed, Some(PoolError::Connect(Rc::new("reset"))));
    })
    .await;
}

/// Gets a connection from the pool. `made` counts the opened connections, by version.
async fn over(pool: &TestPool, made: &[Cell<u32>; 2]) -> Pooled<DuplexStream, ()> {
    if let Some(pooled) = pool.at_once(Carrier::Either) {
        pool.prepare(|| {
            made[0].set(made[0].get() + 1);
            http1()
        });
        return pooled;
    }
    let two = || -> Answer {
        made[1].set(made[1].get() + 1);
        ready(Ok(Agreed::Http2(open(), ())))
    };
    let one = || {
        made[0].set(made[0].get() + 1);
        http1()
    };
    pool.get(Carrier::Either, two, one).await.unwrap()
}

fn is_http1(pooled: &Pooled<DuplexStream, ()>) -> bool {
    matches!(pooled, Pooled::Http1 { claim: Some(_), .. })
}

fn give_back(pool: &TestPool, pooled: Pooled<DuplexStream, ()>) {
    if let Pooled::Http1 { conn, .. } = pooled {
        pool.put_single(conn);
    }
}

#[tokio::test]
async fn only_a_request_that_is_alone_goes_over_http1() {
    local(async {
        let (pool, made) = (pool(), Default::default());
        let first = over(&pool, &made).await;
        let second = over(&pool, &made).await;
        assert!(is_http1(&first) && !is_http1(&second));
        let Pooled::Http2(lent) = &second else { panic!("it is not alone") };
        let mut head = leno_h2::Head::default();
        for (name, value) in [(":method", "GET"), (":scheme", "https"), (":path", "/")] {
            head.push(name.as_bytes(), value.as_bytes());
        }
        let stream = lent.client.open(&head, true).unwrap();
        give_back(&pool, first);
        assert!(!is_http1(&over(&pool, &made).await), "another is in flight");
        drop(stream);
        while pool.http2.is_in_use() {
            tokio::task::yield_now().await;
        }
        for _ in 1..ALONE_IN_A_ROW {
            assert!(!is_http1(&over(&pool, &made).await), "others were in flight just before");
        }
        let third = over(&pool, &made).await;
        assert!(is_http1(&third), "it is alone again");
        give_back(&pool, third);
        assert_eq!(made.map(Cell::into_inner), [1, 1]);
    })
    .await;
}

#[tokio::test]
async fn what_ends_connections_does_not_make_one_for_each_request() {
    local(async {
        let (pool, made) = (pool(), Default::default());
        let (mut alone, many) = (0, 3 * u32::from(REQUESTS_A_CONNECTION));
        for _ in 0..many {
            // Each request ends its connection, as it does when its client leaves.
            alone += u32::from(is_http1(&over(&pool, &made).await));
            tokio::task::yield_now().await;
        }
        assert_eq!((alone, made.map(Cell::into_inner)), (3, [3, 1]));
    })
    .await;
}
