//! Tests streams whose readers take nothing. The other streams continue, and stalled streams end when others need the
//! memory or the slots that they hold.

use std::time::Duration;

use leno_h2::{Abuse, Client, Code, Limits, Stream, link};
use leno_transport::budget::{Budget, Charge, MIN_BUDGET};
use tokio::time::{Instant, timeout};

use crate::script::*;
use crate::support::{request, response, run};

/// A duration that is longer than any step that does not wait for a timeout. The clock is paused, so such a step takes
/// no time.
const SOON: Duration = Duration::from_secs(1);
/// The number of bytes in one frame.
const PART: usize = 13_000;

/// Sends a response's head and as much DATA as fits into the initial window of a stream. Waits while the connection's
/// window has no room; `left` is what is left of that window.
async fn fill(peer: &mut Peer, id: u32, left: &mut i64) {
    peer.headers(id, false, &[(":status", "200")]).await;
    for _ in 0..65_000 / PART {
        while *left < PART as i64 {
            let frame = peer.any().await.expect("the connection goes on");
            if (frame.kind, frame.id) == (WINDOW_UPDATE, 0) {
                *left += i64::from(frame.number(0));
            }
        }
        *left -= PART as i64;
        peer.send(DATA, 0, id, &[0; PART]).await;
    }
}

/// Opens a stream whose response the test never reads.
async fn stalled(peer: &mut Peer, client: &Client, left: &mut i64) -> Stream {
    let stream = client.open(&request("GET", "/"), true).unwrap();
    fill(peer, stream.id(), left).await;
    stream
}

#[test]
fn streams_that_are_not_read_do_not_stop_the_others() {
    run(async {
        let limits = Limits::default();
        let (mut peer, client, _ended) = as_server(&limits, &[]).await;
        let mut left = i64::from(limits.connection_window);
        let mut streams = Vec::new();
        for _ in 0..120 {
            let stream = timeout(SOON, stalled(&mut peer, &client, &mut left)).await;
            streams.push(stream.expect("the connection's window is renewed"));
        }
        let mut other = client.open(&request("GET", "/"), true).unwrap();
        timeout(SOON, fill(&mut peer, other.id(), &mut left)).await.unwrap();
        other.head().await.unwrap();
        assert_eq!(other.data().await.unwrap().unwrap().len(), PART);
        // The streams may stall as long as nothing else needs their memory and slots.
        tokio::time::sleep(limits.stall * 6).await;
        assert!(streams.iter().all(|stream| stream.reset_reason().is_none()));
    });
}

#[test]
fn a_stalled_stream_ends_when_another_waits_for_its_place() {
    run(async {
        let limits = Limits { opened_streams: 2, ..Limits::default() };
        let (mut peer, client, _ended) = as_server(&limits, &[]).await;
        let stream = stalled(&mut peer, &client, &mut 65_535).await;
        // A stream that only waits for its response is not stalled.
        let silent = client.open(&request("GET", "/"), true).unwrap();
        let begun = Instant::now();
        client.ready().await.unwrap();
        assert!((limits.stall..=limits.stall * 2 + SOON).contains(&begun.elapsed()));
        assert!(stream.reset_reason().unwrap().is_stall());
        assert!(silent.reset_reason().is_none());
        assert_eq!(counted(Abuse::StalledStream), 1);
        peer.expect(HEADERS, 1).await;
        peer.expect(HEADERS, 3).await;
        peer.expect_reset(1, Code::CANCEL).await;
        // The next waiter need not wait for the whole time again.
        let again = stalled(&mut peer, &client, &mut 65_535).await;
        tokio::time::sleep(limits.stall * 3).await;
        assert!(again.reset_reason().is_none());
        let begun = Instant::now();
        client.ready().await.unwrap();
        assert!(begun.elapsed() < SOON);
        assert!(again.reset_reason().unwrap().is_stall());
    });
}

/// A complete response can also wait for its reader, which here is a client that grants no window.
#[test]
fn a_complete_response_that_is_not_taken_ends_for_want_of_memory() {
    let test = || {
        Budget::new(MIN_BUDGET).enter();
        run(async {
            let limits = Limits::default();
            let (mut server, client, _ended) = as_server(&limits, &[]).await;
            let (mut reader, mut accept, _ended) = as_client(&limits, &setting(4, 0)).await;
            reader.get(1).await;
            let mut near = accept.accept().await.unwrap().stream;
            let mut far = client.open(&request("GET", "/"), true).unwrap();
            server.headers(1, false, &[(":status", "200")]).await;
            server.send(DATA, END_STREAM, 1, &[0; PART]).await;
            far.head().await.unwrap();
            near.send_head(&response("200"), false);
            let both = tokio::task::spawn_local(link(near, far));
            reader.expect(HEADERS, 1).await;
            tokio::time::sleep(limits.stall * 3).await;
            reader.expect_alive().await;
            let others = Charge::new(MIN_BUDGET);
            reader.expect_reset(1, Code::ENHANCE_YOUR_CALM).await;
            let ended = both.await.unwrap();
            assert!(ended.server.unwrap().is_stall(), "{ended:?}");
            assert_eq!(counted(Abuse::StalledStream), 1);
            drop(others);
        });
    };
    // On a thread of its own, because a memory budget belongs to a thread.
    std::thread::spawn(test).join().unwrap();
}

#[test]
fn a_window_grows_when_its_reader_takes_something_and_few_do_at_a_time() {
    run(async {
        let limits = Limits { grown_streams: 1, ..Limits::default() };
        let (mut peer, client, _ended) = as_server(&limits, &[]).await;
        let half = limits.stream_window / 2;
        let mut streams = Vec::new();
        for (id, credit) in [(1, half + limits.grown_window - limits.stream_window), (3, half)] {
            let mut stream = client.open(&request("GET", "/"), true).unwrap();
            peer.expect(HEADERS, id).await;
            peer.headers(id, false, &[(":status", "200")]).await;
            let mut unread = half as usize;
            while unread > 0 {
                peer.send(DATA, 0, id, &vec![0; unread.min(PART)]).await;
                unread -= unread.min(PART);
            }
            stream.head().await.unwrap();
            let mut read = 0;
            while read < half as usize {
                read += stream.data().await.unwrap().unwrap().len();
            }
            stream.release(read);
            assert_eq!(peer.expect(WINDOW_UPDATE, id).await.number(0), credit);
            streams.push(stream);
        }
    });
}
