//! Tests of behaviour that in-memory pipes cannot show: resets, and buffers of idle sockets.

use std::future::poll_fn;
use std::time::Duration;

use leno_http::{Cause, Conn, Limits, Order, Party, exchange, h1_to_h2, pool_stats};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

use crate::h2::support::{Settings, h2_back, next};

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// A TCP connection. The test has one end, and the engine has the other.
async fn pair() -> (TcpStream, Conn<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let far = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (near, _) = listener.accept().await.unwrap();
    (far, Conn::new(near))
}

#[tokio::test]
async fn a_keep_alive_exchange_and_a_quiet_pool() {
    let limits = Limits::default();
    let (mut user, mut client) = pair().await;
    let (mut application, mut server) = pair().await;
    for _ in 0..3 {
        assert!(server.is_quiet());
        let proxy = async {
            let request = client.read_request(&limits).await.unwrap().unwrap();
            exchange(&mut client, &request, &mut server, &mut Order::new(&limits)).await
        };
        let peers = async {
            user.write_all(GET).await.unwrap();
            let mut request = [0; GET.len()];
            application.read_exact(&mut request).await.unwrap();
            assert_eq!(&request, GET);
            application.write_all(OK).await.unwrap();
            let mut response = [0; OK.len()];
            user.read_exact(&mut response).await.unwrap();
            assert_eq!(&response, OK);
        };
        let (done, ()) = tokio::join!(proxy, peers);
        assert!(done.client_reusable && done.server_reusable);
        assert_eq!(pool_stats().used, [0; 4]);
    }
    drop(application);
    poll_fn(|cx| server.poll_unquiet(cx)).await;
    assert!(!server.is_quiet());
}

#[tokio::test]
async fn a_reset_by_the_server_is_retryable_before_any_response() {
    let limits = Limits::default();
    let (mut user, mut client) = pair().await;
    user.write_all(GET).await.unwrap();
    let request = client.read_request(&limits).await.unwrap().unwrap();
    let (application, mut server) = pair().await;
    application.set_zero_linger().unwrap();
    drop(application);
    let done = exchange(&mut client, &request, &mut server, &mut Order::new(&limits)).await;
    let failure = done.failure.unwrap();
    assert!(failure.retryable && failure.place == Party::Server);
    // The request is sent again on another connection.
    let (mut application, mut server) = pair().await;
    application.write_all(OK).await.unwrap();
    let done = exchange(&mut client, &request, &mut server, &mut Order::new(&limits)).await;
    assert!(done.failure.is_none() && done.client_reusable);
    let mut seen = [0; GET.len()];
    application.read_exact(&mut seen).await.unwrap();
    assert_eq!(&seen, GET);
}

/// Another proxy closes a connection properly only between two requests. So if it does, it has not read the request.
/// TLS distinguishes a proper close from a cut connection.
#[tokio::test]
async fn a_proxy_of_the_mesh_that_ends_properly_has_not_read_the_request() {
    let limits = Limits::default();
    for is_mesh in [true, false] {
        let (mut user, mut client) = pair().await;
        user.write_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi").await.unwrap();
        let request = client.read_request(&limits).await.unwrap().unwrap();
        let (mut proxy, mut server) = pair().await;
        proxy.shutdown().await.unwrap();
        let mut order = Order::new(&limits);
        order.mesh = is_mesh;
        let done = exchange(&mut client, &request, &mut server, &mut order).await;
        let failure = done.failure.unwrap();
        assert!(failure.retryable && failure.place == Party::Server);
        assert_eq!(failure.unprocessed, is_mesh);
    }
}

#[tokio::test]
async fn a_reset_by_the_client_ends_the_wait_for_a_response() {
    let limits = Limits::default();
    let (mut user, mut client) = pair().await;
    user.write_all(GET).await.unwrap();
    let request = client.read_request(&limits).await.unwrap().unwrap();
    let (mut application, mut server) = pair().await;
    let mut order = Order::new(&limits);
    let proxy = exchange(&mut client, &request, &mut server, &mut order);
    let peers = async {
        let mut seen = [0; GET.len()];
        application.read_exact(&mut seen).await.unwrap();
        user.set_zero_linger().unwrap();
        drop(user);
    };
    let (done, ()) = tokio::join!(proxy, peers);
    let failure = done.failure.unwrap();
    assert!(failure.place == Party::Client && matches!(failure.cause, Cause::Broken(_)));
    drop(server);
    assert_eq!(application.read(&mut [0; 1]).await.unwrap(), 0);
}

#[tokio::test]
async fn a_truncated_response_ends_with_a_reset() {
    let limits = Limits::default();
    let (mut user, mut client) = pair().await;
    user.write_all(GET).await.unwrap();
    let request = client.read_request(&limits).await.unwrap().unwrap();
    let (mut application, mut server) = pair().await;
    application.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab").await.unwrap();
    drop(application);
    let done = exchange(&mut client, &request, &mut server, &mut Order::new(&limits)).await;
    assert!(done.response_started && done.failure.is_some());
    client.abort(None);
    let error = user.read_to_end(&mut vec![]).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn a_refusal_is_read_although_the_client_still_sends() {
    let limits = Limits::default();
    let (mut user, mut client) = pair().await;
    user.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    user.write_all(&[b'x'; 200_000]).await.unwrap();
    let failure = client.read_request(&limits).await.unwrap_err();
    let answer = leno_http::Answer::error(failure.status().unwrap(), failure.cause.label());
    assert!(!client.respond(None, &answer).await.unwrap());
    let reading = async {
        let mut answer = String::new();
        user.read_to_string(&mut answer).await.unwrap();
        drop(user);
        answer
    };
    let (answer, ()) = tokio::join!(reading, client.close(&limits));
    assert!(
        answer.starts_with("HTTP/1.1 400 ")
            && answer.ends_with("leno: Bad Request: host-missing\n")
    );
}

/// Whether the proxy closes a connection without waiting for the client. The client's request has `Connection: close`,
/// and the bytes `behind` follow the request. The client reads the response and its end in any case.
async fn ends_at_once(behind: &str) -> bool {
    let limits = Limits::default();
    let (mut user, mut client) = pair().await;
    let (mut application, mut server) = pair().await;
    let close = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    user.write_all(format!("{close}{behind}").as_bytes()).await.unwrap();
    application.write_all(OK).await.unwrap();
    let request = client.read_request(&limits).await.unwrap().unwrap();
    exchange(&mut client, &request, &mut server, &mut Order::new(&limits)).await;
    let mut heard = Vec::new();
    let at_once = tokio::select! {
        biased;
        () = client.close(&limits) => true,
        read = user.read_to_end(&mut heard) => read.is_err(),
    };
    if at_once {
        user.read_to_end(&mut heard).await.unwrap();
    }
    assert!(heard.ends_with(b"\r\n\r\nok"));
    at_once
}

#[tokio::test]
async fn a_connection_is_closed_at_once_after_the_clients_last_request() {
    assert!(ends_at_once("").await);
    // Closing at once might destroy a response that the client has not read yet.
    assert!(!ends_at_once("GET / HTTP/1.1\r\n").await);
}

/// When a client closes its socket: at once, or this long after its FIN. The kernel sends no packet for the close after
/// the FIN.
const LEAVES: [Option<Duration>; 5] = [
    None,
    Some(Duration::ZERO),
    Some(Duration::from_millis(20)),
    Some(Duration::from_millis(200)),
    Some(Duration::from_millis(600)),
];

/// An HTTP/1 server learns at once that its HTTP/1 client has left; the next test has an HTTP/2 server. For HTTP/2
/// clients, the tests in `matrix` check this.
#[tokio::test(start_paused = true)]
async fn the_servers_work_ends_if_the_client_closes_its_connection() {
    for half in LEAVES {
        let limits = Limits::default();
        let (mut user, mut client) = pair().await;
        user.write_all(GET).await.unwrap();
        let request = client.read_request(&limits).await.unwrap().unwrap();
        let (mut application, mut server) = pair().await;
        let mut order = Order::new(&limits);
        let peers = async {
            application.read_exact(&mut [0; GET.len()]).await.unwrap();
            // The proxy finds out although the client sends nothing.
            leave(user, half).await
        };
        let (done, left) =
            tokio::join!(exchange(&mut client, &request, &mut server, &mut order), peers);
        let failure = done.failure.unwrap();
        assert!(failure.place == Party::Client && matches!(failure.cause, Cause::Closed));
        assert_noticed(left, half);
        drop(server);
        assert_eq!(application.read(&mut [0; 1]).await.unwrap(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn the_servers_stream_is_cancelled_if_the_client_closes_its_connection() {
    for half in LEAVES {
        in_local_set(async |user, mut app| {
            let (_, mut stream) = next(&mut app).await;
            let left = leave(user, half).await;
            assert_eq!(stream.closed().await.unwrap().code, leno_h2::Code::CANCEL);
            assert_noticed(left, half);
        })
        .await;
    }
}

/// Closes a client's connection. If `half` is a time, the close comes that long after the FIN. Returns when the
/// connection was closed, on the clock of timers.
async fn leave(mut user: TcpStream, half: Option<Duration>) -> Instant {
    if let Some(wait) = half {
        user.shutdown().await.unwrap();
        for _ in 0..100 {
            // Let the proxy read the FIN before time passes.
            tokio::task::yield_now().await;
        }
        tokio::time::sleep(wait).await;
    }
    drop(user);
    Instant::now()
}

fn assert_noticed(left: Instant, half: Option<Duration>) {
    let late = left.elapsed();
    assert!(
        late <= Duration::from_millis(100) + half.unwrap_or_default() / 8,
        "{half:?}: {late:?}"
    );
}

#[tokio::test]
async fn a_client_that_has_only_ended_its_stream_is_served() {
    in_local_set(async |mut user, mut app| {
        let (_, mut stream) = next(&mut app).await;
        user.shutdown().await.unwrap();
        for _ in 0..100 {
            // Let the end of the client's stream arrive.
            tokio::task::yield_now().await;
        }
        assert!(stream.reset_reason().is_none());
        stream.send_head(&[(":status", "204")].into_iter().collect(), true);
        let mut response = Vec::new();
        user.read_to_end(&mut response).await.unwrap();
        assert!(response.starts_with(b"HTTP/1.1 204 "), "{}", response.escape_ascii());
    })
    .await;
}

/// How long a client writes an upload that the server does not read.
const WRITES: Duration = Duration::from_millis(300);

const UPLOAD: &[u8] = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000000\r\n\r\n";

/// Sends an upload for [`WRITES`], and then closes the connection although some bytes were not sent yet.
async fn leave_in_the_middle(mut user: TcpStream) -> Instant {
    user.write_all(UPLOAD).await.unwrap();
    let full = async {
        loop {
            user.write_all(&[b'x'; 64 * 1024]).await.unwrap();
        }
    };
    let _full = tokio::time::timeout(WRITES, full).await;
    drop(user);
    Instant::now()
}

/// The server does not read the upload, so the proxy reads no more of it, and does not read the end of the client's
/// stream.
#[tokio::test(start_paused = true)]
async fn a_stuck_upload_ends_if_the_client_leaves() {
    in_local_set(async |user, mut app| {
        let (_, mut first) = next(&mut app).await;
        first.send_head(&[(":status", "204")].into_iter().collect(), true);
        let left = leave_in_the_middle(user);
        let (left, (_, mut stream)) = tokio::join!(left, next(&mut app));
        assert_eq!(stream.closed().await.unwrap().code, leno_h2::Code::CANCEL);
        assert_noticed(left, Some(WRITES));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_server_of_a_stuck_upload_is_released_if_the_client_leaves() {
    let limits = Limits::default();
    let (user, mut client) = pair().await;
    let (application, mut server) = pair().await;
    let mut order = Order::new(&limits);
    let proxy = async {
        let request = client.read_request(&limits).await.unwrap().unwrap();
        exchange(&mut client, &request, &mut server, &mut order).await
    };
    let (done, left) = tokio::join!(proxy, leave_in_the_middle(user));
    let failure = done.failure.unwrap();
    assert!(failure.place == Party::Client && matches!(failure.cause, Cause::Closed));
    assert_noticed(left, Some(WRITES));
    drop(application);
}

/// While a request waits for a server, the proxy reads no more of it than fits into the buffer, so it does not read a
/// FIN after that.
#[tokio::test(start_paused = true)]
async fn the_wait_for_a_server_ends_if_a_client_with_a_full_buffer_leaves() {
    let limits = Limits::default();
    let (user, mut client) = pair().await;
    let waiting = async {
        client.read_request(&limits).await.unwrap().unwrap();
        poll_fn(|cx| client.poll_gone(cx)).await
    };
    let (failure, left) = tokio::join!(waiting, leave_in_the_middle(user));
    assert!(failure.place == Party::Client && matches!(failure.cause, Cause::Closed));
    assert_noticed(left, Some(WRITES));
}

#[tokio::test(start_paused = true)]
async fn the_wait_for_a_server_continues_if_a_client_with_a_full_buffer_stays() {
    let limits = Limits::default();
    let (mut user, mut client) = pair().await;
    user.write_all(UPLOAD).await.unwrap();
    user.write_all(&[b'x'; 64 * 1024]).await.unwrap();
    client.read_request(&limits).await.unwrap().unwrap();
    let gone = poll_fn(|cx| client.poll_gone(cx));
    assert!(tokio::time::timeout(Duration::from_secs(600), gone).await.is_err());
    drop(user);
}

/// Runs a test with a client over TCP, which has sent a GET, and an HTTP/2 server.
async fn in_local_set(test: impl AsyncFnOnce(TcpStream, leno_h2::Accept)) {
    let local = tokio::task::LocalSet::new();
    local
        .run_until(async {
            let limits = Limits::default();
            let (mut user, mut client) = pair().await;
            let (server, app) = h2_back(&Settings::default());
            user.write_all(GET).await.unwrap();
            let proxy = async {
                while let Ok(Some(request)) = client.read_request(&limits).await {
                    let mut order = Order::new(&limits);
                    let done = h1_to_h2(&mut client, &request, &server, &mut order).await;
                    if !done.client_reusable {
                        break;
                    }
                }
                drop(client);
            };
            tokio::join!(proxy, test(user, app));
        })
        .await;
}
