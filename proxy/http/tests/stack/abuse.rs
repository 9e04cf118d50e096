//! Tests hostile clients and servers: each is refused, and none of its bytes reaches another connection.

use leno_http::Party;

use crate::support::{Lab, Settings};

/// A request that an attacker wants a server to mistake for an independent one.
const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// Lines of a request's head after `POST / HTTP/1.1` and `Host: a`, with the status and cause of the answer.
const HEADERS: &[(&str, u16, &str)] = &[
    (
        "Content-Length: 6\r\nTransfer-Encoding: chunked",
        400,
        "content-length-and-transfer-encoding",
    ),
    (
        "Transfer-Encoding: chunked\r\nContent-Length: 6",
        400,
        "content-length-and-transfer-encoding",
    ),
    ("Transfer-Encoding: x\r\nContent-Length: 6", 400, "content-length-and-transfer-encoding"),
    ("Content-Length: 6\r\nContent-Length: 5", 400, "content-length-conflict"),
    ("Content-Length: 0\r\nContent-Length: 44", 400, "content-length-conflict"),
    ("Content-Length: 5, 5", 400, "content-length"),
    ("Content-Length: 5 6", 400, "content-length"),
    ("Content-Length: +5", 400, "content-length"),
    ("Content-Length: -5", 400, "content-length"),
    ("Content-Length: 0x5", 400, "content-length"),
    ("Content-Length: 5.0", 400, "content-length"),
    ("Content-Length: \"5\"", 400, "content-length"),
    ("Content-Length: ", 400, "content-length"),
    ("Content-Length: 18446744073709551616", 400, "content-length"),
    ("Content-Length: \x0b5", 400, "header-value"),
    ("Content-Length : 5", 400, "space-before-colon"),
    ("Content-Length\t: 5", 400, "space-before-colon"),
    ("Content-Length\x0b: 5", 400, "header-name"),
    ("\x00Content-Length: 5", 400, "header-name"),
    (" Content-Length: 5", 400, "folded-header"),
    ("X: y\r\n Content-Length: 5", 400, "folded-header"),
    ("X: y\r\n\tTransfer-Encoding: chunked", 400, "folded-header"),
    ("X: y\nContent-Length: 5", 400, "bare-lf"),
    ("X: y\rContent-Length: 5", 400, "bare-cr"),
    ("X: y\r\rContent-Length: 5", 400, "bare-cr"),
    ("X: y\0Content-Length: 5", 400, "header-value"),
    ("Transfer-Encoding : chunked", 400, "space-before-colon"),
    ("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity", 400, "transfer-encoding"),
    ("Transfer-Encoding: identity\r\nTransfer-Encoding: identity", 400, "transfer-encoding"),
    ("Transfer-Encoding: chunked, chunked", 400, "transfer-encoding"),
    ("Transfer-Encoding: chunked, identity", 400, "transfer-encoding"),
    ("Transfer-Encoding: chunkedx", 400, "transfer-encoding"),
    ("Transfer-Encoding: xchunked", 400, "transfer-encoding"),
    ("Transfer-Encoding: 'chunked'", 400, "transfer-encoding"),
    ("Transfer-Encoding: chunked;q=1", 400, "transfer-encoding"),
    ("Transfer-Encoding: ", 400, "transfer-encoding"),
    ("Transfer-Encoding: \x0bchunked", 400, "header-value"),
    ("Transfer-Encoding:\n chunked", 400, "bare-lf"),
    ("Transfer-Encoding: chunked,", 501, "transfer-coding"),
    ("Transfer-Encoding: gzip, chunked", 501, "transfer-coding"),
    ("Connection: Content-Length\r\nContent-Length: 44", 400, "connection-option"),
    ("Connection: keep-alive, Host", 400, "connection-option"),
    ("Host: b", 400, "host-repeated"),
    ("No colon", 400, "space-before-colon"),
    ("Nocolon", 400, "header-name"),
    (": empty", 400, "header-name"),
    ("X: \x7f", 400, "header-value"),
];

/// Complete heads.
const HEADS: &[(&str, u16, &str)] = &[
    ("GET / HTTP/1.1\r\n\r\n", 400, "host-missing"),
    ("GET / HTTP/1.1\r\nHost: a, b\r\n\r\n", 400, "host-malformed"),
    ("GET / HTTP/1.1\r\nHost: a/x\r\n\r\n", 400, "host-malformed"),
    ("GET http://b/ HTTP/1.1\r\nHost: a\r\n\r\n", 400, "host-conflict"),
    ("GET http://a@b/ HTTP/1.1\r\nHost: b\r\n\r\n", 400, "target"),
    ("GET * HTTP/1.1\r\nHost: a\r\n\r\n", 400, "target"),
    ("GET /\r\n\r\n", 400, "request-line"),
    ("GET / HTTP/1.1 HTTP/1.1\r\nHost: a\r\n\r\n", 400, "request-line"),
    ("GET / HTTP/1.1\nHost: a\n\n", 400, "request-line"),
    ("GET  / HTTP/1.1\r\nHost: a\r\n\r\n", 400, "request-line"),
    ("\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", 400, "request-line"),
    ("\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", 400, "request-line"),
    ("GET /\x7f HTTP/1.1\r\nHost: a\r\n\r\n", 400, "request-line"),
    ("GET / HTTP/1.10\r\nHost: a\r\n\r\n", 400, "request-line"),
    ("\x16\x03\x01\x02\x00\x01\x00\x01\u{fc}\x03\x03", 400, "request-line"),
    ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, "version"),
    ("GET / HTTP/1.2\r\nHost: a\r\n\r\n", 505, "version"),
    ("CONNECT a HTTP/1.1\r\nHost: a\r\n\r\n", 400, "target"),
    (
        "POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
        400,
        "transfer-encoding-in-http-1.0",
    ),
];

/// Chunked bodies. The server may receive the bytes before the fault, but no second request.
const CHUNKS: &[(&str, &str)] = &[
    ("5\r\nhello", "chunk-end"),
    ("x\r\n", "chunk-size"),
    ("5 \r\nhello\r\n", "chunk-size"),
    ("0x5\r\nhello\r\n", "chunk-size"),
    ("-5\r\nhello\r\n", "chunk-size"),
    ("5\nhello\r\n", "chunk-size"),
    ("5\r\nhello\n0\r\n\r\n", "chunk-end"),
    ("5\rhello\r\n", "chunk-line"),
    ("5;\nhello\r\n0\r\n\r\n", "chunk-line"),
    ("5;x\0\r\nhello\r\n", "chunk-line"),
    ("ffffffffffffffff\r\n", "chunk-size"),
    ("10000000000000005\r\nhello\r\n", "chunk-size"),
    ("5\r\nhello!\r\n0\r\n\r\n", "chunk-end"),
    ("0\r\n\n", "trailer"),
    ("0\r\nX : y\r\n\r\n", "trailer"),
    ("0\r\nX: y\n\r\n", "trailer"),
    ("0\r\n", "trailer"),
    ("0\r\nContent-Length: 5\r\n\r\n", "trailer-forbidden"),
    ("0\r\nTransfer-Encoding: chunked\r\n\r\n", "trailer-forbidden"),
];

#[tokio::test(start_paused = true)]
async fn ambiguous_heads_reach_no_server() {
    let lines = HEADERS.iter().map(|(lines, status, cause)| {
        (format!("POST / HTTP/1.1\r\nHost: a\r\n{lines}\r\n\r\n"), *status, *cause)
    });
    let heads = HEADS.iter().map(|(head, status, cause)| (head.to_string(), *status, *cause));
    for (head, status, cause) in lines.chain(heads) {
        let mut lab = Lab::new(Settings::default());
        lab.client.send([&head, "0\r\n\r\n", SMUGGLED].concat()).await;
        lab.client.expect_error(status, cause).await;
        lab.expect_no_server().await;
    }
}

#[tokio::test(start_paused = true)]
async fn heads_that_are_too_large_are_refused() {
    let cases = [
        (format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "x".repeat(65_536)), 431),
        (format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "X: y\r\n".repeat(300)), 431),
        (format!("GET / HTTP/1.1\r\nHost: a\r\n{}: y\r\n\r\n", "x".repeat(70_000)), 431),
        (format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(40_000)), 414),
        (format!("{} / HTTP/1.1\r\nHost: a\r\n\r\n", "X".repeat(40_000)), 414),
    ];
    for (head, status) in cases {
        let mut lab = Lab::new(Settings::default());
        let Lab { client, .. } = &mut lab;
        let (mut reader, mut writer) = tokio::io::split(&mut client.0);
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let mut answer = String::new();
        let send = async {
            writer.write_all(head.as_bytes()).await?;
            writer.write_all(SMUGGLED.as_bytes()).await
        };
        let (_, read) = tokio::join!(send, reader.read_to_string(&mut answer));
        read.unwrap();
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        lab.expect_no_server().await;
    }
}

#[tokio::test(start_paused = true)]
async fn ambiguous_chunks_end_the_connection() {
    for (body, cause) in CHUNKS {
        let mut lab = Lab::new(Settings::default());
        let head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
        lab.client.send([head, body, SMUGGLED].concat()).await;
        let mut server = lab.server().await;
        let seen = server.rest().await;
        assert!(!seen.contains("smuggled") && !seen.contains("0\r\n\r\n"), "{body:?}: {seen:?}");
        lab.client.expect_error(400, cause).await;
        let failure = lab.outcome().await.failure.unwrap();
        assert!(failure.place == Party::Client && !failure.retryable);
        lab.expect_no_server().await;
    }
}

#[tokio::test(start_paused = true)]
async fn bodies_and_requests_are_never_confused() {
    // Each case is a valid request whose body looks like another request, or two requests of which the second looks
    // like a body. The server must receive exactly the bytes that the framing defines, before it answers.
    let length = SMUGGLED.len();
    let cases = [
        (format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n"), SMUGGLED, true),
        ("GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n".into(), SMUGGLED, false),
        ("GET / HTTP/1.1\r\nHost: a\r\n\r\n".into(), SMUGGLED, false),
        ("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n".into(), SMUGGLED, false),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".into(),
            SMUGGLED,
            false,
        ),
        (
            "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n".into(),
            SMUGGLED,
            false,
        ),
    ];
    for (first, second, belongs) in cases {
        let mut lab = Lab::new(Settings::default());
        lab.client.send([&first, second].concat()).await;
        let mut server = lab.server().await;
        server.expect(&first).await;
        if belongs {
            server.expect(second).await;
        } else {
            let nothing = tokio::time::timeout(std::time::Duration::from_secs(1), server.rest());
            nothing.await.expect_err("the second request came before the first was answered");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_upgrade_to_h2c_is_never_requested_or_granted() {
    let mut lab = Lab::new(Settings::default());
    let head = "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\n\
        Upgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n";
    lab.client.send(head).await;
    let mut server = lab.server().await;
    server.expect("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
    server.send("HTTP/1.1 101 S\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n").await;
    lab.client.expect("HTTP/1.1 502 ").await;
}

#[tokio::test(start_paused = true)]
async fn ambiguous_responses_are_not_forwarded() {
    let cases = [
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
            "content-length-conflict",
        ),
        ("HTTP/1.1 200 OK\r\nContent-Length: 1,2\r\n\r\n", "content-length"),
        ("HTTP/1.1 200 OK\r\nContent-Length : 1\r\n\r\n", "space-before-colon"),
        ("HTTP/1.1 200 OK\r\nX: y\r\n Content-Length: 1\r\n\r\n", "folded-header"),
        ("HTTP/1.1 200 OK\r\nX: y\nContent-Length: 1\r\n\r\n", "bare-lf"),
        ("HTTP/1.1 200 OK\r\nX: \0\r\n\r\n", "header-value"),
        ("HTTP/1.1 200 O\rK\r\n\r\n", "status-line"),
        ("HTTP/3.0 200 OK\r\n\r\n", "status-line"),
        ("+OK POP3 ready\r\n", "status-line"),
    ];
    for (response, cause) in cases {
        let mut lab = Lab::new(Settings::default());
        lab.client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
        let mut server = lab.server().await;
        server.send(response).await;
        lab.client.expect(format!("HTTP/1.1 502 Bad Gateway\r\nleno-error: {cause}\r\n")).await;
        let done = lab.outcome().await;
        // The caller's policy decides whether there is a retry.
        assert!(!done.server_reusable && done.failure.unwrap().retryable);
    }
    let mut lab = Lab::new(Settings::default());
    lab.client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
    let mut server = lab.server().await;
    let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n";
    server.send([head, "zz\r\n", OK].concat()).await;
    // The fault was in the bytes of the first read, so nothing had been sent yet.
    lab.client.expect("HTTP/1.1 502 Bad Gateway\r\nleno-error: chunk-size\r\n").await;
}

#[tokio::test(start_paused = true)]
async fn an_invalid_request_does_not_affect_other_clients() {
    // Both requests use one connection to the server, one after the other.
    let mut lab = Lab::new(Settings::default());
    let get = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let bad = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n";
    lab.client.send([get, bad, SMUGGLED].concat()).await;
    let mut server = lab.server().await;
    server.expect(get).await;
    server.send(OK).await;
    lab.client.expect(OK).await;
    lab.client.expect_error(400, "content-length-conflict").await;
    server.expect_end().await;
}
