//! The admin server: `/metrics`, `/ready`, `/live`, `/drain`, `/config`, `/probe/...`.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderValue, USER_AGENT};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};

mod places;
pub(crate) mod probe;

use crate::state::State;
use places::Places;

/// Most admin connections served at once; scrapes and probes need a handful.
const MAX_CONNECTIONS: usize = 64;
/// Most of them of one address: everybody may connect here, and what the kubelet asks decides whether
/// containers live. It has an address of its own, and a connection for each probe under way.
const MAX_OF_ADDRESS: usize = 16;
/// Longest wait for a request's head, so that a stalled client frees its place.
const HEAD_TIMEOUT: Duration = Duration::from_secs(3);
/// Longest life of a connection. Without it, clients that do not read their answers, or ask again and
/// again, could take all places for ever, and the next probe would find none.
const CONNECTION_LIFE: Duration = Duration::from_secs(60);
/// Pause after a failed accept, so that a full descriptor table is not a busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const TEXT: &str = "text/plain; charset=utf-8";
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const JSON: &str = "application/json";

type Answer = Response<Full<Bytes>>;

/// Serves until the runtime ends; runs on the control thread.
pub(crate) async fn serve(listener: TcpListener, state: Rc<State>) {
    let places = Places::new(MAX_CONNECTIONS, MAX_OF_ADDRESS);
    loop {
        match listener.accept().await {
            Ok((stream, client)) => {
                let Some(place) = places.take(client.ip()) else {
                    tracing::debug!(%client, "admin connection closed: its address has many");
                    continue;
                };
                let (number, state) = (place.number(), Rc::clone(&state));
                let task = tokio::task::spawn_local(async move {
                    connection(stream, client, state).await;
                    drop(place);
                });
                places.held(number, task.abort_handle());
            }
            Err(error) => {
                tracing::warn!(%error, "admin connection not accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn connection(stream: TcpStream, client: SocketAddr, state: Rc<State>) {
    // An application is probed at the address that the kubelet has called.
    let Ok(called) = stream.local_addr() else { return };
    let service = service_fn(move |request| {
        let state = Rc::clone(&state);
        async move { Ok::<_, Infallible>(answer(&request, (client, called), &state).await) }
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

async fn answer(
    request: &Request<Incoming>,
    (client, called): (SocketAddr, SocketAddr),
    state: &State,
) -> Answer {
    let probe = request.uri().path().strip_prefix("/probe/");
    let allowed = if request.uri().path() == "/drain" { Method::POST } else { Method::GET };
    let known =
        matches!(request.uri().path(), "/metrics" | "/ready" | "/live" | "/drain" | "/config");
    if !known && probe.is_none() {
        return respond(
            StatusCode::NOT_FOUND,
            TEXT,
            "use /metrics, /ready, /live, /drain, /config or /probe/<container>/<kind>\n",
        );
    }
    if request.method() != allowed && !(allowed == Method::GET && request.method() == Method::HEAD)
    {
        let mut refused = respond(StatusCode::METHOD_NOT_ALLOWED, TEXT, format!("use {allowed}\n"));
        let value = HeaderValue::from_str(allowed.as_str()).expect("a method is a header value");
        refused.headers_mut().insert(ALLOW, value);
        return refused;
    }
    if let Some(path) = probe {
        let agent = request.headers().get(USER_AGENT);
        let (status, reason) = state.probes.ask(path, called.ip(), agent).await;
        return respond(status, TEXT, reason);
    }
    match request.uri().path() {
        "/live" => respond(StatusCode::OK, TEXT, "live\n"),
        "/ready" => match state.not_ready() {
            None => respond(StatusCode::OK, TEXT, "ready\n"),
            Some(why) => respond(StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{why}\n")),
        },
        "/drain" if !client.ip().to_canonical().is_loopback() => {
            respond(StatusCode::FORBIDDEN, TEXT, "/drain is served on loopback only\n")
        }
        "/drain" => {
            state.drain();
            respond(StatusCode::OK, TEXT, "draining\n")
        }
        "/config" => respond(StatusCode::OK, JSON, state.config().await),
        _ => metrics(request, state).await,
    }
}

async fn metrics(request: &Request<Incoming>, state: &State) -> Answer {
    let accepts = request.headers().get(ACCEPT).and_then(|value| value.to_str().ok());
    let open = accepts.is_some_and(|value| value.contains("application/openmetrics-text"));
    let text = state.metrics(open).await;
    respond(StatusCode::OK, if open { OPENMETRICS } else { PROMETHEUS }, text)
}

fn respond(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}
