//! Tests copies of one request on several connections.

use std::future::poll_fn;
use std::time::Duration;

use leno_h2::{Code, Stream};
use leno_http::{Call, Conn, Limits, Party, Ticket, h1_to_h2, h2_to_h2};
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::time::timeout;

use super::support::{Settings, body, h2_back, h2_front, head, lines, next, request, run};
use crate::pairs::pipe;

async fn answer(stream: &mut Stream) {
    stream.send_head(&head([(":status", "103")]), false);
    stream.send_head(&head([(":status", "200")]), false);
    stream.send_data(&b"ok"[..], false);
    stream.send_trailers(head([("x-down", "2")]));
}

#[test]
fn the_winning_copy_answers_the_client_and_the_other_is_reset() {
    run(async {
        let settings = Settings::default();
        let (user, mut accept) = h2_front(&settings);
        let ((first, mut one), (second, mut two)) = (h2_back(&settings), h2_back(&settings));
        let mut asked = user.open(&request("POST", "/"), false).unwrap();
        asked.send_data(&b"body"[..], false);
        asked.send_trailers(head([("x-up", "1")]));
        let mut call = Call::new(accept.accept().await.unwrap());
        assert!(call.hold_whole(100).await);
        let copies = call.copies();
        let (mut late, mut winner) = (copies.copy(), copies.copy());
        let servers = async {
            let ((_, mut slow), (_, mut fast)) = (next(&mut one).await, next(&mut two).await);
            for stream in [&mut slow, &mut fast] {
                assert_eq!(body(stream).await.unwrap(), b"body");
                assert_eq!(lines(&stream.trailers().unwrap()), "x-up: 1\n");
            }
            answer(&mut fast).await;
            slow
        };
        let (mut order, mut other) = (settings.order(), settings.order());
        let race = async {
            tokio::select! {
                _ = h2_to_h2(&mut late, &first, &mut other) => panic!("it ended although no server has answered"),
                done = h2_to_h2(&mut winner, &second, &mut order) => done,
            }
        };
        let user = async {
            // Interim responses to copies are dropped.
            assert_eq!(asked.head().await.unwrap().status(), Some(200));
            assert_eq!(body(&mut asked).await.unwrap(), b"ok");
            assert_eq!(lines(&asked.trailers().unwrap()), "x-down: 2\n");
        };
        let (mut slow, done, ()) = tokio::join!(servers, race, user);
        assert!(done.failure.is_none() && done.client_reusable, "{done:?}");
        let reset = poll_fn(|cx| slow.poll_closed(cx)).await.expect("its stream is reset");
        assert_eq!(reset.code, Code::CANCEL);
        copies.finish(Some(winner));
        call.conclude(&done);
    });
}

#[test]
fn a_client_that_resets_its_stream_is_noticed() {
    run(async {
        let (user, mut accept) = h2_front(&Settings::default());
        let asked = user.open(&request("GET", "/"), true).unwrap();
        let mut call = Call::new(accept.accept().await.unwrap());
        assert!(call.hold_whole(100).await);
        let mut copies = call.copies();
        asked.reset(Code::CANCEL);
        let failure = poll_fn(|cx| copies.poll_gone(cx)).await;
        assert_eq!(failure.place, Party::Client);
        copies.finish(None);
    });
}

#[test]
fn an_http1_client_that_closes_its_connection_is_noticed() {
    run(async {
        for closes in [true, false] {
            let (near, mut far) = pipe(1000);
            far.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
            let mut client = Conn::new(near);
            let limits = Limits::default();
            let request = client.read_request(&limits).await.unwrap().unwrap();
            assert!(client.hold(&request, 100).await.is_some());
            let mut copies = client.copies(&request);
            let far = if closes {
                drop(far);
                None
            } else {
                // The client only ends its stream, and waits for the response.
                far.finish().await;
                Some(far)
            };
            let gone = timeout(Duration::from_secs(1), poll_fn(|cx| copies.poll_gone(cx))).await;
            let place = gone.ok().map(|failure| failure.place);
            assert_eq!(place, closes.then_some(Party::Client));
            drop(far);
        }
    });
}

#[test]
fn long_requests_and_tunnels_are_not_held() {
    run(async {
        let (user, mut accept) = h2_front(&Settings::default());
        let mut long = user.open(&request("POST", "/"), false).unwrap();
        long.send_data(vec![1; 101], true);
        assert!(!Call::new(accept.accept().await.unwrap()).hold_whole(100).await);
        let mut short = user.open(&request("POST", "/"), false).unwrap();
        short.send_data(vec![1; 100], true);
        assert!(Call::new(accept.accept().await.unwrap()).hold_whole(100).await);
    });
}

/// The client's next request stays unchanged, and the client's connection counts the exchange of the copy as its own.
#[test]
fn a_copy_of_an_http1_request_does_not_touch_the_next_request() {
    run(async {
        let settings = Settings { mesh: true, ..Settings::default() };
        let (server, mut app) = h2_back(&settings);
        let (mut user, near) = duplex(64 * 1024);
        let pipelined = "POST /1 HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc\
                         GET /2 HTTP/1.1\r\nHost: a\r\n\r\n";
        user.write_all(pipelined.as_bytes()).await.unwrap();
        let mut client = Conn::new(near);
        let limits = &settings.limits;
        let first = client.read_request(limits).await.unwrap().unwrap();
        assert!(client.hold(&first, 1000).await.is_some());
        let copies = client.copies(&first);
        let ticket = Ticket::default();
        let mut copy = copies.copy(&ticket);
        let app = async {
            let (_, mut stream) = next(&mut app).await;
            assert_eq!(body(&mut stream).await.unwrap(), b"abc");
            ticket.set(true);
            stream.send_head(&head([(":status", "200"), ("content-length", "2")]), false);
            // Bytes that arrive while the copy answers the client do not belong to the copy either.
            user.write_all(b"GET /3 HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
            stream.send_data(&b"ok"[..], true);
        };
        let mut order = settings.order();
        let relayed = h1_to_h2(&mut copy, &first, &server, &mut order);
        let (done, ()) = tokio::join!(relayed, app);
        assert!(done.failure.is_none() && done.client_reusable, "{done:?}");
        copies.finish(copy, &done);
        let second = client.read_request(limits).await.unwrap().unwrap();
        assert_eq!(second.view(client.received()).target(), b"/2");
        assert!(client.received().ends_with(b"GET /3 HTTP/1.1\r\nHost: a\r\n\r\n"));
        drop(client);
        let mut text = String::new();
        user.read_to_string(&mut text).await.unwrap();
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && text.ends_with("\r\n\r\nok"), "{text}");
    });
}
