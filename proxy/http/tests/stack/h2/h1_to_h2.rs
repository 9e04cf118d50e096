//! From an HTTP/1 client to an HTTP/2 server.

use std::time::Duration;

use leno_h2::Code;
use leno_http::{Cause, Party};

use super::support::{
    Fields, Settings, body, h1_h2, head, impatient, lines, next, pattern, run, send_body,
    small_windows,
};

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

#[test]
fn requests_follow_each_other_on_streams() {
    run(async {
        let (mut client, mut app, mut done) = h1_h2(Settings::default());
        for round in 0..3 {
            client
                .send("GET /1?q HTTP/1.1\r\nHost: a\r\nAccept: */*\r\nKeep-Alive: x\r\n\r\n")
                .await;
            let (asked, mut answer) = next(&mut app).await;
            assert_eq!(
                lines(&asked),
                ":method: GET\n:scheme: http\n:authority: a\n:path: /1?q\naccept: */*\n"
            );
            assert!(answer.is_ended(), "{round}");
            answer.send_head(&head([(":status", "103"), ("link", "x")]), false);
            answer.send_head(&head([(":status", "200"), ("content-length", "2")]), false);
            answer.send_data(&b"ok"[..], true);
            client.expect("HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n").await;
            client.expect("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
            let done = done.recv().await.unwrap();
            assert!(done.failure.is_none() && done.client_reusable && done.server_reusable);
            assert_eq!(done.status, Some(200));
        }
    });
}

#[test]
fn responses_with_every_framing_are_translated() {
    let cases: [(&str, Fields, &str, &str); 9] = [
        ("GET", &[(":status", "200")], "", "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"),
        ("GET", &[(":status", "204")], "", "HTTP/1.1 204 No Content\r\n\r\n"),
        (
            "GET",
            &[(":status", "304"), ("content-length", "9")],
            "",
            "HTTP/1.1 304 Not Modified\r\ncontent-length: 9\r\n\r\n",
        ),
        (
            "HEAD",
            &[(":status", "200"), ("content-length", "9")],
            "",
            "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n",
        ),
        ("HEAD", &[(":status", "200")], "", "HTTP/1.1 200 OK\r\n\r\n"),
        (
            "GET",
            &[(":status", "200"), ("content-length", "2")],
            "ok",
            "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
        ),
        (
            "GET",
            &[(":status", "200"), ("set-cookie", "a"), ("set-cookie", "b")],
            "ok",
            "HTTP/1.1 200 OK\r\nset-cookie: a\r\nset-cookie: b\r\ntransfer-encoding: chunked\r\n\r\n\
             2\r\nok\r\n0\r\n\r\n",
        ),
        (
            "GET",
            &[(":status", "418"), ("leno-h1", "1.0 T r=x"), ("content-length", "0")],
            "",
            "HTTP/1.1 418 Status\r\ncontent-length: 0\r\n\r\n",
        ),
        (
            "GET",
            &[(":status", "500"), ("content-length", "0")],
            "",
            "HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n",
        ),
    ];
    run(async {
        let (mut client, mut app, mut done) = h1_h2(Settings::default());
        for (method, fields, content, expected) in cases {
            client.send(format!("{method} / HTTP/1.1\r\nHost: a\r\n\r\n")).await;
            let (_, mut answer) = next(&mut app).await;
            answer
                .send_head(&fields.iter().copied().collect::<leno_h2::Head>(), content.is_empty());
            if !content.is_empty() {
                answer.send_data(content.as_bytes(), true);
            }
            client.expect(expected).await;
            let done = done.recv().await.unwrap();
            assert!(done.failure.is_none() && done.client_reusable, "{expected}");
        }
    });
}

#[test]
fn old_clients() {
    run(async {
        let cases = [
            ("", "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nok"),
            ("Connection: keep-alive\r\n", "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nok"),
        ];
        for (lines_sent, expected) in cases {
            let (mut client, mut app, mut done) = h1_h2(Settings::default());
            client.send(format!("GET / HTTP/1.0\r\n{lines_sent}\r\n")).await;
            let (asked, mut answer) = next(&mut app).await;
            assert_eq!(lines(&asked), ":method: GET\n:scheme: http\n:path: /\n");
            answer.send_head(&head([(":status", "100")]), false);
            answer.send_head(&head([(":status", "200")]), false);
            answer.send_data(&b"ok"[..], true);
            client.expect(expected).await;
            client.expect_end().await;
            assert!(!done.recv().await.unwrap().client_reusable);
        }
        let (mut client, mut app, mut done) = h1_h2(Settings::default());
        client.send("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").await;
        let (_, mut answer) = next(&mut app).await;
        answer.send_head(&head([(":status", "200"), ("content-length", "0")]), true);
        let expected = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: keep-alive\r\n\r\n";
        client.expect(expected).await;
        assert!(done.recv().await.unwrap().client_reusable);
    });
}

#[test]
fn bodies_both_ways() {
    for settings in [Settings::default(), small_windows()] {
        run(async {
            let (mut client, mut app, mut done) = h1_h2(settings);
            for len in [1, 70_000, 10 << 20] {
                let user = async {
                    let content = pattern(len);
                    client
                        .send(format!(
                            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {len}\r\n\r\n"
                        ))
                        .await;
                    client.send(&content).await;
                    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {len}\r\n\r\n");
                    client.expect(head).await;
                    client.expect(&content).await;
                };
                let app = async {
                    let (asked, mut answer) = next(&mut app).await;
                    let length = len.to_string();
                    assert_eq!(asked.get(b"content-length"), Some(length.as_bytes()));
                    let bytes = body(&mut answer).await.unwrap();
                    assert!(bytes == pattern(len));
                    let fields = [(":status", "200"), ("content-length", length.as_str())];
                    answer.send_head(&head(fields), false);
                    send_body(&mut answer, &bytes, true).await;
                    answer.closed().await
                };
                tokio::join!(user, app);
                let done = done.recv().await.unwrap();
                assert!(done.failure.is_none() && done.client_reusable, "{:?}", done.failure);
                assert!(done.request_bytes > len as u64 && done.response_bytes > len as u64);
            }
        });
    }
}

#[test]
fn chunks_and_trailers_are_translated_in_both_directions() {
    run(async {
        let (mut client, mut app, mut done) = h1_h2(Settings::default());
        for _ in 0..2 {
            client
                .send(
                    "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTE: trailers\r\n\
                     Connection: te, x-hop\r\nX-Hop: 1\r\n\r\n3;e\r\nabc\r\n",
                )
                .await;
            let (asked, mut answer) = next(&mut app).await;
            assert_eq!(
                lines(&asked),
                ":method: POST\n:scheme: http\n:authority: a\n:path: /\nte: trailers\n"
            );
            client.send("2\r\nde\r\n0\r\nX-Sum:  1 \r\nConnection: x\r\n\r\n").await;
            assert_eq!(body(&mut answer).await.unwrap(), b"abcde");
            assert_eq!(lines(&answer.trailers().unwrap()), "x-sum: 1\n");
            answer.send_head(&head([(":status", "200")]), false);
            answer.send_data(&b"first"[..], false);
            let expected = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n";
            client.expect(expected).await;
            answer.send_data(vec![b'x'; 20], false);
            answer.send_trailers(head([("grpc-status", "3"), ("content-length", "9")]));
            client.expect("14\r\nxxxxxxxxxxxxxxxxxxxx\r\n0\r\ngrpc-status: 3\r\n\r\n").await;
            let done = done.recv().await.unwrap();
            assert!(done.client_reusable && done.grpc_status == Some(3));
        }
    });
}

#[test]
fn a_body_is_sent_after_a_100() {
    run(async {
        let (mut client, mut app, mut done) = h1_h2(Settings::default());
        let head1 =
            "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n";
        client.send(head1).await;
        let (asked, mut answer) = next(&mut app).await;
        assert_eq!(asked.get(b"expect"), Some(&b"100-continue"[..]));
        answer.send_head(&head([(":status", "100")]), false);
        client.expect("HTTP/1.1 100 Continue\r\n\r\n").await;
        client.send("abc").await;
        assert_eq!(body(&mut answer).await.unwrap(), b"abc");
        answer.send_head(&head([(":status", "204")]), true);
        client.expect("HTTP/1.1 204 No Content\r\n\r\n").await;
        assert!(done.recv().await.unwrap().client_reusable);
        // The server refuses. It is unknown whether the client still sends the body, so its connection ends.
        client.send(head1).await;
        let (_, mut answer) = next(&mut app).await;
        answer.send_head(&head([(":status", "417")]), true);
        client
            .expect(
                "HTTP/1.1 417 Expectation Failed\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
            )
            .await;
        assert!(!done.recv().await.unwrap().client_reusable);
        client.expect_end().await;
    });
}

#[test]
fn a_refused_request_is_sent_again_with_its_body() {
    run(async {
        let (mut client, mut app, mut done) = h1_h2(Settings::default());
        client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nabc").await;
        let (_, mut first) = next(&mut app).await;
        assert_eq!(&*first.data().await.unwrap().unwrap(), b"abc");
        first.reset(Code::REFUSED_STREAM);
        let (_, mut second) = next(&mut app).await;
        client.send("de").await;
        assert_eq!(body(&mut second).await.unwrap(), b"abcde");
        second.send_head(&head([(":status", "204")]), true);
        client.expect("HTTP/1.1 204 No Content\r\n\r\n").await;
        let failure = done.recv().await.unwrap().failure.unwrap();
        assert!(failure.retryable && failure.unprocessed && failure.place == Party::Server);
        assert!(done.recv().await.unwrap().client_reusable);
    });
}

#[test]
fn a_request_is_not_retried_if_too_much_of_it_was_sent() {
    run(async {
        let (mut client, mut app, mut done) = h1_h2(Settings::default());
        client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n").await;
        client.send(pattern(90_000)).await;
        let (_, mut first) = next(&mut app).await;
        let mut read = 0;
        while read < 90_000 {
            let piece = first.data().await.unwrap().unwrap();
            read += piece.len();
            first.release(piece.len());
        }
        first.reset(Code::REFUSED_STREAM);
        let failure = done.recv().await.unwrap().failure.unwrap();
        assert!(!failure.retryable && failure.unprocessed);
        client.expect_error(502, "refused-stream").await;
    });
}

#[test]
fn a_truncated_response_does_not_look_complete() {
    run(async {
        let heads = [
            (vec![(":status", "200"), ("content-length", "9")], "content-length: 9"),
            (vec![(":status", "200")], "transfer-encoding: chunked"),
        ];
        for (fields, line) in heads {
            let (mut client, mut app, mut done) = h1_h2(Settings::default());
            client.send(GET).await;
            let (_, mut answer) = next(&mut app).await;
            answer.send_head(&fields.into_iter().collect::<leno_h2::Head>(), false);
            answer.send_data(&b"abc"[..], false);
            client.expect(format!("HTTP/1.1 200 OK\r\n{line}\r\n\r\n")).await;
            answer.reset(Code::INTERNAL_ERROR);
            let rest = client.rest().await;
            assert!(!rest.contains("\r\n0\r\n"), "{rest}");
            let done = done.recv().await.unwrap();
            assert!(done.response_started && !done.client_reusable);
            assert_eq!(done.failure.unwrap().cause.label(), "internal-error");
        }
    });
}

#[test]
fn the_end_of_either_side_is_noticed() {
    run(async {
        let (mut client, mut app, mut done) = h1_h2(Settings { tries: 1, ..Settings::default() });
        client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nabc").await;
        let (_, mut answer) = next(&mut app).await;
        client.finish().await;
        let failure = done.recv().await.unwrap().failure.unwrap();
        assert_eq!((failure.place, failure.cause.label()), (Party::Client, "closed"));
        assert_eq!(answer.closed().await.unwrap().code, Code::CANCEL);
        // A client that has only ended its stream still gets its response.
        let (mut client, mut app, mut done) = h1_h2(Settings { tries: 1, ..Settings::default() });
        client.send(GET).await;
        client.finish().await;
        let (_, mut answer) = next(&mut app).await;
        answer.send_head(&head([(":status", "204")]), true);
        client.expect("HTTP/1.1 204 No Content\r\n\r\n").await;
        client.expect_end().await;
        assert!(done.recv().await.unwrap().failure.is_none());
    });
}

#[test]
fn a_response_may_precede_the_end_of_the_request() {
    run(async {
        let (mut client, mut app, mut done) = h1_h2(Settings::default());
        client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\n\r\nabc").await;
        let (_, mut answer) = next(&mut app).await;
        answer.data().await.unwrap();
        answer.send_head(&head([(":status", "413")]), true);
        drop(answer);
        client.expect("HTTP/1.1 413 Content Too Large\r\ncontent-length: 0\r\n\r\n").await;
        // The rest of the request is discarded, and the connection continues.
        client.send(["def", GET].concat()).await;
        assert!(done.recv().await.unwrap().client_reusable);
        let (_, mut answer) = next(&mut app).await;
        answer.send_head(&head([(":status", "204")]), true);
        client.expect("HTTP/1.1 204 No Content\r\n\r\n").await;
    });
}

#[test]
fn a_stall_is_blamed_on_the_side_that_does_not_move() {
    run(async {
        let settings = impatient();
        for (body, place) in [("abc", Party::Server), ("ab", Party::Us)] {
            let (mut client, mut app, mut done) = h1_h2(settings.clone());
            client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n").await;
            client.send(body).await;
            let _silent = next(&mut app).await;
            let failure = done.recv().await.unwrap().failure.unwrap();
            assert!(matches!(failure.cause, Cause::Stalled));
            assert_eq!(failure.place, place, "{}: {body}", failure.cause);
        }
    });
}

#[test]
fn a_deadline_and_a_judge_end_an_exchange() {
    run(async {
        let settings = Settings { deadline: Some(Duration::from_secs(1)), ..Settings::default() };
        let (mut client, mut app, mut done) = h1_h2(settings);
        client.send(GET).await;
        let (_, mut answer) = next(&mut app).await;
        assert!(matches!(done.recv().await.unwrap().failure.unwrap().cause, Cause::Deadline));
        assert_eq!(answer.closed().await.unwrap().code, Code::CANCEL);
        client.expect("HTTP/1.1 504 Gateway Timeout\r\nleno-error: deadline\r\n").await;
        let within = Some(Duration::from_secs(1));
        let late = Settings { response_within: within, ..Settings::default() };
        let (mut client, mut app, mut done) = h1_h2(late);
        client.send(GET).await;
        let (_, mut first) = next(&mut app).await;
        assert!(matches!(done.recv().await.unwrap().failure.unwrap().cause, Cause::Late));
        assert_eq!(first.closed().await.unwrap().code, Code::CANCEL);
        let (_, mut second) = next(&mut app).await;
        second.send_head(&head([(":status", "204")]), true);
        client.expect("HTTP/1.1 204 No Content\r\n\r\n").await;
        let (mut client, mut app, _) =
            h1_h2(Settings { retry_on: Some(503), ..Settings::default() });
        client.send(GET).await;
        let (_, mut first) = next(&mut app).await;
        first.send_head(&head([(":status", "503")]), true);
        let (_, mut second) = next(&mut app).await;
        second.send_head(&head([(":status", "204")]), true);
        client.expect("HTTP/1.1 204 No Content\r\n\r\n").await;
    });
}

const CHAT: &str = "GET /chat HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";

/// A proxy whose server has announced that it accepts extended CONNECT.
async fn websocket_lab() -> (crate::support::Wire, leno_h2::Accept, super::support::Done) {
    let (mut client, mut app, mut done) = h1_h2(Settings::default());
    client.send(GET).await;
    let (_, mut answer) = next(&mut app).await;
    answer.send_head(&head([(":status", "204")]), true);
    client.expect("HTTP/1.1 204 No Content\r\n\r\n").await;
    done.recv().await.unwrap();
    (client, app, done)
}

#[test]
fn an_upgrade_is_an_extended_connect() {
    run(async {
        let (mut client, mut app, mut done) = websocket_lab().await;
        client.send([CHAT, "early"].concat()).await;
        let (asked, mut answer) = next(&mut app).await;
        assert_eq!(
            lines(&asked),
            ":method: CONNECT\n:scheme: http\n:authority: a\n:path: /chat\n:protocol: websocket\n\
             sec-websocket-version: 13\n"
        );
        answer.send_head(&head([(":status", "200"), ("sec-websocket-protocol", "x")]), false);
        client
            .expect(
                "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: Upgrade\r\n\
                 sec-websocket-protocol: x\r\n\
                 sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n",
            )
            .await;
        assert_eq!(&*answer.data().await.unwrap().unwrap(), b"early");
        answer.send_data(&b"hello"[..], false);
        client.expect("hello").await;
        client.send("more").await;
        client.finish().await;
        assert_eq!(body(&mut answer).await.unwrap(), b"more");
        answer.send_data(&b"bye"[..], true);
        client.expect("bye").await;
        client.expect_end().await;
        let done = done.recv().await.unwrap();
        assert!(done.upgraded && !done.client_reusable && done.failure.is_none());
        assert_eq!(done.status, Some(101));
    });
}

#[test]
fn a_tunnel_that_is_reset_is_reset_on_both_sides() {
    run(async {
        let (mut client, mut app, mut done) = websocket_lab().await;
        client.send(CHAT).await;
        let (_, mut answer) = next(&mut app).await;
        answer.send_head(&head([(":status", "200")]), false);
        client.expect("HTTP/1.1 101 Switching Protocols\r\n").await;
        answer.reset(Code::CONNECT_ERROR);
        client.rest().await;
        assert!(done.recv().await.unwrap().failure.is_some());
    });
}

#[test]
fn an_upgrade_that_is_not_granted_is_an_ordinary_response() {
    run(async {
        let (mut client, mut app, mut done) = websocket_lab().await;
        client.send(CHAT).await;
        let (_, mut answer) = next(&mut app).await;
        answer.send_head(&head([(":status", "403"), ("content-length", "2")]), false);
        answer.send_data(&b"no"[..], true);
        client.expect("HTTP/1.1 403 Forbidden\r\ncontent-length: 2\r\n\r\nno").await;
        assert!(answer.data().await.unwrap().is_none());
        let done = done.recv().await.unwrap();
        assert!(!done.upgraded && done.client_reusable);
    });
}

#[test]
fn no_upgrade_is_requested_from_a_server_without_extended_connect() {
    run(async {
        let peers = leno_h2::Limits { connect_protocol: false, ..leno_h2::Limits::default() };
        let (mut client, mut app, _) = h1_h2(Settings { peers, ..Settings::default() });
        client.send(CHAT).await;
        let (asked, mut answer) = next(&mut app).await;
        assert_eq!(asked.get(b":method"), Some(&b"GET"[..]));
        assert_eq!(asked.get(b"upgrade"), None);
        answer.send_head(&head([(":status", "400")]), true);
        client.expect("HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n").await;
    });
}
