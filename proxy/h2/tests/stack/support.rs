//! Servers, clients and relays of this crate at one end of a pipe.

use std::rc::Rc;

use leno_h2::{Accept, Client, ConnError, Head, Limits, OpenError, Request, forward, link};
use leno_hpack::Token;
use tokio::io::DuplexStream;
use tokio::task::JoinHandle;

/// How many bytes a pipe can hold in each direction.
pub(crate) const PIPE: usize = 64 * 1024;

/// Runs a test with tasks that stay on their thread, under a paused clock.
pub(crate) fn run<F: Future<Output = ()>>(test: F) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, test);
}

pub(crate) fn limits() -> Rc<Limits> {
    Rc::new(Limits::default())
}

pub(crate) type Ended = JoinHandle<Result<(), ConnError>>;

/// Our server at the end of a new pipe, and the task that drives the connection.
pub(crate) fn server(limits: &Rc<Limits>) -> (DuplexStream, Accept, Ended) {
    let (near, far) = tokio::io::duplex(PIPE);
    let (accept, driver) = leno_h2::server(near, &[], limits);
    (far, accept, tokio::task::spawn_local(driver.run()))
}

pub(crate) fn client(limits: &Rc<Limits>) -> (DuplexStream, Client, Ended) {
    let (near, far) = tokio::io::duplex(PIPE);
    let (client, driver) = leno_h2::client(near, limits);
    (far, client, tokio::task::spawn_local(driver.run()))
}

pub(crate) fn request(method: &str, path: &str) -> Head {
    [(":method", method), (":scheme", "http"), (":path", path), (":authority", "a")]
        .into_iter()
        .collect()
}

pub(crate) fn response(status: &str) -> Head {
    [(":status", status)].into_iter().collect()
}

/// Sends back every body, with the trailers if there are any.
pub(crate) async fn echo(mut accept: Accept) {
    while let Some(request) = accept.accept().await {
        tokio::task::spawn_local(echo_one(request));
    }
}

async fn echo_one(Request { mut stream, head, .. }: Request) {
    if head.find(Token::PATH) == Some(b"/reset") {
        return stream.reset(leno_h2::Code::CONNECT_ERROR);
    }
    let mut answer = response("200");
    if let Some(length) = head.find(Token::CONTENT_LENGTH) {
        answer.push(b"content-length", length);
    }
    if !stream.send_head(&answer, false) {
        return;
    }
    loop {
        match stream.data().await {
            Ok(Some(piece)) => {
                let count = piece.len();
                if stream.capacity().await.is_err() {
                    return;
                }
                stream.send_data(piece, false);
                stream.release(count);
            }
            Ok(None) => break,
            Err(_) => return,
        }
    }
    match stream.trailers() {
        Some(trailers) => stream.send_trailers(trailers),
        None => stream.send_data(Vec::new(), true),
    }
    stream.closed().await;
}

/// Relays all requests to one server.
pub(crate) async fn relay(mut accept: Accept, client: Client) {
    while let Some(request) = accept.accept().await {
        tokio::task::spawn_local(relay_one(request, client.clone()));
    }
}

async fn relay_one(request: Request, client: Client) {
    let mut far = loop {
        match client.open(&request.head, request.ended) {
            Ok(stream) => break stream,
            Err(OpenError::Full) => {
                if client.ready().await.is_err() {
                    return;
                }
            }
            Err(_) => return,
        }
    };
    let mut near = request.stream;
    forward(&near, &far);
    loop {
        let Ok(head) = far.head().await else { return };
        if !head.is_interim() {
            near.send_head(&head, far.is_ended_without_rest());
            break;
        }
        near.send_head(&head, false);
    }
    link(near, far).await;
}
