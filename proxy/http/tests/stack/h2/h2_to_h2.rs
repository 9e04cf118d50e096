//! From an HTTP/2 client to an HTTP/2 server.

use std::rc::Rc;
use std::time::Duration;

use leno_h2::{Code, ResetBy};
use leno_http::{Cause, HeaderLine, Party};
use tokio::join;
use tokio::task::{spawn_local, yield_now};
use tokio::time::sleep;

use super::support::{
    Settings, body, h2_front, h2_h2, head, impatient, lines, next, pattern, request, run,
    send_body, serve_h2_h2, small_windows,
};

#[test]
fn a_request_and_its_response_are_relayed() {
    run(async {
        let (user, mut app, mut done) = h2_h2(Settings::default());
        let mut stream = user.open(&request("GET", "/1?q"), true).unwrap();
        let (asked, mut answer) = next(&mut app).await;
        assert_eq!(lines(&asked), ":method: GET\n:scheme: http\n:authority: a\n:path: /1?q\n");
        assert!(answer.is_ended());
        answer.send_head(&head([(":status", "103"), ("link", "x")]), false);
        answer.send_head(&head([(":status", "200"), ("content-length", "2")]), false);
        answer.send_data(&b"ok"[..], true);
        assert_eq!(lines(&stream.head().await.unwrap()), ":status: 103\nlink: x\n");
        assert_eq!(lines(&stream.head().await.unwrap()), ":status: 200\ncontent-length: 2\n");
        assert_eq!(body(&mut stream).await.unwrap(), b"ok");
        let done = done.recv().await.unwrap();
        assert!(done.failure.is_none() && done.client_reusable && done.server_reusable);
        assert!(done.first_byte.is_some() && done.response_started);
        assert_eq!(done.status, Some(200));
        // In addition to names and values, 32 bytes are counted for each field.
        assert_eq!(done.request_bytes, 4 * 32 + 10 + 11 + 11 + 9);
        assert_eq!(done.response_bytes, 2 * 32 + 10 + 15 + 2);
    });
}

#[test]
fn both_heads_are_edited() {
    run(async {
        let line = |name: &str, value: &[u8]| HeaderLine::new(name, value).unwrap();
        let settings = Settings {
            set: vec![line("L5D-Client", b"me"), line("Host", b"b:1"), line("TE", b"gzip")],
            set_response: vec![line("Server", b"leno"), line("Upgrade", b"no")],
            target: Some(b"/2"),
            ..Settings::default()
        };
        let (user, mut app, _) = h2_h2(settings);
        let mut asked = request("GET", "/1");
        asked.push(b"l5d-client", b"you");
        asked.push(b"leno-h1", b"1.0 T");
        asked.push(b"x", b"y");
        let mut stream = user.open(&asked, true).unwrap();
        let (asked, mut answer) = next(&mut app).await;
        assert_eq!(
            lines(&asked),
            ":method: GET\n:scheme: http\n:authority: b:1\n:path: /2\nx: y\nl5d-client: me\n"
        );
        let fields = [(":status", "200"), ("server", "x"), ("leno-h1", "1.0 T")];
        answer.send_head(&head(fields), true);
        assert_eq!(lines(&stream.head().await.unwrap()), ":status: 200\nserver: leno\n");
    });
}

#[test]
fn bodies_and_trailers_are_relayed_in_both_directions() {
    for settings in [Settings::default(), small_windows()] {
        run(async {
            let (user, mut app, mut done) = h2_h2(settings);
            for len in [0, 1, 70_000, 10 << 20] {
                let mut up = user.open(&request("POST", "/"), false).unwrap();
                let user = async {
                    send_body(&mut up, &pattern(len), false).await;
                    up.send_trailers(head([("x-up", "1")]));
                    assert_eq!(up.head().await.unwrap().status(), Some(200));
                    assert_eq!(body(&mut up).await.unwrap(), pattern(len));
                    assert_eq!(lines(&up.trailers().unwrap()), "x-down: 2\n");
                };
                let app = async {
                    let (_, mut answer) = next(&mut app).await;
                    let bytes = body(&mut answer).await.unwrap();
                    assert_eq!(bytes, pattern(len));
                    assert_eq!(lines(&answer.trailers().unwrap()), "x-up: 1\n");
                    answer.send_head(&head([(":status", "200")]), false);
                    send_body(&mut answer, &bytes, false).await;
                    answer.send_trailers(head([("x-down", "2")]));
                    answer.closed().await
                };
                tokio::join!(user, app);
                let done = done.recv().await.unwrap();
                assert!(done.failure.is_none(), "{:?}", done.failure);
                assert!(done.request_bytes > len as u64 && done.response_bytes > len as u64);
            }
        });
    }
}

#[test]
fn both_directions_move_at_once() {
    run(async {
        let (user, mut app, mut done) = h2_h2(Settings::default());
        let mut up = user.open(&request("POST", "/"), false).unwrap();
        let (_, mut answer) = next(&mut app).await;
        answer.send_head(&head([(":status", "200")]), false);
        up.head().await.unwrap();
        for round in 0..10u8 {
            up.send_data(vec![round], false);
            assert_eq!(*answer.data().await.unwrap().unwrap(), [round]);
            answer.release(1);
            answer.send_data(vec![round], false);
            assert_eq!(*up.data().await.unwrap().unwrap(), [round]);
            up.release(1);
        }
        up.send_data(vec![], true);
        answer.send_data(vec![], true);
        assert!(up.data().await.unwrap().is_none());
        assert!(done.recv().await.unwrap().failure.is_none());
    });
}

#[test]
fn a_refused_request_is_sent_again_with_its_body() {
    run(async {
        let (user, mut app, mut done) = h2_h2(Settings::default());
        let mut up = user.open(&request("POST", "/"), false).unwrap();
        up.send_data(&b"hello "[..], false);
        let (_, mut first) = next(&mut app).await;
        assert_eq!(&*first.data().await.unwrap().unwrap(), b"hello ");
        first.reset(Code::REFUSED_STREAM);
        let (_, mut second) = next(&mut app).await;
        up.send_data(&b"world"[..], false);
        up.send_trailers(head([("x-up", "1")]));
        assert_eq!(body(&mut second).await.unwrap(), b"hello world");
        second.reset(Code::REFUSED_STREAM);
        let (_, mut third) = next(&mut app).await;
        assert_eq!(body(&mut third).await.unwrap(), b"hello world");
        assert_eq!(lines(&third.trailers().unwrap()), "x-up: 1\n");
        third.send_head(&head([(":status", "204")]), true);
        assert_eq!(up.head().await.unwrap().status(), Some(204));
        for _ in 0..2 {
            let failure = done.recv().await.unwrap().failure.unwrap();
            assert!(failure.retryable && failure.unprocessed && failure.place == Party::Server);
            assert_eq!(failure.cause.label(), "refused-stream");
        }
        assert!(done.recv().await.unwrap().failure.is_none());
    });
}

#[test]
fn a_request_is_not_retried_if_too_much_of_it_was_sent() {
    run(async {
        // The server accepts more bytes than are held for a retry.
        let peers = leno_h2::Limits { stream_window: 256 * 1024, ..leno_h2::Limits::default() };
        let (user, mut app, mut done) = h2_h2(Settings { peers, ..Settings::default() });
        let mut up = user.open(&request("POST", "/"), false).unwrap();
        send_body(&mut up, &pattern(100_000), false).await;
        let (_, mut answer) = next(&mut app).await;
        let mut read = 0;
        while read < 80_000 {
            read += answer.data().await.unwrap().unwrap().len();
        }
        answer.reset(Code::REFUSED_STREAM);
        let failure = done.recv().await.unwrap().failure.unwrap();
        assert!(!failure.retryable && failure.unprocessed);
        let head = up.head().await.unwrap();
        assert_eq!(
            (head.status(), head.get(b"leno-error")),
            (Some(502), Some(&b"refused-stream"[..]))
        );
        assert_eq!(body(&mut up).await.unwrap(), b"leno: Bad Gateway: refused-stream\n");
    });
}

#[test]
fn a_lost_connection_fails_its_requests() {
    run(async {
        let (user, mut app, mut done) = h2_h2(Settings { tries: 1, ..Settings::default() });
        let mut up = user.open(&request("GET", "/"), true).unwrap();
        drop(next(&mut app).await);
        let failure = done.recv().await.unwrap().failure.unwrap();
        assert!(failure.retryable && !failure.unprocessed);
        assert_eq!(failure.cause.label(), "cancel");
        assert_eq!(up.head().await.unwrap().status(), Some(502));
        drop(app);
        let mut up = user.open(&request("GET", "/"), true).unwrap();
        let failure = done.recv().await.unwrap().failure.unwrap();
        assert!(failure.unprocessed && failure.retryable, "{failure:?}");
        assert!(matches!(up.head().await.unwrap().status(), Some(502 | 503)));
    });
}

#[test]
fn a_request_is_retried_if_its_response_is_refused_or_late() {
    run(async {
        let within = Some(std::time::Duration::from_secs(1));
        let (user, mut app, mut done) =
            h2_h2(Settings { response_within: within, ..Settings::default() });
        let mut up = user.open(&request("GET", "/"), true).unwrap();
        let (_, _first) = next(&mut app).await;
        let failure = done.recv().await.unwrap().failure.unwrap();
        assert!(failure.retryable && matches!(failure.cause, Cause::Late));
        let (_, mut second) = next(&mut app).await;
        second.send_head(&head([(":status", "200")]), true);
        assert_eq!(up.head().await.unwrap().status(), Some(200));
        let (user, mut app, mut done) =
            h2_h2(Settings { retry_on: Some(503), ..Settings::default() });
        let mut up = user.open(&request("GET", "/"), true).unwrap();
        let (_, mut first) = next(&mut app).await;
        first.send_head(&head([(":status", "503")]), true);
        let (_, mut second) = next(&mut app).await;
        second.send_head(&head([(":status", "200")]), true);
        assert_eq!(up.head().await.unwrap().status(), Some(200));
        let failure = done.recv().await.unwrap().failure.unwrap();
        assert!(failure.retryable && matches!(failure.cause, Cause::Refused));
        assert!(done.recv().await.unwrap().failure.is_none());
    });
}

/// A body that was read in advance, as for an external authorizer, is held in pieces. The server responds when it has
/// received only some of them, because it reads slowly.
#[test]
fn a_body_that_was_read_ahead_survives_an_early_response() {
    run(async {
        let settings = Settings { read_ahead: Some(1 << 16), ..small_windows() };
        let (user, mut app, mut done) = h2_h2(settings);
        let mut up = user.open(&request("POST", "/"), false).unwrap();
        let bytes = pattern(60_000);
        let user = async {
            send_body(&mut up, &bytes, false).await;
            up.send_trailers(head([("x-up", "1")]));
            assert_eq!(up.head().await.unwrap().status(), Some(200));
            assert_eq!(body(&mut up).await.unwrap(), b"ok");
        };
        let app = async {
            let (_, mut answer) = next(&mut app).await;
            answer.send_head(&head([(":status", "200")]), false);
            yield_now().await;
            assert!(body(&mut answer).await.unwrap() == bytes);
            assert_eq!(lines(&answer.trailers().unwrap()), "x-up: 1\n");
            answer.send_data(&b"ok"[..], true);
        };
        join!(user, app);
        assert!(done.recv().await.unwrap().failure.is_none());
    });
}

#[test]
fn resets_are_passed_on_at_every_stage() {
    run(async {
        let (user, mut app, mut done) = h2_h2(Settings { tries: 1, ..Settings::default() });
        // The client resets its stream before the response.
        let up = user.open(&request("POST", "/"), false).unwrap();
        let (_, mut answer) = next(&mut app).await;
        up.reset(Code::CANCEL);
        let reset = answer.data().await.unwrap_err();
        assert_eq!((reset.by, reset.code), (ResetBy::Peer, Code::CANCEL));
        let failure = done.recv().await.unwrap().failure.unwrap();
        assert_eq!((failure.place, failure.status()), (Party::Client, None));
        // The client resets its stream during the response.
        let mut up = user.open(&request("POST", "/"), false).unwrap();
        let (_, mut answer) = next(&mut app).await;
        answer.send_head(&head([(":status", "200")]), false);
        up.head().await.unwrap();
        up.reset(Code::CANCEL);
        assert_eq!(answer.data().await.unwrap_err().code, Code::CANCEL);
        assert_eq!(done.recv().await.unwrap().failure.unwrap().place, Party::Client);
        // The server resets its stream during the response. The part before that is delivered.
        for ended in [false, true] {
            let mut up = user.open(&request("POST", "/"), ended).unwrap();
            let (_, mut answer) = next(&mut app).await;
            answer.send_head(&head([(":status", "200"), ("content-length", "5")]), false);
            answer.send_data(&b"he"[..], false);
            up.head().await.unwrap();
            assert_eq!(&*up.data().await.unwrap().unwrap(), b"he");
            answer.reset(Code::INTERNAL_ERROR);
            assert_eq!(up.data().await.unwrap_err().code, Code::INTERNAL_ERROR);
            let done = done.recv().await.unwrap();
            let failure = done.failure.unwrap();
            assert!(done.response_started && !failure.retryable);
            assert_eq!((failure.place, failure.cause.label()), (Party::Server, "internal-error"));
        }
    });
}

#[test]
fn a_complete_response_ends_an_unfinished_request() {
    run(async {
        let (user, mut app, mut done) = h2_h2(Settings::default());
        for bytes in [b"".as_slice(), b"no thanks"] {
            let mut up = user.open(&request("POST", "/"), false).unwrap();
            up.send_data(&b"x"[..], false);
            let (_, mut answer) = next(&mut app).await;
            assert_eq!(&*answer.data().await.unwrap().unwrap(), b"x");
            answer.send_head(&head([(":status", "413")]), bytes.is_empty());
            if !bytes.is_empty() {
                answer.send_data(bytes, true);
            }
            drop(answer);
            assert_eq!(up.head().await.unwrap().status(), Some(413));
            assert_eq!(body(&mut up).await.unwrap(), bytes);
            let reset = up.closed().await.unwrap();
            assert_eq!((reset.by, reset.code), (ResetBy::Peer, Code::NO_ERROR));
            let done = done.recv().await.unwrap();
            assert!(done.failure.is_none(), "{:?}", done.failure);
        }
    });
}

#[test]
fn a_deadline_ends_an_exchange() {
    run(async {
        let settings = Settings { deadline: Some(Duration::from_secs(1)), ..Settings::default() };
        let (user, mut app, mut done) = h2_h2(settings);
        let mut up = user.open(&request("GET", "/"), true).unwrap();
        let (_, mut answer) = next(&mut app).await;
        assert_eq!(up.head().await.unwrap().status(), Some(504));
        let failure = done.recv().await.unwrap().failure.unwrap();
        assert!(matches!(failure.cause, Cause::Deadline) && failure.place == Party::Server);
        assert_eq!(answer.closed().await.unwrap().code, Code::CANCEL);
        for ended in [false, true] {
            let mut up = user.open(&request("POST", "/"), ended).unwrap();
            let (_, mut answer) = next(&mut app).await;
            answer.send_head(&head([(":status", "200")]), false);
            up.head().await.unwrap();
            assert_eq!(up.closed().await.unwrap().by, ResetBy::Peer);
            let failure = done.recv().await.unwrap().failure.unwrap();
            assert!(matches!(failure.cause, Cause::Deadline) && failure.place == Party::Us);
            assert_eq!(answer.closed().await.unwrap().code, Code::CANCEL);
        }
    });
}

#[test]
fn a_stall_is_blamed_on_the_side_that_does_not_move() {
    run(async {
        let Settings { limits, tries, .. } = impatient();
        let settings = Settings { limits, tries, ..small_windows() };
        let (user, mut app, mut done) = h2_h2(settings);
        // Either the whole request has been sent; or a part of it; or more than the server accepts.
        let cases =
            [(10, true, Party::Server), (10, false, Party::Us), (200_000, false, Party::Server)];
        for (bytes, ended, place) in cases {
            let mut up = user.open(&request("POST", "/"), false).unwrap();
            up.send_data(pattern(bytes), ended);
            let _silent = next(&mut app).await;
            assert_eq!(up.head().await.unwrap().status(), Some(504));
            let failure = done.recv().await.unwrap().failure.unwrap();
            assert!(matches!(failure.cause, Cause::Stalled));
            assert_eq!(failure.place, place, "{}: {bytes} bytes, {ended}", failure.cause);
        }
    });
}

#[test]
fn grpc_calls_get_statuses_errors_and_deadlines() {
    run(async {
        let (user, mut app, mut done) = h2_h2(Settings { tries: 1, ..Settings::default() });
        let mut call = request("POST", "/a.B/C");
        call.push(b"content-type", b"application/grpc");
        call.push(b"te", b"trailers");
        call.push(b"grpc-timeout", b"100m");
        // The status is in trailers, or in the only head.
        for only in [false, true] {
            let mut up = user.open(&call, false).unwrap();
            up.send_data(&b"\0\0\0\0\0"[..], true);
            let (asked, mut answer) = next(&mut app).await;
            assert_eq!(asked.get(b"te"), Some(&b"trailers"[..]));
            let mut response = head([(":status", "200"), ("content-type", "application/grpc")]);
            if only {
                response.push(b"grpc-status", b"5");
                answer.send_head(&response, true);
            } else {
                answer.send_head(&response, false);
                answer.send_data(&b"\0\0\0\0\0"[..], false);
                answer.send_trailers(head([("grpc-status", "7")]));
            }
            up.head().await.unwrap();
            body(&mut up).await.unwrap();
            assert_eq!(done.recv().await.unwrap().grpc_status, Some(if only { 5 } else { 7 }));
        }
        // The proxy generates these errors.
        let mut up = user.open(&call, true).unwrap();
        next(&mut app).await.1.reset(Code::REFUSED_STREAM);
        assert_eq!(
            lines(&up.head().await.unwrap()),
            ":status: 200\ncontent-type: application/grpc\ngrpc-status: 14\n\
             grpc-message: leno: Bad Gateway: refused-stream\nleno-error: refused-stream\n"
        );
        assert!(up.is_ended());
        assert!(done.recv().await.unwrap().failure.is_some());
        let mut up = user.open(&call, true).unwrap();
        let (_, mut answer) = next(&mut app).await;
        let head = up.head().await.unwrap();
        assert_eq!(head.get(b"grpc-status"), Some(&b"4"[..]));
        assert_eq!(head.get(b"leno-error"), Some(&b"deadline"[..]));
        assert_eq!(answer.closed().await.unwrap().code, Code::CANCEL);
        // One server cancels at the client's deadline, and another one before it.
        call.remove_all(b"grpc-timeout");
        for (timeout, status, cause) in [("1m", "4", "deadline"), ("1H", "1", "cancel")] {
            let mut call = call.clone();
            call.push(b"grpc-timeout", timeout.as_bytes());
            let mut up = user.open(&call, true).unwrap();
            let (_, answer) = next(&mut app).await;
            sleep(Duration::from_millis(2)).await;
            answer.reset(Code::CANCEL);
            let head = up.head().await.unwrap();
            assert_eq!(head.get(b"grpc-status"), Some(status.as_bytes()), "{timeout}");
            assert_eq!(head.get(b"leno-error"), Some(cause.as_bytes()), "{timeout}");
        }
    });
}

#[test]
fn connect_is_refused_and_extended_connect_relayed() {
    run(async {
        let (user, mut app, mut done) = h2_h2(Settings::default());
        let connect = head([(":method", "CONNECT"), (":authority", "a:1")]);
        let mut up = user.open(&connect, false).unwrap();
        assert_eq!(up.head().await.unwrap().status(), Some(501));
        assert_eq!(done.recv().await.unwrap().failure.unwrap().cause.label(), "connect");
        let mut extended = request("CONNECT", "/chat");
        extended.push(b":protocol", b"websocket");
        let mut up = user.open(&extended, false).unwrap();
        let (asked, mut answer) = next(&mut app).await;
        assert_eq!(asked, extended);
        answer.send_head(&head([(":status", "200")]), false);
        up.head().await.unwrap();
        up.send_data(&b"ping"[..], false);
        assert_eq!(&*answer.data().await.unwrap().unwrap(), b"ping");
    });
}

/// RFC 8441 section 3: the proxy waits for the SETTINGS of a server.
#[test]
fn extended_connect_waits_for_the_settings_of_a_new_connection() {
    for takes in [true, false] {
        run(async move {
            let settings = Settings::default();
            let limits = leno_h2::Limits { connect_protocol: takes, ..settings.peers.clone() };
            let (user, accept) = h2_front(&settings);
            let (near, far) = tokio::io::duplex(settings.pipe);
            let (server, driver) = leno_h2::client(near, &Rc::new(settings.h2.clone()));
            spawn_local(driver.run());
            let _done = serve_h2_h2(settings, accept, server);
            let mut extended = request("CONNECT", "/chat");
            extended.push(b":protocol", b"websocket");
            let mut up = user.open(&extended, false).unwrap();
            // This is long after the request has arrived.
            tokio::time::sleep(Duration::from_secs(5)).await;
            let (mut app, driver) = leno_h2::server(far, &[], &Rc::new(limits));
            spawn_local(driver.run());
            if takes {
                let (asked, mut answer) = next(&mut app).await;
                assert_eq!(asked, extended);
                answer.send_head(&head([(":status", "200")]), true);
            }
            let status = if takes { 200 } else { 501 };
            assert_eq!(up.head().await.unwrap().status(), Some(status));
        });
    }
}

#[test]
fn extended_connect_stops_waiting_at_its_deadline_or_when_its_client_leaves() {
    for leaves in [true, false] {
        run(async move {
            let deadline = (!leaves).then_some(Duration::from_secs(1));
            let settings = Settings { deadline, ..Settings::default() };
            let (user, accept) = h2_front(&settings);
            // The other end never sends anything.
            let (near, _far) = tokio::io::duplex(settings.pipe);
            let (server, driver) = leno_h2::client(near, &Rc::new(settings.h2.clone()));
            spawn_local(driver.run());
            let mut done = serve_h2_h2(settings, accept, server);
            let mut extended = request("CONNECT", "/chat");
            extended.push(b":protocol", b"websocket");
            let mut up = user.open(&extended, false).unwrap();
            let begun = tokio::time::Instant::now();
            if leaves {
                tokio::time::sleep(Duration::from_secs(1)).await;
                up.reset(Code::CANCEL);
            } else {
                assert_eq!(up.head().await.unwrap().status(), Some(504));
            }
            let failure = done.recv().await.unwrap().failure.unwrap();
            let place = if leaves { Party::Client } else { Party::Server };
            assert_eq!(failure.place, place, "{failure:?}");
            assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
        });
    }
}

#[test]
fn malformed_hosts_are_refused() {
    run(async {
        let (user, app, mut done) = h2_h2(Settings::default());
        for host in ["a:b:c", "a;b:80x", "[::1"] {
            let mut asked = request("GET", "/");
            asked.set(b":authority", host.as_bytes());
            let mut up = user.open(&asked, true).unwrap();
            assert_eq!(up.head().await.unwrap().status(), Some(400), "{host}");
            assert_eq!(done.recv().await.unwrap().failure.unwrap().cause.label(), "host-malformed");
        }
        drop(app);
    });
}

#[test]
fn the_status_of_a_streaming_call_is_reported() {
    run(async {
        let (user, mut app, mut done) = h2_h2(Settings::default());
        let mut call = request("POST", "/a.B/C");
        call.push(b"content-type", b"application/grpc");
        for ended in [false, true] {
            let mut up = user.open(&call, ended).unwrap();
            let (_, mut answer) = next(&mut app).await;
            answer.send_head(
                &head([(":status", "200"), ("content-type", "application/grpc")]),
                false,
            );
            up.head().await.unwrap();
            answer.send_data(&b"\0\0\0\0\0"[..], false);
            assert_eq!(up.data().await.unwrap().unwrap().len(), 5);
            if !ended {
                up.send_data(vec![], true);
                assert!(answer.data().await.unwrap().is_none());
            }
            answer.send_trailers(head([("grpc-status", "9"), ("x", "y")]));
            assert!(up.data().await.unwrap().is_none());
            assert_eq!(lines(&up.trailers().unwrap()), "grpc-status: 9\nx: y\n");
            let done = done.recv().await.unwrap();
            assert_eq!((done.grpc_status, done.failure.is_none()), (Some(9), true));
        }
    });
}

#[test]
fn a_draining_server_gets_no_new_requests_and_finishes_its_own() {
    run(async {
        let (user, mut app, mut done) = h2_h2(Settings { tries: 1, ..Settings::default() });
        let mut first = user.open(&request("GET", "/1"), true).unwrap();
        let (_, mut answer) = next(&mut app).await;
        app.drain();
        // Once bytes that were sent after the GOAWAY have arrived, the GOAWAY has arrived, too.
        answer.send_head(&head([(":status", "200")]), false);
        first.head().await.unwrap();
        answer.send_data(&b"ok"[..], false);
        assert_eq!(&*first.data().await.unwrap().unwrap(), b"ok");
        let mut second = user.open(&request("GET", "/2"), true).unwrap();
        assert_eq!(second.head().await.unwrap().status(), Some(503));
        let refused = done.recv().await.unwrap();
        assert!(!refused.server_reusable);
        let failure = refused.failure.unwrap();
        assert!(failure.retryable && failure.unprocessed);
        assert_eq!(failure.cause.label(), "draining");
        answer.send_data(vec![], true);
        assert!(first.data().await.unwrap().is_none());
        assert!(done.recv().await.unwrap().failure.is_none());
    });
}
