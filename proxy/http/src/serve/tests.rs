//! One client's connection over loopback, every request answered in place of a server.

use std::cell::RefCell;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;

/// What a client reads that sends this and ends; the targets it was served; what was refused.
async fn served(said: &[u8]) -> (String, Vec<String>, Option<(u16, &'static str)>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (accepted, _) = listener.accept().await.unwrap();
    let (targets, mut refused) = (RefCell::new(Vec::new()), None);
    let forward = async |client: &mut Conn<TcpStream>, request: &RequestHead| {
        let target = request.view(client.received()).target();
        targets.borrow_mut().push(String::from_utf8_lossy(target).into_owned());
        client.fail(request, 503, "nobody").await
    };
    let limits = Limits::default();
    let serving = serve(Conn::new(accepted), &limits, forward, |status, cause| {
        refused = Some((status, cause));
    });
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
async fn one_that_cannot_be_read_is_answered_and_told_of() {
    let (heard, targets, refused) =
        served(b"GET /1 HTTP/1.1\r\nHost: a\r\n\r\nGET /2 HTTP/1.1\r\n\r\n").await;
    let (status, cause) = refused.unwrap();
    assert_eq!((targets, status), (vec!["/1".to_owned()], 400));
    assert!(heard.contains("HTTP/1.1 400 ") && heard.contains(cause), "{heard}");
}
