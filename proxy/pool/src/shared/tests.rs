//! Tests with servers in memory. They accept requests and never answer them.

use std::future::{Ready, ready};

use leno_h2::Head;
use tokio::io::{AsyncReadExt, DuplexStream};
use tokio::task::{LocalSet, spawn_local};

use super::*;
use crate::CONN_IDLE;

type Pool = ClientPool<u32, &'static str>;

fn limits(streams: u32) -> Rc<leno_h2::Limits> {
    Rc::new(leno_h2::Limits {
        concurrent_streams: streams,
        opened_streams: streams,
        ..Default::default()
    })
}

/// The other end of a connection to a server. The server never answers, and keeps its streams.
fn server(limits: &Rc<leno_h2::Limits>) -> DuplexStream {
    let (near, far) = tokio::io::duplex(1 << 16);
    let (mut accept, driver) = leno_h2::server(far, &[], limits);
    spawn_local(driver.run());
    spawn_local(async move {
        let mut kept = Vec::new();
        while let Some(request) = accept.accept().await {
            kept.push(request);
        }
    });
    near
}

type Made = Result<Option<(DuplexStream, u32)>, &'static str>;

const FAILED: Made = Err("refused");

/// Connects to a [`server`] at once.
fn to_server(limits: &Rc<leno_h2::Limits>, tag: u32) -> impl Fn() -> Ready<Made> {
    let limits = Rc::clone(limits);
    move || ready(Ok(Some((server(&limits), tag))))
}

fn request() -> Head {
    let mut head = Head::new();
    for (name, value) in
        [(":method", "GET"), (":scheme", "http"), (":authority", "a"), (":path", "/")]
    {
        head.push(name.as_bytes(), value.as_bytes());
    }
    head
}

async fn local<T>(work: impl Future<Output = T>) -> T {
    LocalSet::new().run_until(work).await
}

#[tokio::test]
async fn those_who_come_together_share_one_connection() {
    local(async {
        let limits = limits(100);
        let pool = Pool::new(Rc::clone(&limits));
        let made = Rc::new(Cell::new(0));
        let connect = || {
            let (limits, made) = (Rc::clone(&limits), Rc::clone(&made));
            async move {
                tokio::task::yield_now().await;
                made.set(made.get() + 1);
                Ok(Some((server(&limits), made.get())))
            }
        };
        let get = async || pool.get(connect).await.unwrap().unwrap();
        let (one, two, three) = tokio::join!(get(), get(), get());
        assert_eq!((made.get(), one.tag, two.tag, three.tag), (1, 1, 1, 1));
        assert!(!one.reused && !two.reused && !three.reused);
        assert!(get().await.reused);
    })
    .await;
}

#[tokio::test]
async fn a_full_connection_gets_a_second_one_and_a_closed_one_is_replaced() {
    local(async {
        let limits = limits(1);
        let pool = Pool::new(Rc::clone(&limits));
        let get = async |tag| pool.get(to_server(&limits, tag)).await.unwrap().unwrap();
        let one = get(1).await;
        let _stream = one.client.open(&request(), true).unwrap();
        let two = get(2).await;
        assert_eq!((one.tag, two.tag), (1, 2));
        two.retire();
        assert_eq!(get(3).await.tag, 3);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn their_number_is_bounded_and_so_is_the_wait() {
    local(async {
        let limits = limits(1);
        let pool = Pool::new(Rc::clone(&limits));
        let mut streams = Vec::new();
        for _ in 0..MAX_CLIENTS {
            let lent = pool.get(to_server(&limits, 0)).await.unwrap().unwrap();
            streams.push(lent.client.open(&request(), true).unwrap());
        }
        let more = async || pool.get(|| ready(FAILED)).await;
        assert_eq!(more().await.unwrap_err(), ClientError::Full);
        let waiting = async {
            tokio::task::yield_now().await;
            streams.pop();
        };
        let (lent, ()) = tokio::join!(more(), waiting);
        assert!(lent.unwrap().unwrap().waited);
    })
    .await;
}

#[tokio::test]
async fn a_failure_fails_all_requests_that_wait_for_it() {
    local(async {
        let pool = Pool::new(limits(1));
        let failing = async || {
            let connect = || async {
                tokio::task::yield_now().await;
                FAILED
            };
            pool.get(connect).await.unwrap_err()
        };
        let (one, two) = tokio::join!(failing(), failing());
        assert_eq!((one, two), (ClientError::Connect("refused"), ClientError::Connect("refused")));
    })
    .await;
}

/// Three requests come one after the other, each with a deadline of 150 ms. The connection takes 400 ms and serves the
/// third.
#[tokio::test(start_paused = true)]
async fn a_connection_outlives_the_request_that_it_is_made_for() {
    local(async {
        let (pool, limits) = (Pool::new(limits(1)), limits(1));
        let made = Rc::new(Cell::new(0));
        let connect = || {
            let (limits, made) = (Rc::clone(&limits), Rc::clone(&made));
            async move {
                made.set(made.get() + 1);
                tokio::time::sleep(Duration::from_millis(400)).await;
                Ok(Some((server(&limits), made.get())))
            }
        };
        for _ in 0..2 {
            let late = tokio::time::timeout(Duration::from_millis(150), pool.get(connect)).await;
            assert!(late.is_err() && !pool.is_empty());
        }
        let third = tokio::time::timeout(Duration::from_millis(150), pool.get(connect)).await;
        assert_eq!((third.unwrap().unwrap().unwrap().tag, made.get()), (1, 1));
    })
    .await;
}

/// The pool is dropped while it connects, for example because the endpoint is removed from its set.
#[tokio::test(start_paused = true)]
async fn a_pool_that_is_dropped_keeps_no_connection() {
    local(async {
        let pool = Pool::new(limits(1));
        let (stream, mut far) = tokio::io::duplex(64);
        let stream = Rc::new(Cell::new(Some(stream)));
        let connect = || {
            let stream = Rc::clone(&stream);
            async move {
                tokio::time::sleep(Duration::from_millis(400)).await;
                Ok(stream.take().map(|stream| (stream, 0)))
            }
        };
        assert!(tokio::time::timeout(Duration::from_millis(150), pool.get(connect)).await.is_err());
        drop(pool);
        assert_eq!(far.read(&mut [0; 64]).await.unwrap(), 0);
    })
    .await;
}

#[tokio::test]
async fn a_server_without_http2_is_told_to_all() {
    local(async {
        let pool = Pool::new(limits(1));
        let other = || ready(Ok(None::<(DuplexStream, u32)>));
        let get = async || pool.get(other).await.unwrap().is_none();
        assert!(get().await && get().await && pool.is_empty());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_unused_connection_is_closed() {
    local(async {
        let limits = limits(10);
        let pool = Pool::new(Rc::clone(&limits));
        let lent = pool.get(to_server(&limits, 0)).await.unwrap().unwrap();
        let stream = lent.client.open(&request(), true).unwrap();
        drop(lent);
        for _ in 0..4 {
            tokio::time::advance(CONN_IDLE).await;
            pool.sweep(CONN_IDLE);
        }
        assert!(!pool.is_empty(), "a stream is on it");
        drop(stream);
        pool.sweep(CONN_IDLE);
        tokio::time::advance(CONN_IDLE).await;
        pool.sweep(CONN_IDLE);
        assert!(pool.is_empty());
    })
    .await;
}
