//! Tests one client's connection, over loopback or in memory. The proxy itself answers every request; there is no
//! server.

use std::cell::RefCell;

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::net::{TcpListener, TcpStream};

use super::*;

/// Serves a client that sends `said` and ends its stream. Returns the bytes that the client reads, the targets of its
/// requests, and the status and cause of a refused request.
async fn served(said: &[u8]) -> (String, Vec<String>, Option<(u16, &'static str)>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (accepted, _) = listener.accept().await.unwrap();
    let (targets, mut refused) = (RefCell::new(Vec::new()), None);
    let limits = Limits::default();
    let request = async |mut client: Box<Conn<TcpStream>>| {
        let forward = async |client: &mut Conn<TcpStream>, request: &RequestHead| {
            let target = request.view(client.received()).target();
            targets.borrow_mut().push(String::from_utf8_lossy(target).into_owned());
            client.fail(request, 503, "nobody").await
        };
        let refused = |status, cause| refused = Some((status, cause));
        let after = serve_begun(&mut client, &limits, forward, refused).await;
        (client, after)
    };
    let stays = std::future::pending();
    let serving = serve(Box::new(Conn::new(accepted)), (&limits, stays), request);
    let talking = async {
        client.write_all(said).await.unwrap();
        client.shutdown().await.unwrap();
        let mut heard = String::new();
        client.read_to_string(&mut heard).await.unwrap();
        heard
    };
    let ((), heard) = tokio::join!(serving, talking);
    (heard, targets.into_inner(), refused)
}

#[tokio::test]
async fn requests_are_served_until_the_client_is_done() {
    let (heard, targets, refused) =
        served(b"GET /1 HTTP/1.1\r\nHost: a\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\n\r\n").await;
    assert_eq!(heard.matches("HTTP/1.1 503 ").count(), 2, "{heard}");
    assert_eq!((targets, refused), (vec!["/1".to_owned(), "/2".to_owned()], None));
}

/// The responses to a client that has sent `said` when the proxy begins to drain, and that sends `then` afterwards.
async fn left_with(said: &[u8], then: &[u8]) -> String {
    let (mut client, accepted) = tokio::io::duplex(1024);
    let limits = Limits::default();
    let request = async |mut client: Box<Conn<DuplexStream>>| {
        let forward = async |client: &mut Conn<DuplexStream>, request: &RequestHead| {
            client.fail(request, 503, "nobody").await
        };
        let after = serve_begun(&mut client, &limits, forward, |_, _| {}).await;
        (client, after)
    };
    let (ask, asked) = tokio::sync::oneshot::channel::<()>();
    let leave = async { drop(asked.await) };
    client.write_all(said).await.unwrap();
    let mut serving =
        std::pin::pin!(serve(Box::new(Conn::new(accepted)), (&limits, leave), request));
    let context = &mut std::task::Context::from_waker(std::task::Waker::noop());
    assert!(serving.as_mut().poll(context).is_pending(), "it has read everything that was sent");
    ask.send(()).unwrap();
    let is_done = serving.as_mut().poll(context).is_ready();
    let talking = async {
        // This fails if the connection is already closed.
        let _gone = client.write_all(then).await;
        let mut heard = String::new();
        client.read_to_string(&mut heard).await.unwrap();
        heard
    };
    let served = async {
        if !is_done {
            serving.await;
        }
    };
    tokio::join!(talking, served).0
}

#[tokio::test]
async fn a_begun_request_is_served_although_the_client_must_leave() {
    let heard = left_with(b"GET /1 HTTP/1.1\r\n", b"Host: a\r\n\r\n").await;
    assert_eq!(heard.matches("HTTP/1.1 503 ").count(), 1, "{heard}");
}

#[tokio::test]
async fn an_idle_connection_is_closed_when_its_client_must_leave() {
    assert_eq!(left_with(b"", b"").await, "");
    let heard = left_with(b"GET /1 HTTP/1.1\r\nHost: a\r\n\r\n", b"").await;
    assert_eq!(heard.matches("HTTP/1.1 503 ").count(), 1, "{heard}");
}

#[tokio::test]
async fn a_request_that_asks_to_close_is_the_last() {
    let (heard, targets, _) = served(
        b"GET /1 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\n\r\n",
    )
    .await;
    assert_eq!(heard.matches("HTTP/1.1 503 ").count(), 1, "{heard}");
    assert_eq!(targets, ["/1"]);
}

#[tokio::test]
async fn an_invalid_request_is_answered_and_reported() {
    let (heard, targets, refused) =
        served(b"GET /1 HTTP/1.1\r\nHost: a\r\n\r\nGET /2 HTTP/1.1\r\n\r\n").await;
    let (status, cause) = refused.unwrap();
    assert_eq!((targets, status), (vec!["/1".to_owned()], 400));
    assert!(heard.contains("HTTP/1.1 400 ") && heard.contains(cause), "{heard}");
}
