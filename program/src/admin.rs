//! The admin server: HTTP/1 for scrapes and probes.

use std::convert::Infallible;
use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
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
use tokio::time::timeout;

use crate::content::{PROMETHEUS, TEXT};
use crate::shares::Shares;

/// How many connections are served at once at most; scrapes and probes need a handful.
const MAX_CONNECTIONS: usize = 64;
/// How many connections one address may have. Any client may connect here, and the kubelet restarts containers whose
/// probes fail, so its probes must get through. The kubelet has an address of its own, and one connection for each
/// probe in progress.
const MAX_OF_ADDRESS: usize = 16;
/// Longest wait for a request's head, for clients that send it at once, as scrapers and probes do. A
/// stalled client is disconnected after it.
const HEAD_TIMEOUT: Duration = Duration::from_secs(3);
/// Longest life of a connection. Without it, clients that do not read their responses, or that send
/// request after request, could occupy all connections forever and shut out the next probe.
const CONNECTION_LIFE: Duration = Duration::from_mins(1);
/// How long after that the response to the last request may still take. A response that is cut off
/// looks to the client like a server that has failed.
const LAST_RESPONSE: Duration = Duration::from_secs(5);

/// A response.
pub type AdminResponse = Response<Full<Bytes>>;

/// The two ends of a connection.
#[derive(Clone, Copy, Debug)]
pub struct SocketPair {
    /// The client's address.
    pub client: SocketAddr,
    /// The address to which the client connected.
    pub called: SocketAddr,
}

/// A new bound on the connections of an admin server: [`MAX_CONNECTIONS`] in total, [`MAX_OF_ADDRESS`] for one client's
/// address.
#[must_use]
pub fn connections() -> Shares<IpAddr> {
    Shares::new(MAX_CONNECTIONS, MAX_OF_ADDRESS)
}

/// Serves until the future is dropped; all connections share one task.
pub async fn serve<A, F>(listener: TcpListener, answer: A)
where
    A: Fn(Request<Incoming>, SocketPair) -> F,
    F: Future<Output = AdminResponse>,
{
    let shares = connections();
    let mut connections = FuturesUnordered::new();
    loop {
        tokio::select! {
            (stream, client, share) = shares.accept(&listener) => {
                connections.push(share.hold(connection(stream, client, &answer)));
            }
            Some(_ended) = connections.next() => {}
        }
    }
}

async fn connection<A, F>(stream: TcpStream, client: SocketAddr, answer: &A)
where
    A: Fn(Request<Incoming>, SocketPair) -> F,
    F: Future<Output = AdminResponse>,
{
    let Ok(called) = stream.local_addr() else { return };
    serve_stream(stream, client, |request| answer(request, SocketPair { client, called })).await;
}

/// Serves one connection until it ends or reaches its longest life. The log names `client`.
pub async fn serve_stream<A, F>(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    client: impl Display,
    answer: A,
) where
    A: Fn(Request<Incoming>) -> F,
    F: Future<Output = AdminResponse>,
{
    serve_stream_with(stream, (client, HEAD_TIMEOUT), answer).await;
}

/// Like [`serve_stream`], for a client that may take up to `head_timeout` until it has sent the head
/// of its next request.
pub async fn serve_stream_with<A, F>(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    (client, head_timeout): (impl Display, Duration),
    answer: A,
) where
    A: Fn(Request<Incoming>) -> F,
    F: Future<Output = AdminResponse>,
{
    let service = service_fn(|request| {
        let answer = answer(request);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let mut served = pin!(
        hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(head_timeout)
            .serve_connection(TokioIo::new(stream), service)
    );
    let ended = match timeout(CONNECTION_LIFE, served.as_mut()).await {
        Ok(ended) => Ok(ended),
        Err(_old) => {
            served.as_mut().graceful_shutdown();
            timeout(LAST_RESPONSE, served).await
        }
    };
    match ended {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%client, %error, "admin connection ended"),
        Err(_late) => tracing::debug!(%client, "admin connection closed: it has lasted too long"),
    }
}

/// A refusal for any method other than `allowed`; HEAD is accepted as GET.
#[must_use]
pub fn refuse_method(method: &Method, allowed: &Method) -> Option<AdminResponse> {
    if method == allowed || (method == Method::HEAD && allowed == Method::GET) {
        return None;
    }
    let mut refused = respond(
        StatusCode::METHOD_NOT_ALLOWED,
        TEXT,
        format!("this method is not allowed: use {allowed}\n"),
    );
    let value = HeaderValue::from_str(allowed.as_str()).expect("a method is a header value");
    refused.headers_mut().insert(ALLOW, value);
    Some(refused)
}

/// The pages of a program that has no others: `/live`, `/ready` (with the reason if it is not
/// ready), and `/metrics`.
pub fn answer_pages(
    request: &Request<Incoming>,
    not_ready: impl FnOnce() -> Option<&'static str>,
    metrics: impl FnOnce() -> String,
) -> AdminResponse {
    if let Some(refused) = refuse_method(request.method(), &Method::GET) {
        return refused;
    }
    match request.uri().path() {
        "/live" => respond(StatusCode::OK, TEXT, "live\n"),
        "/ready" => readiness(not_ready()),
        "/metrics" => respond(StatusCode::OK, PROMETHEUS, metrics()),
        _ => respond(
            StatusCode::NOT_FOUND,
            TEXT,
            "there is no such page: use /metrics, /ready or /live\n",
        ),
    }
}

/// The response to `/ready`: 200, or why the program cannot do its work.
#[must_use]
pub fn readiness(not_ready: Option<&str>) -> AdminResponse {
    match not_ready {
        None => respond(StatusCode::OK, TEXT, "ready\n"),
        Some(why) => respond(StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{why}\n")),
    }
}

/// A response; `content_type` is one of [`crate::content`] or similar.
pub fn respond(
    status: StatusCode,
    content_type: &'static str,
    body: impl Into<Bytes>,
) -> AdminResponse {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
    use tokio::time::sleep;

    use super::*;

    /// What a client receives that sends this many requests at once. Each response takes this long.
    async fn received(requests: usize, takes: Duration) -> String {
        let (mut client, server) = duplex(64 * 1024);
        let answer = async |_request: Request<Incoming>| {
            sleep(takes).await;
            respond(StatusCode::OK, TEXT, "answered\n")
        };
        let asked = async {
            let request = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
            client.write_all(request.repeat(requests).as_bytes()).await.unwrap();
            let mut text = String::new();
            client.read_to_string(&mut text).await.unwrap();
            text
        };
        tokio::join!(serve_stream(server, "client", answer), asked).1
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_response_of_a_connection_is_whole() {
        // The life of the connection ends during the ninth response.
        let text = received(100, Duration::from_secs(7)).await;
        assert_eq!(text.matches("HTTP/1.1 200").count(), 9, "{text}");
        assert!(text.ends_with("\r\n\r\nanswered\n"), "{text}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_that_never_ends_is_cut_off() {
        assert_eq!(received(1, Duration::MAX).await, "");
    }
}
