//! What happens when the worker's memory budget is used up.

use leno_h2::{Abuse, Code, Limits};
use leno_transport::budget::{self, Budget, Charge, MIN_BUDGET};
use tokio::task::yield_now;

use crate::script::*;
use crate::support::{response, run};

/// What a connection may hold for a frame that has begun: the smallest chunk.
const FEW: usize = 4 * 1024;

/// Runs where no other test runs, since a budget belongs to its thread.
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
        // Refused ones are no errors of the peer, or the tenth would end the connection.
        let limits = Limits { resets: 5, ..Limits::default() };
        let (mut peer, mut accept, _ended) = as_client(&limits, &[]).await;
        peer.post(1).await;
        let mut under_way = accept.accept().await.unwrap().stream;
        let others = Charge::new(MIN_BUDGET);
        for id in (3..23).step_by(2) {
            peer.post(id).await;
            peer.expect_reset(id, Code::REFUSED_STREAM).await;
            // Sent before the reset was seen.
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
fn what_is_read_is_charged_until_nobody_has_it() {
    with_budget(|| async {
        let (mut peer, mut accept, _ended) = as_client(&Limits::default(), &[]).await;
        peer.post(1).await;
        let mut stream = accept.accept().await.unwrap().stream;
        let before = budget::charged();
        for _ in 0..8 {
            peer.send(DATA, 0, 1, &[b'x'; 8 * 1024]).await;
        }
        peer.expect_alive().await;
        let held = budget::charged() - before;
        assert!(held >= 64 * 1024, "{held}");
        let mut count = 0;
        while count < 64 * 1024 {
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
