//! From an HTTP/2 client to an HTTP/1 server.

use std::time::Duration;

use leno_h2::{Code, ResetBy};
use leno_http::{Cause, HeaderLine, Party};
use tokio::join;
use tokio::task::yield_now;

use super::support::{
    Fields, Settings, body, h2_h1, head, impatient, lines, pattern, request, run, send_body,
    server, small_windows,
};

const GET: &str = "GET / HTTP/1.1\r\nhost: a\r\n\r\n";
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

#[test]
fn requests_share_a_connection_one_after_the_other() {
    run(async {
        let (user, mut servers, mut done) = h2_h1(Settings::default());
        let mut stream = user.open(&request("GET", "/"), true).unwrap();
        let mut app = server(&mut servers).await;
        for round in 0..3 {
            if round > 0 {
                stream = user.open(&request("GET", "/"), true).unwrap();
            }
            app.expect(GET).await;
            app.send("HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n").await;
            app.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nKeep-Alive: timeout=5\r\n\r\nok")
                .await;
            assert_eq!(lines(&stream.head().await.unwrap()), ":status: 103\nlink: x\n");
            assert_eq!(lines(&stream.head().await.unwrap()), ":status: 200\ncontent-length: 2\n");
            assert_eq!(body(&mut stream).await.unwrap(), b"ok");
            let done = done.recv().await.unwrap();
            assert!(done.failure.is_none() && done.client_reusable && done.server_reusable);
            assert_eq!(done.server_idle, Some(Duration::from_secs(5)));
        }
    });
}

#[test]
fn heads_of_requests() {
    run(async {
        let line = HeaderLine::new("X-Set", b"1").unwrap();
        let (user, mut servers, _) = h2_h1(Settings { set: vec![line], ..Settings::default() });
        let cases: [(Fields, bool, &str); 5] = [
            (
                &[(":method", "GET"), ("cookie", "a=b"), ("x", "y"), ("cookie", "c=d")],
                true,
                "GET / HTTP/1.1\r\nhost: a\r\ncookie: a=b; c=d\r\nx: y\r\nx-set: 1\r\n\r\n",
            ),
            (
                &[(":method", "POST"), ("leno-h1", "1.0 T")],
                true,
                "POST / HTTP/1.1\r\nhost: a\r\nx-set: 1\r\ncontent-length: 0\r\n\r\n",
            ),
            (
                &[(":method", "GET"), ("te", "trailers"), ("host", "A")],
                true,
                "GET / HTTP/1.1\r\nhost: a\r\nte: trailers\r\nx-set: 1\r\nconnection: TE\r\n\r\n",
            ),
            (
                &[(":method", "PUT"), ("content-length", "2")],
                false,
                "PUT / HTTP/1.1\r\nhost: a\r\nx-set: 1\r\ncontent-length: 2\r\n\r\nok",
            ),
            (
                &[(":method", "PUT")],
                false,
                "PUT / HTTP/1.1\r\nhost: a\r\nx-set: 1\r\ntransfer-encoding: chunked\r\n\r\n\
                 2\r\nok\r\n0\r\n\r\n",
            ),
        ];
        let mut app = None;
        for (fields, ended, expected) in cases {
            let mut asked = head([(":scheme", "http"), (":authority", "a"), (":path", "/")]);
            fields.iter().for_each(|(name, value)| asked.push(name.as_bytes(), value.as_bytes()));
            let mut stream = user.open(&asked, ended).unwrap();
            if !ended {
                stream.send_data(&b"ok"[..], true);
            }
            let mut app_now = match app.take() {
                Some(app) => app,
                None => server(&mut servers).await,
            };
            app_now.expect(expected).await;
            app_now.send(OK).await;
            assert_eq!(body_of(&mut stream).await, b"ok");
            app = Some(app_now);
        }
    });
}

async fn body_of(stream: &mut leno_h2::Stream) -> Vec<u8> {
    stream.head().await.unwrap();
    body(stream).await.unwrap()
}

#[test]
fn responses_with_every_framing_are_translated() {
    let cases = [
        ("GET", "HTTP/1.1 204 No Content\r\nContent-Length: 3\r\n\r\n", ":status: 204\n", ""),
        (
            "GET",
            "HTTP/1.1 304 X\r\nContent-Length: 3\r\n\r\n",
            ":status: 304\ncontent-length: 3\n",
            "",
        ),
        (
            "HEAD",
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n",
            ":status: 200\ncontent-length: 3\n",
            "",
        ),
        ("HEAD", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", ":status: 200\n", ""),
        (
            "GET",
            "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
            ":status: 200\ncontent-length: 0\n",
            "",
        ),
        (
            "GET",
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok",
            ":status: 200\ncontent-length: 2\n",
            "ok",
        ),
        (
            "GET",
            "HTTP/1.1 200 OK\r\nContent-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n\
             2\r\nok\r\n0\r\n\r\n",
            ":status: 200\n",
            "ok",
        ),
        (
            "GET",
            "HTTP/1.0 200 OK\r\nConnection: X\r\nX: 1\r\nUpgrade: h2c\r\nproxy-connection: y\r\n\
             leno-h1: 1.0 T\r\n\r\nuntil the end",
            ":status: 200\n",
            "until the end",
        ),
    ];
    run(async {
        for (method, response, expected, content) in cases {
            let (user, mut servers, mut done) = h2_h1(Settings::default());
            let mut stream = user.open(&request(method, "/"), true).unwrap();
            let mut app = server(&mut servers).await;
            app.expect(format!("{method} / HTTP/1.1\r\nhost: a\r\n\r\n")).await;
            app.send(response).await;
            let closes = response.contains("HTTP/1.0");
            if closes {
                app.finish().await;
            }
            assert_eq!(lines(&stream.head().await.unwrap()), expected);
            assert_eq!(body(&mut stream).await.unwrap(), content.as_bytes());
            let done = done.recv().await.unwrap();
            assert!(done.failure.is_none(), "{response}");
            assert_eq!(done.server_reusable, !closes);
        }
    });
}

#[test]
fn bodies_and_trailers_are_translated_in_both_directions() {
    for settings in [Settings::default(), small_windows()] {
        run(async {
            let (user, mut servers, mut done) = h2_h1(settings);
            for len in [1, 70_000, 10 << 20] {
                let mut up = user.open(&request("POST", "/"), false).unwrap();
                let user = async {
                    send_body(&mut up, &pattern(len), false).await;
                    up.send_trailers(head([("x-up", "1"), ("host", "b")]));
                    assert_eq!(up.head().await.unwrap().status(), Some(200));
                    assert!(body(&mut up).await.unwrap() == pattern(len));
                    assert_eq!(lines(&up.trailers().unwrap()), "x-down: 2\n");
                };
                let app = async {
                    let mut app = server(&mut servers).await;
                    app.expect("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n")
                        .await;
                    let mut got = vec![];
                    loop {
                        let size = app.line().await;
                        let size = usize::from_str_radix(&size, 16).unwrap();
                        if size == 0 {
                            break;
                        }
                        got.extend(app.take(size).await);
                        app.expect("\r\n").await;
                    }
                    app.expect("x-up: 1\r\n\r\n").await;
                    assert!(got == pattern(len));
                    app.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n").await;
                    for part in got.chunks(40_000) {
                        app.send(format!("{:x}\r\n", part.len())).await;
                        app.send(part).await;
                        app.send("\r\n").await;
                    }
                    app.send("0\r\nX-Down: 2\r\n\r\n").await;
                };
                tokio::join!(user, app);
                let done = done.recv().await.unwrap();
                assert!(done.failure.is_none() && !done.server_reusable, "{:?}", done.failure);
                assert!(done.request_bytes > len as u64 && done.response_bytes > len as u64);
            }
        });
    }
}

#[test]
fn a_lost_server_is_replaced_if_the_whole_request_is_held() {
    run(async {
        let (user, mut servers, mut done) = h2_h1(Settings::default());
        let mut up = user.open(&request("POST", "/"), false).unwrap();
        up.send_data(&b"hello"[..], false);
        let mut first = server(&mut servers).await;
        first
            .expect(
                "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",
            )
            .await;
        drop(first);
        let mut second = server(&mut servers).await;
        up.send_data(&b"!"[..], true);
        second
            .expect(
                "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",
            )
            .await;
        second.expect("1\r\n!\r\n0\r\n\r\n").await;
        second.send(OK).await;
        assert_eq!(body_of(&mut up).await, b"ok");
        let failure = done.recv().await.unwrap().failure.unwrap();
        assert!(failure.retryable && !failure.unprocessed && failure.place == Party::Server);
        assert!(done.recv().await.unwrap().failure.is_none());
    });
}

#[test]
fn truncated_responses_are_reset() {
    run(async {
        let ok = "HTTP/1.1 200 OK\r\n";
        let responses = [
            ("Content-Length: 9\r\n\r\nabc", Code::INTERNAL_ERROR),
            ("Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", Code::INTERNAL_ERROR),
            // The last response is malformed (RFC 9113 section 8.1.1).
            ("Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nx\r\n", Code::PROTOCOL_ERROR),
        ];
        for (response, code) in responses {
            let (user, mut servers, mut done) = h2_h1(Settings::default());
            let mut up = user.open(&request("GET", "/"), true).unwrap();
            let mut app = server(&mut servers).await;
            app.expect(GET).await;
            app.send([ok, response].concat()).await;
            app.finish().await;
            assert_eq!(up.head().await.unwrap().status(), Some(200));
            let reset = up.closed().await.unwrap();
            assert_eq!((reset.by, reset.code), (ResetBy::Peer, code));
            let done = done.recv().await.unwrap();
            assert!(done.response_started && !done.server_reusable);
            assert_eq!(done.failure.unwrap().place, Party::Server);
        }
    });
}

#[test]
fn a_client_that_resets_ends_the_servers_connection() {
    run(async {
        let (user, mut servers, mut done) = h2_h1(Settings::default());
        let up = user.open(&request("GET", "/"), true).unwrap();
        let mut app = server(&mut servers).await;
        app.expect(GET).await;
        up.reset(Code::CANCEL);
        app.expect_end().await;
        let done = done.recv().await.unwrap();
        assert_eq!(done.failure.unwrap().place, Party::Client);
        assert!(!done.server_reusable);
    });
}

#[test]
fn requests_that_http1_cannot_express_are_refused() {
    run(async {
        let (user, mut servers, mut done) = h2_h1(Settings::default());
        let cases: [(Fields, u16, &str); 4] = [
            (&[(":method", "CONNECT"), (":authority", "a:1")], 501, "connect"),
            (
                &[(":method", "GET"), (":scheme", "http"), (":authority", "a:b:c"), (":path", "/")],
                400,
                "host-malformed",
            ),
            (&[(":method", "GET"), (":scheme", "http"), (":path", "/")], 400, "host-missing"),
            (
                &[
                    (":method", "CONNECT"),
                    (":scheme", "http"),
                    (":authority", "a"),
                    (":path", "/"),
                    (":protocol", "h2c"),
                ],
                501,
                "connect",
            ),
        ];
        for (fields, status, cause) in cases {
            let asked: leno_h2::Head = fields.iter().copied().collect();
            let mut up = user.open(&asked, true).unwrap();
            let head = up.head().await.unwrap();
            assert_eq!(head.status(), Some(status), "{cause}");
            assert_eq!(head.get(b"leno-error"), Some(cause.as_bytes()));
            let failure = done.recv().await.unwrap().failure.unwrap();
            assert!(!failure.retryable && failure.place == Party::Client);
        }
        let mut app = server(&mut servers).await;
        app.expect_end().await;
    });
}

#[test]
fn a_deadline_and_a_judge_end_an_exchange() {
    run(async {
        let settings = Settings { deadline: Some(Duration::from_secs(1)), ..Settings::default() };
        let (user, mut servers, mut done) = h2_h1(settings);
        let mut up = user.open(&request("GET", "/"), true).unwrap();
        let mut app = server(&mut servers).await;
        app.expect(GET).await;
        assert_eq!(up.head().await.unwrap().status(), Some(504));
        app.expect_end().await;
        assert!(matches!(done.recv().await.unwrap().failure.unwrap().cause, Cause::Deadline));
        let within = Some(Duration::from_secs(1));
        let late = Settings { response_within: within, ..Settings::default() };
        let (user, mut servers, _) = h2_h1(late);
        let mut up = user.open(&request("GET", "/"), true).unwrap();
        let mut silent = server(&mut servers).await;
        silent.expect(GET).await;
        let mut second = server(&mut servers).await;
        second.expect(GET).await;
        second.send(OK).await;
        assert_eq!(body_of(&mut up).await, b"ok");
        let (user, mut servers, _) = h2_h1(Settings { retry_on: Some(503), ..Settings::default() });
        let mut up = user.open(&request("GET", "/"), true).unwrap();
        let mut first = server(&mut servers).await;
        first.expect(GET).await;
        first.send("HTTP/1.1 503 X\r\nContent-Length: 0\r\n\r\n").await;
        let mut second = server(&mut servers).await;
        second.expect(GET).await;
        second.send(OK).await;
        assert_eq!(body_of(&mut up).await, b"ok");
    });
}

#[test]
fn a_stall_is_blamed_on_the_side_that_does_not_move() {
    run(async {
        let settings = impatient();
        let (user, mut servers, mut done) = h2_h1(settings);
        for (ended, place) in [(true, Party::Server), (false, Party::Us)] {
            let mut up = user.open(&request("POST", "/"), false).unwrap();
            up.send_data(&b"abc"[..], ended);
            let _silent = server(&mut servers).await;
            assert_eq!(up.head().await.unwrap().status(), Some(504));
            let failure = done.recv().await.unwrap().failure.unwrap();
            assert!(matches!(failure.cause, Cause::Stalled));
            assert_eq!(failure.place, place, "{}, ended: {ended}", failure.cause);
        }
    });
}

#[test]
fn expectations_and_early_responses_are_relayed() {
    run(async {
        let (user, mut servers, mut done) = h2_h1(Settings::default());
        let mut asked = request("POST", "/");
        asked.push(b"expect", b"100-continue");
        asked.push(b"content-length", b"3");
        let mut up = user.open(&asked, false).unwrap();
        let mut app = server(&mut servers).await;
        let expected =
            "POST / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 3\r\n\r\n";
        app.expect(expected).await;
        app.send("HTTP/1.1 100 Continue\r\n\r\n").await;
        assert_eq!(up.head().await.unwrap().status(), Some(100));
        up.send_data(&b"abc"[..], true);
        app.expect("abc").await;
        app.send(OK).await;
        assert_eq!(body_of(&mut up).await, b"ok");
        assert!(done.recv().await.unwrap().server_reusable);
        // The body was not sent, so the connection cannot be used again.
        let mut up = user.open(&asked, false).unwrap();
        app.expect(expected).await;
        app.send("HTTP/1.1 417 No\r\nContent-Length: 0\r\n\r\n").await;
        assert_eq!(up.head().await.unwrap().status(), Some(417));
        assert_eq!(up.closed().await.unwrap().code, Code::NO_ERROR);
        assert!(!done.recv().await.unwrap().server_reusable);
        app.expect_end().await;
    });
}

/// A body that was read in advance, as for an external authorizer, is held in pieces. The server responds when it has
/// received only some of them, because it reads slowly.
#[test]
fn a_body_that_was_read_ahead_survives_an_early_response() {
    run(async {
        let settings = Settings { pipe: 2048, read_ahead: Some(1 << 16), ..Settings::default() };
        let (user, mut servers, mut done) = h2_h1(settings);
        let mut asked = request("POST", "/");
        asked.push(b"content-length", b"60000");
        let mut up = user.open(&asked, false).unwrap();
        let body = pattern(60_000);
        let send = async {
            for piece in body.chunks(1500) {
                up.capacity().await.unwrap();
                up.send_data(piece, false);
                yield_now().await;
            }
            up.send_data(&b""[..], true);
            assert_eq!(body_of(&mut up).await, b"ok");
        };
        let serve = async {
            let mut app = server(&mut servers).await;
            app.expect("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 60000\r\n\r\n").await;
            app.send(OK).await;
            assert!(app.take(60_000).await == body);
        };
        join!(send, serve);
        assert!(done.recv().await.unwrap().failure.is_none());
    });
}

fn chat() -> leno_h2::Head {
    let mut asked = request("CONNECT", "/chat");
    asked.push(b":protocol", b"websocket");
    asked.push(b"sec-websocket-version", b"13");
    asked
}

#[test]
fn an_extended_connect_is_an_upgrade() {
    run(async {
        let (user, mut servers, mut done) = h2_h1(Settings::default());
        let mut up = user.open(&chat(), false).unwrap();
        let mut app = server(&mut servers).await;
        app.expect(
            "GET /chat HTTP/1.1\r\nhost: a\r\nsec-websocket-version: 13\r\nsec-websocket-key: ",
        )
        .await;
        let key = app.line().await;
        app.expect("connection: Upgrade\r\nupgrade: websocket\r\n\r\n").await;
        let accept = accept(&key);
        app.send(format!(
            "HTTP/1.1 101 X\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Accept: {accept}\r\nX: y\r\n\r\nhello"
        ))
        .await;
        assert_eq!(lines(&up.head().await.unwrap()), ":status: 200\nx: y\n");
        assert_eq!(&*up.data().await.unwrap().unwrap(), b"hello");
        up.send_data(&b"ping"[..], true);
        app.expect("ping").await;
        app.expect_end().await;
        app.send("bye").await;
        app.finish().await;
        assert_eq!(body(&mut up).await.unwrap(), b"bye");
        let done = done.recv().await.unwrap();
        assert!(done.upgraded && done.failure.is_none() && !done.server_reusable);
    });
}

/// The accept value as RFC 6455 defines it, computed independently of the engine.
fn accept(key: &str) -> String {
    use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
    let answered = format!("{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    let digest = digest(&SHA1_FOR_LEGACY_USE_ONLY, answered.as_bytes());
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bits: String = digest.as_ref().iter().map(|byte| format!("{byte:08b}")).collect();
    let mut text: String = bits
        .as_bytes()
        .chunks(6)
        .map(|six| {
            let six = format!("{:0<6}", std::str::from_utf8(six).unwrap());
            DIGITS[usize::from_str_radix(&six, 2).unwrap()] as char
        })
        .collect();
    text.push('=');
    text
}

#[test]
fn a_server_that_does_not_upgrade_is_reported() {
    run(async {
        let cases = [
            ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 502),
            ("HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n", 403),
            ("HTTP/1.1 101 X\r\nSec-WebSocket-Accept: no\r\n\r\n", 502),
        ];
        for (response, status) in cases {
            let (user, mut servers, mut done) = h2_h1(Settings::default());
            let mut up = user.open(&chat(), false).unwrap();
            let mut app = server(&mut servers).await;
            app.expect("GET /chat HTTP/1.1\r\n").await;
            app.send(response).await;
            assert_eq!(up.head().await.unwrap().status(), Some(status), "{response}");
            assert!(!done.recv().await.unwrap().upgraded);
        }
        // The client has not asked for an upgrade.
        let (user, mut servers, mut done) = h2_h1(Settings::default());
        let mut up = user.open(&request("GET", "/"), true).unwrap();
        let mut app = server(&mut servers).await;
        app.send("HTTP/1.1 101 X\r\n\r\n").await;
        assert_eq!(up.head().await.unwrap().status(), Some(502));
        assert!(matches!(done.recv().await.unwrap().failure.unwrap().cause, Cause::UnaskedUpgrade));
    });
}
