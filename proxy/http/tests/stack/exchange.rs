//! Tests exchanges as transcripts of the bytes on both connections.

use crate::support::{Lab, Settings, Wire};
use leno_http::{Conn, HeaderLine, Limits, pool_stats};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Duration;

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const CLOSES: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";

fn lab() -> Lab {
    Lab::new(Settings::default())
}

#[tokio::test(start_paused = true)]
async fn requests_follow_each_other_on_both_connections() {
    let mut lab = lab();
    lab.client.send(GET).await;
    let mut server = lab.server().await;
    for round in 0..3 {
        if round > 0 {
            lab.client.send(GET).await;
        }
        server.expect(GET).await;
        server.send(OK).await;
        lab.client.expect(OK).await;
        let done = lab.outcome().await;
        assert!(done.client_reusable && done.server_reusable && done.failure.is_none());
        assert_eq!((done.request_bytes, done.response_bytes), (GET.len() as u64, OK.len() as u64));
        assert_eq!(done.status, Some(200));
        assert_eq!(pool_stats().used, [0; 4], "an idle connection holds no buffer");
    }
    lab.client.finish().await;
    lab.expect_no_server().await;
}

#[tokio::test(start_paused = true)]
async fn pipelined_requests_are_answered_in_order_and_sent_one_by_one() {
    let mut lab = lab();
    let second = "POST /2 HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc";
    let third = "GET /3 HTTP/1.1\r\nHost: a\r\n\r\n";
    lab.client.send([GET, second, third].concat()).await;
    lab.client.finish().await;
    let mut server = lab.server().await;
    for request in [GET, second, third] {
        server.expect(request).await;
        assert!(lab.done.try_recv().is_err());
        server.send(OK).await;
        lab.client.expect(OK).await;
        assert_eq!(lab.outcome().await.request_bytes, request.len() as u64);
    }
    server.expect_end().await;
}

#[tokio::test(start_paused = true)]
async fn responses_without_a_body() {
    let mut lab = lab();
    let cases = [
        ("HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"),
        ("HEAD", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
        ("HEAD", "HTTP/1.1 200 OK\r\n\r\n"),
        ("GET", "HTTP/1.1 204 No Content\r\n\r\n"),
        ("GET", "HTTP/1.1 304 Not Modified\r\nContent-Length: 1000\r\n\r\n"),
        ("GET", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
    ];
    let request = |method| format!("{method} / HTTP/1.1\r\nHost: a\r\n\r\n");
    lab.client.send(request("HEAD")).await;
    let mut server = lab.server().await;
    for (index, (method, response)) in cases.into_iter().enumerate() {
        if index > 0 {
            lab.client.send(request(method)).await;
        }
        server.expect(request(method)).await;
        server.send(response).await;
        lab.client.expect(response).await;
        assert!(lab.outcome().await.server_reusable);
    }
}

#[tokio::test(start_paused = true)]
async fn chunks_and_trailers_pass_as_they_are() {
    let mut lab = lab();
    let body = "5;x=y\r\nhello\r\n0\r\nX-Sum: 1\r\n\r\n";
    let request = format!(
        "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\nTE: trailers\r\n\r\n{body}"
    );
    let response = format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{body}");
    lab.client.send(&request).await;
    let mut server = lab.server().await;
    server.expect(&request).await;
    server.send(&response).await;
    lab.client.expect(&response).await;
    assert!(lab.outcome().await.server_reusable);
}

#[tokio::test(start_paused = true)]
async fn a_close_by_the_client_keeps_the_servers_connection() {
    let mut lab = lab();
    lab.client.send("GET / HTTP/1.1\r\nConnection: close\r\nHost: a\r\n\r\n").await;
    let mut server = lab.server().await;
    server.expect(GET).await;
    server.send(OK).await;
    lab.client.expect("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok").await;
    lab.client.expect_end().await;
    let done = lab.outcome().await;
    assert!(!done.client_reusable && done.server_reusable);
}

#[tokio::test(start_paused = true)]
async fn a_close_by_the_server_keeps_the_clients_connection() {
    let mut lab = lab();
    for _ in 0..2 {
        lab.client.send(GET).await;
        let mut server = lab.server().await;
        server.expect(GET).await;
        server.send(CLOSES).await;
        lab.client.expect(OK).await;
        let done = lab.outcome().await;
        assert!(done.client_reusable && !done.server_reusable);
    }
}

#[tokio::test(start_paused = true)]
async fn a_draining_proxy_sends_connection_close() {
    let mut lab = Lab::new(Settings { draining: true, ..Settings::default() });
    lab.client.send(GET).await;
    let mut server = lab.server().await;
    server.expect(GET).await;
    server.send(OK).await;
    lab.client.expect(CLOSES).await;
    lab.client.expect_end().await;
    assert!(lab.outcome().await.server_reusable);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_ends_with_the_connection() {
    let mut lab = lab();
    lab.client.send(GET).await;
    let mut server = lab.server().await;
    server.expect(GET).await;
    server.send("HTTP/1.1 200 OK\r\n\r\nabc").await;
    lab.client.expect("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nabc").await;
    server.send("def").await;
    lab.client.expect("def").await;
    drop(server);
    lab.client.expect_end().await;
    let done = lab.outcome().await;
    assert!(done.failure.is_none() && !done.client_reusable && !done.server_reusable);
}

#[tokio::test(start_paused = true)]
async fn http_1_0_stays_http_1_0() {
    let mut lab = lab();
    lab.client.send("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").await;
    let mut server = lab.server().await;
    server.expect("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").await;
    server.send("HTTP/1.0 200 OK\r\nContent-Length: 2\r\nConnection: keep-alive\r\n\r\nok").await;
    lab.client
        .expect("HTTP/1.0 200 OK\r\nContent-Length: 2\r\nConnection: keep-alive\r\n\r\nok")
        .await;
    assert!(lab.outcome().await.server_reusable);
    lab.client.send("GET / HTTP/1.0\r\n\r\n").await;
    server.expect("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").await;
    server.send("HTTP/1.0 200 OK\r\n\r\nok").await;
    server.finish().await;
    lab.client.expect("HTTP/1.0 200 OK\r\nConnection: close\r\n\r\nok").await;
    lab.client.expect_end().await;
}

#[tokio::test(start_paused = true)]
async fn the_client_sends_its_body_after_a_100() {
    let mut lab = lab();
    let head = "PUT / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n";
    lab.client.send(head).await;
    let mut server = lab.server().await;
    server.expect(head).await;
    server.send("HTTP/1.1 100 Continue\r\n\r\n").await;
    lab.client.expect("HTTP/1.1 100 Continue\r\n\r\n").await;
    lab.client.send("abc").await;
    server.expect("abc").await;
    server.send(["HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n", OK].concat()).await;
    lab.client.expect(["HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n", OK].concat()).await;
    let done = lab.outcome().await;
    assert!(done.client_reusable && done.server_reusable);
}

#[tokio::test(start_paused = true)]
async fn a_final_response_in_place_of_a_100_ends_both_connections() {
    let mut lab = lab();
    let head = "PUT / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n";
    lab.client.send(head).await;
    let mut server = lab.server().await;
    server.expect(head).await;
    server.send("HTTP/1.1 417 No\r\nContent-Length: 0\r\n\r\n").await;
    lab.client.expect("HTTP/1.1 417 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").await;
    lab.client.expect_end().await;
    server.expect_end().await;
    let done = lab.outcome().await;
    assert!(done.failure.is_none() && !done.client_reusable && !done.server_reusable);
}

#[tokio::test(start_paused = true)]
async fn http_1_0_clients_see_no_interim_response() {
    let mut lab = lab();
    lab.client.send("GET / HTTP/1.0\r\n\r\n").await;
    let mut server = lab.server().await;
    server.send(["HTTP/1.1 102 Processing\r\n\r\n", OK].concat()).await;
    lab.client.expect(CLOSES).await;
}

#[tokio::test(start_paused = true)]
async fn an_early_response_and_the_rest_of_the_body_can_cross() {
    let mut lab = lab();
    lab.client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\n\r\nabc").await;
    let mut server = lab.server().await;
    server.expect("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\n\r\nabc").await;
    server.send(OK).await;
    lab.client.expect(OK).await;
    lab.client.send("def").await;
    server.expect("def").await;
    let done = lab.outcome().await;
    assert!(done.client_reusable && done.server_reusable && done.failure.is_none());
}

#[tokio::test(start_paused = true)]
async fn an_early_response_of_a_server_that_closes_keeps_the_clients_connection() {
    let mut lab = lab();
    lab.client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\n\r\nabc").await;
    let mut server = lab.server().await;
    server.expect("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\n\r\nabc").await;
    server.send("HTTP/1.1 413 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").await;
    drop(server);
    lab.client.expect("HTTP/1.1 413 No\r\nContent-Length: 0\r\n\r\n").await;
    lab.client.send(["def", GET].concat()).await;
    let done = lab.outcome().await;
    assert!(done.client_reusable && !done.server_reusable);
    lab.server().await.expect(GET).await;
}

#[tokio::test(start_paused = true)]
async fn an_upgraded_connection_is_opaque_until_both_sides_end() {
    let mut lab = lab();
    let request = "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    lab.client.send(request).await;
    let mut server = lab.server().await;
    server.expect(request).await;
    let response =
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    server.send([response, "\0first"].concat()).await;
    lab.client.expect([response, "\0first"].concat()).await;
    lab.client.send("GET /not-http HTTP/1.1\r\n").await;
    server.expect("GET /not-http HTTP/1.1\r\n").await;
    lab.client.finish().await;
    server.expect_end().await;
    server.send("last").await;
    drop(server);
    lab.client.expect("last").await;
    lab.client.expect_end().await;
    let done = lab.outcome().await;
    assert!(done.upgraded && done.status == Some(101) && done.failure.is_none());
}

#[tokio::test(start_paused = true)]
async fn an_upgrade_ended_by_the_server_first() {
    let mut lab = lab();
    lab.client
        .send("GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\nearly")
        .await;
    let mut server = lab.server().await;
    server.send("HTTP/1.1 101 S\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n").await;
    lab.client.expect("HTTP/1.1 101 S\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n").await;
    server.finish().await;
    lab.client.expect_end().await;
    lab.client.send("more").await;
    lab.client.finish().await;
    assert!(server.rest().await.ends_with("\r\n\r\nearlymore"));
    assert!(lab.outcome().await.failure.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_client_is_upgraded_only_if_it_asks() {
    let mut lab = lab();
    lab.client.send(GET).await;
    let mut server = lab.server().await;
    server.send("HTTP/1.1 101 S\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n").await;
    lab.client.expect("HTTP/1.1 502 Bad Gateway\r\nleno-error: unasked-upgrade\r\n").await;
    assert!(!lab.outcome().await.server_reusable);
}

/// Regression, found by the fuzzer: if the body did not fit into the buffer, the head had already been dropped when the
/// 101 arrived, and the engine read the requested protocols from other bytes.
#[tokio::test(start_paused = true)]
async fn an_upgrade_after_a_long_body_is_compared_with_the_request() {
    let switch = "HTTP/1.1 101 S\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n";
    for (asked, granted) in [("", false), ("Connection: Upgrade\r\nUpgrade: x\r\n", true)] {
        let mut lab = lab();
        let (size, field) = (200_000, "f".repeat(4000));
        let head = format!(
            "POST / HTTP/1.1\r\nHost: a\r\nF: {field}\r\n{asked}Content-Length: {size}\r\n\r\n"
        );
        let request = [head.as_bytes(), &vec![b'b'; size]].concat();
        let Lab { client, servers, .. } = &mut lab;
        let (mut server, ()) = tokio::join!(
            async {
                let mut server = Wire(servers.recv().await.unwrap());
                server.expect(&request).await;
                server
            },
            client.send(&request)
        );
        server.send(switch).await;
        if granted {
            lab.client.expect(switch).await;
            server.send("opaque").await;
            lab.client.expect("opaque").await;
        } else {
            lab.client.expect("HTTP/1.1 502 Bad Gateway\r\nleno-error: unasked-upgrade\r\n").await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn ten_mebibytes_both_ways_through_small_pipes() {
    let mut lab = Lab::new(Settings { pipe: 1000, ..Settings::default() });
    let size = 10 << 20;
    let body: Vec<u8> = (0..size).map(|at: usize| (at % 251) as u8).collect();
    let head = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {size}\r\n\r\n");
    let reply = format!("HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n");
    let request = [head.as_bytes(), &body].concat();
    let response = [reply.as_bytes(), &body].concat();
    let Lab { client, servers, done, .. } = &mut lab;
    let (mut from_client, mut to_client) = tokio::io::split(&mut client.0);
    let upload = to_client.write_all(&request);
    let download = async {
        let mut got = vec![0; response.len()];
        from_client.read_exact(&mut got).await.unwrap();
        assert!(got == response);
    };
    // The server sends the body back while the upload is still in progress.
    let server = async {
        let mut server = servers.recv().await.unwrap();
        let (mut reader, mut writer) = tokio::io::split(&mut server);
        let mut head_bytes = vec![0; head.len()];
        reader.read_exact(&mut head_bytes).await.unwrap();
        writer.write_all(reply.as_bytes()).await.unwrap();
        let mut left = size;
        let mut piece = vec![0; 3000];
        while left > 0 {
            let count = reader.read(&mut piece).await.unwrap();
            writer.write_all(&piece[..count]).await.unwrap();
            left -= count;
        }
        server
    };
    let (uploaded, (), _server) = tokio::join!(upload, download, server);
    uploaded.unwrap();
    let done = done.recv().await.unwrap();
    assert!(done.client_reusable && done.server_reusable);
    assert_eq!(done.request_bytes, request.len() as u64);
    assert_eq!(done.response_bytes, response.len() as u64);
}

#[tokio::test(start_paused = true)]
async fn headers_are_set_in_both_heads() {
    let set = vec![HeaderLine::new("leno-client", b"spiffe://x").unwrap()];
    let mut lab = Lab::new(Settings { set, ..Settings::default() });
    let request =
        "POST / HTTP/1.1\r\nHost: a\r\nLENO-CLIENT: forged\r\nContent-Length: 3\r\n\r\nabc";
    lab.client.send(request).await;
    let mut server = lab.server().await;
    server
        .expect(
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nleno-client: spiffe://x\r\n\r\nabc",
        )
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_slow_upload_continues_after_an_early_response() {
    let mut lab = lab();
    let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 20\r\n\r\n";
    lab.client.send(head).await;
    let mut server = lab.server().await;
    server.expect(head).await;
    server.send(OK).await;
    lab.client.expect(OK).await;
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        lab.client.send("x").await;
        server.expect("x").await;
    }
    let done = lab.outcome().await;
    assert!(done.client_reusable && done.server_reusable);
}

#[tokio::test(start_paused = true)]
async fn an_upgraded_connection_outlives_the_requests_deadline() {
    let deadline = Some(Duration::from_secs(5));
    let mut lab = Lab::new(Settings { deadline, ..Settings::default() });
    lab.client.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n").await;
    let mut server = lab.server().await;
    server.send("HTTP/1.1 101 S\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n").await;
    lab.client.expect("HTTP/1.1 101 S\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n").await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    server.send("late").await;
    lab.client.expect("late").await;
}

#[tokio::test(start_paused = true)]
async fn bytes_read_for_detection_are_the_first_of_the_connection() {
    let (near, mut far) = tokio::io::duplex(1000);
    let mut client = Conn::with_received(near, &GET.as_bytes()[..7]);
    far.write_all(&GET.as_bytes()[7..]).await.unwrap();
    let request = client.read_request(&Limits::default()).await.unwrap().unwrap();
    assert_eq!(client.received(), GET.as_bytes());
    assert_eq!(request.view(client.received()).authority(), "a");
}
