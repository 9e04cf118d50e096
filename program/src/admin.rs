//! The admin server: HTTP/1 for scrapes and probes.

use std::convert::Infallible;
use std::fmt::Display;
use std::net::SocketAddr;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};

use crate::content::{PROMETHEUS, TEXT};
use crate::places::Places;

/// Most connections served at once; scrapes and probes need a handful.
const MAX_CONNECTIONS: usize = 64;
/// Most of them of one address: everybody may connect here, and what the kubelet asks decides whether
/// containers live. It has an address of its own, and a connection for each probe under way.
const MAX_OF_ADDRESS: usize = 16;
/// Longest wait for a request's head, so that a stalled client frees its place.
const HEAD_TIMEOUT: Duration = Duration::from_secs(3);
/// Longest life of a connection. Without it, clients that do not read their answers, or ask again and
/// again, could take all places for ever, and the next probe would find none.
const CONNECTION_LIFE: Duration = Duration::from_mins(1);

/// What is answered.
pub type Answer = Response<Full<Bytes>>;

/// The two ends of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    /// Who asks.
    pub client: SocketAddr,
    /// The address that was called.
    pub called: SocketAddr,
}

/// Serves until it is dropped, all connections in one task.
pub async fn serve<A, F>(listener: TcpListener, answer: A)
where
    A: Fn(Request<Incoming>, Ends) -> F,
    F: Future<Output = Answer>,
{
    let places = Places::new(MAX_CONNECTIONS, MAX_OF_ADDRESS);
    let mut connections = FuturesUnordered::new();
    loop {
        tokio::select! {
            (stream, client, place) = places.accept(&listener) => {
                connections.push(place.hold(connection(stream, client, &answer)));
            }
            Some(_ended) = connections.next() => {}
        }
    }
}

async fn connection<A, F>(stream: TcpStream, client: SocketAddr, answer: &A)
where
    A: Fn(Request<Incoming>, Ends) -> F,
    F: Future<Output = Answer>,
{
    let Ok(called) = stream.local_addr() else { return };
    serve_stream(stream, client, |request| answer(request, Ends { client, called })).await;
}

/// Serves one connection to its end, which is bounded; `client` is named in the log.
pub async fn serve_stream<A, F>(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    client: impl Display,
    answer: A,
) where
    A: Fn(Request<Incoming>) -> F,
    F: Future<Output = Answer>,
{
    let service = service_fn(|request| {
        let answer = answer(request);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    match tokio::time::timeout(CONNECTION_LIFE, served).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%client, %error, "admin connection ended"),
        Err(_old) => tracing::debug!(%client, "admin connection closed: it has lasted too long"),
    }
}

/// Refuses what is not asked with `allowed`; HEAD goes for GET.
#[must_use]
pub fn refuse_method(method: &Method, allowed: &Method) -> Option<Answer> {
    if method == allowed || (method == Method::HEAD && allowed == Method::GET) {
        return None;
    }
    let mut refused = respond(StatusCode::METHOD_NOT_ALLOWED, TEXT, format!("use {allowed}\n"));
    let value = HeaderValue::from_str(allowed.as_str()).expect("a method is a header value");
    refused.headers_mut().insert(ALLOW, value);
    Some(refused)
}

/// The pages of a program that has no others: `/live`, `/ready` by why it cannot do its work, and `/metrics`.
pub fn answer_pages(
    request: &Request<Incoming>,
    not_ready: impl FnOnce() -> Option<&'static str>,
    metrics: impl FnOnce() -> String,
) -> Answer {
    if let Some(refused) = refuse_method(request.method(), &Method::GET) {
        return refused;
    }
    match request.uri().path() {
        "/live" => respond(StatusCode::OK, TEXT, "live\n"),
        "/ready" => readiness(not_ready()),
        "/metrics" => respond(StatusCode::OK, PROMETHEUS, metrics()),
        _ => respond(StatusCode::NOT_FOUND, TEXT, "use /metrics, /ready or /live\n"),
    }
}

/// The answer to `/ready`, by why the program cannot do its work, if it cannot.
#[must_use]
pub fn readiness(not_ready: Option<&str>) -> Answer {
    match not_ready {
        None => respond(StatusCode::OK, TEXT, "ready\n"),
        Some(why) => respond(StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{why}\n")),
    }
}

/// An answer; `content_type` is one of [`crate::content`], or alike.
pub fn respond(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}
