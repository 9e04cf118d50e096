//! Exchanges that fail, and whether both connections can be used afterwards.

use crate::support::{Lab, Settings};
use leno_http::{Answer, Cause, Conn, HeaderLine, Limits, Party, pool_stats, unread_answers};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Duration;

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

fn lab() -> Lab {
    Lab::new(Settings::default())
}

#[tokio::test(start_paused = true)]
async fn the_wait_for_the_rest_of_a_body_is_limited() {
    let mut lab = lab();
    lab.client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\n\r\nabc").await;
    let mut server = lab.server().await;
    server.send(OK).await;
    lab.client.expect(OK).await;
    let done = lab.outcome().await;
    assert!(done.failure.is_none() && !done.client_reusable && !done.server_reusable);
    lab.client.expect_end().await;
}

#[tokio::test(start_paused = true)]
async fn no_more_is_read_than_can_be_written() {
    let mut lab = Lab::new(Settings { pipe: 256 * 1024, ..Settings::default() });
    lab.client.send(GET).await;
    let mut server = lab.server().await;
    server.expect(GET).await;
    server.send("HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n").await;
    // The client does not read, so its pipe, one buffer and the server's pipe fill up.
    let mut taken = 0;
    let piece = [7; 4096];
    while let Ok(count) =
        tokio::time::timeout(Duration::from_millis(1), server.0.write(&piece)).await
    {
        taken += count.unwrap();
    }
    assert!(taken <= 3 * 256 * 1024, "{taken}");
}

#[tokio::test(start_paused = true)]
async fn a_request_is_retried_if_its_server_has_closed_the_connection() {
    let mut lab = lab();
    let request = "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc";
    lab.client.send(GET).await;
    let mut server = lab.server().await;
    server.expect(GET).await;
    server.send(OK).await;
    lab.client.expect(OK).await;
    assert!(lab.outcome().await.server_reusable);
    lab.client.send(request).await;
    server.expect(request).await;
    drop(server);
    let failure = lab.outcome().await.failure.unwrap();
    assert!(failure.retryable && failure.place == Party::Server);
    let mut server = lab.server().await;
    server.expect(request).await;
    server.send(OK).await;
    lab.client.expect(OK).await;
    assert!(lab.outcome().await.failure.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_closed_pooled_connection_is_not_used() {
    let mut lab = lab();
    for last_words in ["", "HTTP/1.1 408 Request Timeout\r\nConnection: close\r\n\r\n"] {
        lab.client.send(GET).await;
        let mut server = lab.server().await;
        server.expect(GET).await;
        server.send(OK).await;
        lab.client.expect(OK).await;
        server.send(last_words).await;
        drop(server);
        let done = lab.outcome().await;
        assert!(done.server_reusable && done.failure.is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn a_408_that_crossed_the_request_is_not_forwarded() {
    let mut lab = lab();
    lab.client.send(GET).await;
    let mut server = lab.server().await;
    server.expect(GET).await;
    server.send(OK).await;
    lab.client.expect(OK).await;
    lab.outcome().await;
    lab.client.send(GET).await;
    server.expect(GET).await;
    server.send("HTTP/1.1 408 Request Timeout\r\nConnection: close\r\n\r\n").await;
    let failure = lab.outcome().await.failure.unwrap();
    assert!(failure.retryable && matches!(failure.cause, Cause::Stale));
    let mut server = lab.server().await;
    server.send(OK).await;
    lab.client.expect(OK).await;
}

#[tokio::test(start_paused = true)]
async fn a_large_body_cannot_be_sent_twice() {
    let mut lab = lab();
    let head = "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 40000\r\n\r\n";
    lab.client.send(head).await;
    lab.client.send("x".repeat(30_000)).await;
    let mut server = lab.server().await;
    server.expect([head, &"x".repeat(20_000)].concat()).await;
    drop(server);
    let failure = lab.outcome().await.failure.unwrap();
    assert!(!failure.retryable);
    lab.client.expect_error(502, "closed").await;
}

#[tokio::test(start_paused = true)]
async fn the_judge_can_have_a_request_sent_to_another_server() {
    let mut lab = Lab::new(Settings { retry_on: Some(503), ..Settings::default() });
    lab.client.send(GET).await;
    let mut server = lab.server().await;
    server.expect(GET).await;
    server.send("HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n").await;
    assert!(matches!(lab.outcome().await.failure.unwrap().cause, Cause::Refused));
    let mut server = lab.server().await;
    server.expect(GET).await;
    server.send(OK).await;
    lab.client.expect(OK).await;
    assert!(lab.outcome().await.client_reusable);
}

#[tokio::test(start_paused = true)]
async fn an_incomplete_response_is_a_failure() {
    for (part, started) in [
        ("HTTP/1.1 200 OK\r\nContent-Le", false),
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc", true),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n", true),
    ] {
        let mut lab = lab();
        lab.client.send(GET).await;
        let mut server = lab.server().await;
        server.expect(GET).await;
        server.send(part).await;
        if started {
            lab.client.expect(part).await;
        }
        drop(server);
        let done = lab.outcome().await;
        let failure = done.failure.unwrap();
        assert!(!failure.retryable && matches!(failure.cause, Cause::Closed));
        assert_eq!((failure.place, done.response_started), (Party::Server, started));
        if started {
            lab.client.expect_end().await;
        } else {
            let rest = lab.client.rest().await;
            assert!(rest.starts_with("HTTP/1.1 502 Bad Gateway\r\nleno-error: closed\r\n"));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_half_closed_client_still_gets_its_response() {
    let mut lab = lab();
    lab.client.send(GET).await;
    lab.client.finish().await;
    let mut server = lab.server().await;
    server.expect(GET).await;
    server.expect_end().await;
    server.send(OK).await;
    lab.client.expect(OK).await;
    lab.client.expect_end().await;
    assert!(!lab.outcome().await.server_reusable);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_during_its_upload_fails_only_its_own_request() {
    let mut lab = lab();
    lab.client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\n\r\nabc").await;
    let mut server = lab.server().await;
    server.expect("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\n\r\nabc").await;
    lab.client.finish().await;
    server.expect_end().await;
    let failure = lab.outcome().await.failure.unwrap();
    assert!(failure.place == Party::Client && matches!(failure.cause, Cause::Closed));
    assert_eq!(failure.status(), None);
}

#[tokio::test(start_paused = true)]
async fn bytes_behind_a_response_end_the_servers_connection() {
    let mut lab = lab();
    for _ in 0..2 {
        lab.client.send(GET).await;
        let mut server = lab.server().await;
        server.expect(GET).await;
        server.send([OK, "HTTP/1.1 200 OK\r\n\r\nstray"].concat()).await;
        lab.client.expect(OK).await;
        let done = lab.outcome().await;
        assert!(done.client_reusable && !done.server_reusable);
    }
}

#[tokio::test(start_paused = true)]
async fn bounds_in_time() {
    // An idle connection.
    let mut lab = lab();
    lab.client.expect_end().await;
    // A head that never ends, although bytes keep arriving.
    let mut lab = Lab::new(Settings::default());
    let begun = tokio::time::Instant::now();
    lab.client.send("GET / HTTP/1.1\r\nHost: a\r\n").await;
    tokio::task::yield_now().await;
    for _ in 0..59 {
        tokio::time::advance(Duration::from_secs(1)).await;
        lab.client.send("A: b\r\n").await;
    }
    lab.client.expect_error(408, "head-timeout").await;
    assert_eq!(begun.elapsed().as_secs(), Limits::default().head.as_secs());
    // A server that never answers.
    let deadline = Some(Duration::from_secs(5));
    let mut lab = Lab::new(Settings { deadline, ..Settings::default() });
    lab.client.send(GET).await;
    let _server = lab.server().await;
    let begun = tokio::time::Instant::now();
    let rest = lab.outcome().await;
    assert_eq!(begun.elapsed().as_secs(), 5);
    assert_eq!(rest.failure.unwrap().status(), Some(504));
    lab.client.expect("HTTP/1.1 504 Gateway Timeout\r\nleno-error: deadline\r\n").await;
    // A response whose body never ends.
    let mut lab = Lab::new(Settings::default());
    lab.client.send(GET).await;
    let mut server = lab.server().await;
    server.send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc").await;
    let failure = lab.outcome().await.failure.unwrap();
    assert!(failure.place == Party::Us && matches!(failure.cause, Cause::Stalled));
}

#[tokio::test(start_paused = true)]
async fn a_stall_is_blamed_on_the_side_that_does_not_move() {
    for (body, place) in [("abc", Party::Server), ("ab", Party::Us)] {
        let mut lab = Lab::new(Settings::default());
        lab.client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n").await;
        lab.client.send(body).await;
        let _silent = lab.server().await;
        let failure = lab.outcome().await.failure.unwrap();
        assert!(matches!(failure.cause, Cause::Stalled));
        assert_eq!(failure.place, place, "{body}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_whose_response_does_not_begin_in_time_is_replaced() {
    let within = Some(Duration::from_secs(5));
    let mut lab = Lab::new(Settings { response_within: within, ..Settings::default() });
    lab.client.send(GET).await;
    let (_silent, begun) = (lab.server().await, tokio::time::Instant::now());
    assert!(matches!(lab.outcome().await.failure.unwrap().cause, Cause::Late));
    let mut second = lab.server().await;
    assert_eq!(begun.elapsed().as_secs(), 5);
    // Once a response has begun, this time limit no longer applies to it.
    second.send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc").await;
    lab.client.expect("HTTP/1.1 200 OK\r\n").await;
    tokio::time::advance(Duration::from_secs(60)).await;
    second.send("de").await;
    assert!(lab.outcome().await.failure.is_none());
}

#[tokio::test(start_paused = true)]
async fn an_exchange_ends_if_a_side_reads_no_bytes() {
    let mut lab = Lab::new(Settings { pipe: 1000, ..Settings::default() });
    lab.client.send(GET).await;
    let mut server = lab.server().await;
    let begun = tokio::time::Instant::now();
    let big = [&b"HTTP/1.1 200 OK\r\nContent-Length: 9000\r\n\r\n"[..], &[b'x'; 9000]].concat();
    let (failure, ()) =
        tokio::join!(async { lab.done.recv().await.unwrap().failure.unwrap() }, async {
            server.0.write_all(&big).await.unwrap_err();
        });
    assert!(failure.place == Party::Client && matches!(failure.cause, Cause::Stalled));
    assert_eq!(begun.elapsed(), Limits::default().write_stall);
}

#[tokio::test(start_paused = true)]
async fn an_answer_of_the_proxy_keeps_the_connection_open_if_possible() {
    let deadline = Some(Duration::from_secs(5));
    let mut lab = Lab::new(Settings { deadline, ..Settings::default() });
    let request = "POST / HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 3\r\n\r\nabc";
    for _ in 0..2 {
        lab.client.send(request).await;
        let _server = lab.server().await;
        lab.client
            .expect(
                "HTTP/1.1 504 Gateway Timeout\r\nleno-error: deadline\r\n\
                 Content-Type: text/plain; charset=utf-8\r\nContent-Length: 32\r\n\
                 Connection: keep-alive\r\n\r\nleno: Gateway Timeout: deadline\n",
            )
            .await;
    }
    // The end of an incomplete body is unknown.
    lab.client.send("HEAD / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nab").await;
    let _server = lab.server().await;
    let rest = lab.client.rest().await;
    assert!(rest.ends_with("\r\nConnection: close\r\n\r\n"), "{rest}");
}

/// A client that sends requests and does not read loses its connection.
#[tokio::test(start_paused = true)]
async fn the_connection_ends_if_the_client_does_not_read_an_answer() {
    let (near, mut far) = tokio::io::duplex(1000);
    let mut client = Conn::new(near);
    far.write_all(GET.as_bytes()).await.unwrap();
    let request = client.read_request(&Limits::default()).await.unwrap().unwrap();
    let page = vec![b'x'; 100_000];
    let answer =
        Answer { status: 200, cause: None, headers: &[], content_type: "text/plain", body: &page };
    let (begun, unread) = (tokio::time::Instant::now(), unread_answers());
    let error = client.respond(Some(&request), &answer).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
    assert_eq!((begun.elapsed().as_secs(), unread_answers() - unread), (30, 1));
}

#[tokio::test(start_paused = true)]
async fn a_page_of_the_proxy_is_served() {
    let (near, mut far) = tokio::io::duplex(1 << 20);
    let mut client = Conn::new(near);
    let limits = Limits::default();
    let page = vec![b'x'; 100_000];
    for method in ["GET", "HEAD"] {
        let request = format!("{method} / HTTP/1.1\r\nHost: a\r\n\r\n");
        far.write_all(request.as_bytes()).await.unwrap();
        let request = client.read_request(&limits).await.unwrap().unwrap();
        let headers = [HeaderLine::new("Cache-Control", b"no-store").unwrap()];
        let answer = Answer {
            status: 200,
            cause: None,
            headers: &headers,
            content_type: "text/plain",
            body: &page,
        };
        assert!(client.respond(Some(&request), &answer).await.unwrap());
        let head = "HTTP/1.1 200 OK\r\nCache-Control: no-store\r\nContent-Type: text/plain\r\n\
            Content-Length: 100000\r\n\r\n";
        let body = if method == "HEAD" { &[][..] } else { &page };
        let mut got = vec![0; head.len() + body.len()];
        far.read_exact(&mut got).await.unwrap();
        assert!(got == [head.as_bytes(), body].concat());
    }
    client.close(&limits).await;
    assert_eq!(far.read_to_end(&mut vec![]).await.unwrap(), 0);
    assert_eq!(pool_stats().used, [0; 4]);
}
