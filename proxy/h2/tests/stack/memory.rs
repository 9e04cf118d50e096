//! Tests how much memory connections hold, and what happens when the worker's memory budget is used up.

use std::time::{Duration, Instant};

use bytes::Bytes;
use leno_h2::{Abuse, Code, Limits};
use leno_transport::budget::{self, Budget, Charge, MIN_BUDGET};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{LocalSet, spawn_local, yield_now};

use crate::script::*;
use crate::support::{echo, limits, response, run};

/// The most memory that a connection may hold for a partly received frame while memory is short: the size of the
/// smallest receive chunk (`SIZES[0]` in src/piece.rs).
const FEW: usize = 4 * 1024;

/// Runs a test on a thread of its own, because a memory budget belongs to a thread.
fn with_budget<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send + 'static) {
    let run = move || {
        Budget::new(MIN_BUDGET).enter();
        run(test());
    };
    std::thread::spawn(run).join().unwrap();
}

#[test]
fn new_streams_are_refused_while_memory_is_short_and_those_under_way_go_on() {
    with_budget(|| async {
        // Refused streams must not count as stream errors of the peer. Five of those are tolerated here, and the test
        // refuses ten streams.
        let limits = Limits { resets: 5, ..Limits::default() };
        let (mut peer, mut accept, _ended) = as_client(&limits, &[]).await;
        peer.post(1).await;
        let mut under_way = accept.accept().await.unwrap().stream;
        let others = Charge::new(MIN_BUDGET);
        for id in (3..23).step_by(2) {
            peer.post(id).await;
            peer.expect_reset(id, Code::REFUSED_STREAM).await;
            // A client may send DATA before it sees the reset.
            peer.send(DATA, END_STREAM, id, b"body").await;
        }
        assert_eq!(counted(Abuse::MemoryBudget), 10);
        assert_eq!(counted(Abuse::StreamErrors), 0);
        peer.send(DATA, END_STREAM, 1, b"body").await;
        assert_eq!(&*under_way.data().await.unwrap().unwrap(), b"body");
        under_way.send_head(&response("200"), true);
        peer.expect(HEADERS, 1).await;
        drop(others);
        peer.get(23).await;
        assert_eq!(accept.accept().await.unwrap().stream.id(), 23);
    });
}

#[test]
fn received_data_is_charged_until_its_last_reader_drops_it() {
    with_budget(|| async {
        let (mut peer, mut accept, _ended) = as_client(&Limits::default(), &[]).await;
        peer.post(1).await;
        let mut stream = accept.accept().await.unwrap().stream;
        let before = budget::charged();
        for _ in 0..7 {
            peer.send(DATA, 0, 1, &[b'x'; 8 * 1024]).await;
        }
        peer.expect_alive().await;
        let held = budget::charged() - before;
        assert!(held >= 56 * 1024, "{held}");
        let mut count = 0;
        while count < 56 * 1024 {
            count += stream.data().await.unwrap().unwrap().len();
        }
        assert_eq!(budget::charged(), before);
    });
}

#[test]
fn while_memory_is_short_a_frame_that_has_begun_holds_little() {
    with_budget(|| async {
        let (mut peer, mut accept, _ended) = as_client(&Limits::default(), &[]).await;
        peer.expect_alive().await;
        let others = Charge::new(MIN_BUDGET);
        let before = budget::charged();
        let get = peer.section(&GET);
        let bytes = frame(HEADERS, END_HEADERS | END_STREAM, 1, &get);
        peer.raw(&bytes[..3]).await;
        for _ in 0..10 {
            yield_now().await;
        }
        let held = budget::charged() - before;
        assert!((1..=FEW).contains(&held), "{held}");
        drop(others);
        peer.raw(&bytes[3..]).await;
        assert_eq!(accept.accept().await.unwrap().stream.id(), 1);
    });
}

/// How long to wait after a response until the connection has freed its buffers, because both sides may still have
/// bytes to read or write.
const QUIET_LIMIT: Duration = Duration::from_secs(20);

/// Uses a TCP socket and not the in-memory pipe of the other tests. That pipe always claims to be readable, so a
/// connection over it would keep a read buffer while it waits.
#[test]
fn an_idle_connection_holds_no_buffer() {
    let test = || {
        Budget::new(MIN_BUDGET).enter();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        LocalSet::new().block_on(&runtime, async {
            let (before, mut most) = (budget::charged(), 0);
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let (far, _) = listener.accept().await.unwrap();
            let (accept, driver) = leno_h2::server(far, &[], &limits());
            spawn_local(driver.run());
            spawn_local(echo(accept));
            let (send, connection) = h2::client::handshake(near).await.unwrap();
            spawn_local(async move { drop(connection.await) });
            let mut send = send.ready().await.unwrap();
            for _ in 0..3 {
                let post = http::Request::post("http://a/").body(()).unwrap();
                let (answer, mut body) = send.send_request(post, false).unwrap();
                body.send_data(Bytes::from(vec![b'x'; 60_000]), true).unwrap();
                let mut answer = answer.await.unwrap().into_body();
                let mut count = 0;
                while let Some(part) = answer.data().await {
                    let part = part.unwrap();
                    answer.flow_control().release_capacity(part.len()).unwrap();
                    count += part.len();
                    most = most.max(budget::charged());
                }
                assert_eq!(count, 60_000);
                let start = Instant::now();
                while budget::charged() > before && start.elapsed() < QUIET_LIMIT {
                    yield_now().await;
                }
                assert_eq!(budget::charged(), before);
            }
            assert!(most > before, "it was never seen to hold anything");
        });
    };
    std::thread::spawn(test).join().unwrap();
}
